// A cache in one SQLite file (WAL), which is safe with concurrent processes and killed ones. A file
// that is not a readable cache of the expected layout (also one of an earlier schema) is renamed to
// "<path>.corrupt-<n>", which take_warning() reports, and a new file is created; bad content is
// never used silently. What the rows are is said by the classes that use this one (ProfileCache,
// SimulationCache), which also guard each row with a checksum.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/lock.h"

struct sqlite3;
struct sqlite3_stmt;

namespace moe {

class CacheFile {
 public:
  struct Layout {
    const char* what = nullptr;  // "profile cache", as messages name it
    int application_id = 0;      // of SQLite; each kind of cache has its own
    int schema = 0;
    const char* table = nullptr;  // the SQL text that creates the only table
    bool small = false;           // opening reads the whole file to find destroyed pages
  };

  /// Opens the file, or creates it with its folders. The paths "" and ":memory:" give a cache in
  /// memory. Throws UserError naming the path when the file or its folder cannot be written. Waits
  /// for a lock that another process has as a LockWait, here and in execute(), and throws RunError
  /// when that was in vain, Interrupted when a stop was requested.
  CacheFile(const std::string& path, const Layout& layout);

  /// Returns the warning of opening the file, or "" when there is none; a second call returns "".
  std::string take_warning();

  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;
  Statement prepare(const char* sql) const;
  /// Executes the statement with these values of its parameters and calls row() if there is a row;
  /// then ends the statement's transaction, so that the WAL can be checkpointed. May be called from
  /// any thread. Throws RunError when the file cannot be read or written, also for a destroyed page
  /// of a file that is not small.
  using Value = std::variant<std::string_view, double, int64_t>;
  void execute(const Statement& statement, const std::vector<Value>& values,
               const std::function<void(sqlite3_stmt*)>& row = nullptr);

 private:
  struct Close {
    void operator()(sqlite3* db) const;
  };
  [[noreturn]] void fail() const;
  static int wait_on(void* self, int count);
  void open();

  Layout layout_;
  std::string path_, warning_;
  std::mutex mutex_;
  std::optional<LockWait> wait_;
  std::unique_ptr<sqlite3, Close> db_;
};

/// Returns the text of a column of the current row; nullopt unless it is a text.
std::optional<std::string_view> text_column(sqlite3_stmt* row, int column);

}  // namespace moe
