#include "engine/cost/cache_file.h"

#include <fcntl.h>
#include <sqlite3.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/base/stop.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

/// Thrown when the file's content is not a valid cache; what() is the reason to rename the file.
class Unreadable : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Lets one process at a time open, create or rename the file at `path`. It locks a separate file,
/// because SQLite's locks on the database are lost when any descriptor of the database is closed.
class OpeningLock {
 public:
  OpeningLock(const std::string& path, const char* what)
      : file_(::open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (!file_.valid()) {
      throw user_error("{} '{}': cannot open '{}.lock': {}", what, path, path,
                       std::strerror(errno));
    }
    lock(file_, fmt::format("{} '{}'", what, path), "end that process, or give another --cache");
  }

 private:
  Descriptor file_;
};

/// A database that is being opened, whose failures are Unreadable when the file's content is wrong
/// (SQLITE_ERROR means that a table or column is missing), else UserError.
struct Opening {
  const CacheFile::Layout& layout;
  const std::string& path;
  sqlite3* db = nullptr;

  void expect(int code) const {
    const int primary = code & 0xff;
    if (primary == SQLITE_OK || primary == SQLITE_ROW || primary == SQLITE_DONE) return;
    if (primary == SQLITE_BUSY) check_stop();
    const char* message = db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code);
    if (primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT || primary == SQLITE_ERROR) {
      throw Unreadable(message);
    }
    throw user_error("{} '{}': {}", layout.what, path, message);
  }
  void execute(const std::string& sql) const {
    expect(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr));
  }
  /// Returns the first column of the first row as text; "" when there is no row.
  std::string query(const char* sql) const {
    sqlite3_stmt* raw = nullptr;
    expect(sqlite3_prepare_v2(db, sql, -1, &raw, nullptr));
    const CacheFile::Statement statement(raw);
    const int code = sqlite3_step(raw);
    expect(code);
    if (code != SQLITE_ROW) return "";
    const unsigned char* text = sqlite3_column_text(raw, 0);
    return text != nullptr ? reinterpret_cast<const char*>(text) : "";
  }
};

/// Makes sure that the open database is a cache of this layout; an empty file becomes one. Throws
/// Unreadable or UserError.
void expect_layout(const Opening& opening) {
  const auto& [layout, path, db] = opening;
  const bool empty = opening.query("SELECT count(*) FROM sqlite_master") == "0";
  if (sqlite3_db_readonly(db, "main") == 1) {
    throw user_error("{} '{}': the file is read-only", layout.what, path);
  }
  const std::string id = opening.query("PRAGMA application_id");
  const std::string schema = opening.query("PRAGMA user_version");
  const bool fresh = empty && id == "0" && schema == "0";
  if (!fresh &&
      (id != std::to_string(layout.application_id) || schema != std::to_string(layout.schema))) {
    throw Unreadable(fmt::format("it is not a {} of schema {}", layout.what, layout.schema));
  }
  opening.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL");
  if (fresh) {
    opening.execute(
        fmt::format("BEGIN IMMEDIATE; {}; PRAGMA application_id={}; PRAGMA user_version={}; COMMIT",
                    layout.table, layout.application_id, layout.schema));
  }
  // Other tables are refused: a view could run without end, a trigger could change stored rows.
  const std::string tables = opening.query("SELECT group_concat(sql, '; ') FROM sqlite_master");
  if (tables.empty()) throw Unreadable("no such table");
  if (tables != layout.table) {
    throw Unreadable(fmt::format("its tables are '{}', expected '{}'", tables, layout.table));
  }
  const std::string health = layout.small ? opening.query("PRAGMA quick_check(1)") : "ok";
  if (health != "ok") throw Unreadable(health);
}

/// Renames the file and its WAL file to the first free "<path>.corrupt-<n>", and returns that name.
std::string set_aside(const std::string& path, const char* what) {
  int n = 1;
  while (fs::exists(fmt::format("{}.corrupt-{}", path, n))) ++n;
  const std::string aside = fmt::format("{}.corrupt-{}", path, n);
  std::error_code error;
  fs::rename(path, aside, error);
  if (error) {
    throw user_error("{} '{}': the file cannot be used, and cannot be renamed to '{}': {}", what,
                     path, aside, error.message());
  }
  if (fs::exists(path + "-wal", error)) fs::rename(path + "-wal", aside + "-wal", error);
  fs::remove(path + "-shm", error);
  return aside;
}

}  // namespace

void CacheFile::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

void CacheFile::Close::operator()(sqlite3* db) const {
  sqlite3_close_v2(db);
}

// Called by SQLite when another process has a lock; `count`: how often it was for this lock.
int CacheFile::wait_on(void* self, int count) {
  auto* const file = static_cast<CacheFile*>(self);
  if (count == 0 || !file->wait_) {
    file->wait_.emplace(
        fmt::format("{} '{}', which another process has locked", file->layout_.what, file->path_));
  }
  return file->wait_->again() ? 1 : 0;
}

void CacheFile::open() {
  db_.reset();
  sqlite3* raw = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path_.c_str(), &raw, flags, nullptr);
  db_.reset(raw);
  const Opening opening{layout_, path_, raw};
  opening.expect(code);
  sqlite3_busy_handler(raw, wait_on, this);
  expect_layout(opening);
}

CacheFile::CacheFile(const std::string& path, const Layout& layout)
    : layout_(layout), path_(path.empty() ? ":memory:" : path) {
  std::optional<OpeningLock> lock;
  if (path_ != ":memory:") {
    std::error_code error;
    const fs::path folder = fs::path(path).parent_path();
    if (!folder.empty()) fs::create_directories(folder, error);
    if (error) {
      throw user_error("{} '{}': its folder cannot be created: {}", layout.what, path,
                       error.message());
    }
    lock.emplace(path, layout.what);
  }
  try {
    open();
  } catch (const Unreadable& unreadable) {
    db_.reset();
    warning_ = fmt::format("{} '{}' was renamed to '{}' and a new one was created: {}", layout.what,
                           path, set_aside(path, layout.what), unreadable.what());
    open();
  }
}

CacheFile::Statement CacheFile::prepare(const char* sql) const {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(db_.get(), sql, -1, &statement, nullptr) != SQLITE_OK) fail();
  return Statement(statement);
}

void CacheFile::execute(const Statement& statement, const std::vector<Value>& values,
                        const std::function<void(sqlite3_stmt*)>& row) {
  sqlite3_stmt* const raw = statement.get();
  const std::lock_guard<std::mutex> hold(mutex_);
  sqlite3_reset(raw);
  for (size_t i = 0; i < values.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    if (const auto* text = std::get_if<std::string_view>(&values[i])) {
      sqlite3_bind_text64(raw, number, text->data(), text->size(), SQLITE_TRANSIENT, SQLITE_UTF8);
    } else if (const auto* real = std::get_if<double>(&values[i])) {
      sqlite3_bind_double(raw, number, *real);
    } else {
      sqlite3_bind_int64(raw, number, std::get<int64_t>(values[i]));
    }
  }
  const int code = sqlite3_step(raw);
  if (code == SQLITE_ROW && row) row(raw);
  if (code == SQLITE_BUSY) check_stop();
  if (code != SQLITE_ROW && code != SQLITE_DONE) fail();
  sqlite3_reset(raw);
}

std::string CacheFile::take_warning() {
  return std::exchange(warning_, "");
}

void CacheFile::fail() const {
  const bool destroyed = (sqlite3_errcode(db_.get()) & 0xff) == SQLITE_CORRUPT;
  throw run_error("{} '{}': {}{}", layout_.what, path_, sqlite3_errmsg(db_.get()),
                  destroyed ? "; remove the file" : "");
}

std::optional<std::string_view> text_column(sqlite3_stmt* row, int column) {
  if (sqlite3_column_type(row, column) != SQLITE_TEXT) return std::nullopt;
  const auto* const text = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
  return std::string_view(text, static_cast<size_t>(sqlite3_column_bytes(row, column)));
}

}  // namespace moe
