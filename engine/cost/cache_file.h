// A cache in one SQLite file (WAL), which is safe with concurrent processes and killed ones. A file
// that is not a readable cache of the expected layout (also one of an earlier schema) is renamed to
// "<path>.corrupt-<n>", which take_warning() reports, and a new file is created; bad content is
// never used silently. What the rows are is said by the classes that use this one (ProfileCache,
// SimulationCache), which also guard each row with a checksum.
#pragma once

#include <sqlite3.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace moe {

class CacheFile {
 public:
  struct Layout {
    const char* what = nullptr;  // "profile cache", as messages name it
    int application_id = 0;      // SQLite's, which tells one kind of cache from another
    int schema = 0;
    const char* table = nullptr;  // the SQL text that creates the only table
  };

  /// Opens the file, or creates it with its folders. The paths "" and ":memory:" give a cache in
  /// memory. Throws UserError naming the path when the file or its folder cannot be written.
  CacheFile(const std::string& path, const Layout& layout);

  /// Returns the warning of opening the file, or "" when there is none; a second call returns "".
  std::string take_warning();

  /// A statement that a mutex keeps to one thread. After `reset`, columns and parameters are those
  /// of a new execution.
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;
  Statement prepare(const char* sql) const;
  /// Executes the statement with these values as its parameters and calls row() if there is a row;
  /// then ends the statement's transaction, so that the WAL can be checkpointed. Throws RunError
  /// when the file cannot be read or written.
  template <class Row, class... Values>
  void execute(const Statement& statement, const Row& row, const Values&... values) {
    const std::lock_guard<std::mutex> hold(mutex_);
    sqlite3_reset(statement.get());
    int number = 0;
    (bind(statement.get(), ++number, values), ...);
    const int code = sqlite3_step(statement.get());
    if (code == SQLITE_ROW) row(statement.get());
    if (code != SQLITE_ROW && code != SQLITE_DONE) fail();
    sqlite3_reset(statement.get());
  }

 private:
  struct Close {
    void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
  };
  static void bind(sqlite3_stmt* statement, int number, std::string_view text) {
    sqlite3_bind_text64(statement, number, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  static void bind(sqlite3_stmt* statement, int number, double value) {
    sqlite3_bind_double(statement, number, value);
  }
  static void bind(sqlite3_stmt* statement, int number, int64_t value) {
    sqlite3_bind_int64(statement, number, value);
  }
  [[noreturn]] void fail() const;
  void open();

  Layout layout_;
  std::string path_, warning_;
  std::mutex mutex_;
  std::unique_ptr<sqlite3, Close> db_;
};

/// Returns the text of a column of the current row; nullopt unless it is a text.
std::optional<std::string_view> text_column(sqlite3_stmt* row, int column);

}  // namespace moe
