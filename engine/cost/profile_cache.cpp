#include "engine/cost/profile_cache.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

constexpr int kApplicationId = 0x6d6f6562;  // "moeb" in ASCII
constexpr int kSchema = 3;
constexpr const char* kTable =
    "CREATE TABLE samples(key TEXT PRIMARY KEY NOT NULL, ns TEXT NOT NULL, lost REAL NOT NULL, "
    "disturbed INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID";
constexpr int kBusyTimeoutMs = 20'000;

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

/// Thrown when the file's content is not a valid cache; what() is the reason to rename the file.
class Unreadable : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Lets one process at a time open, create or rename the file at `path`. It locks a separate file,
/// because SQLite's locks on the database are lost when any descriptor of the database is closed.
class OpeningLock {
 public:
  explicit OpeningLock(const std::string& path)
      : fd_(::open((path + ".lock").c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    if (fd_ < 0) {
      throw user_error("profile cache '{}': cannot open '{}.lock': {}", path, path,
                       std::strerror(errno));
    }
    while (::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~OpeningLock() { ::close(fd_); }
  OpeningLock(const OpeningLock&) = delete;
  OpeningLock& operator=(const OpeningLock&) = delete;

 private:
  int fd_;
};

/// Throws when `code` is a failure of SQLite: Unreadable when the file's content is wrong
/// (SQLITE_ERROR means that a table or column is missing), else UserError.
void expect_opening(int code, sqlite3* db, const std::string& path) {
  const int primary = code & 0xff;
  if (primary == SQLITE_OK || primary == SQLITE_ROW || primary == SQLITE_DONE) return;
  const char* message = db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(code);
  if (primary == SQLITE_NOTADB || primary == SQLITE_CORRUPT || primary == SQLITE_ERROR) {
    throw Unreadable(message);
  }
  throw user_error("profile cache '{}': {}", path, message);
}

Statement prepare(sqlite3* db, const std::string& path, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  expect_opening(sqlite3_prepare_v2(db, sql, -1, &statement, nullptr), db, path);
  return Statement(statement);
}

/// Returns the first column of the first row as text; "" when there is no row.
std::string query(sqlite3* db, const std::string& path, const char* sql) {
  const Statement statement = prepare(db, path, sql);
  const int code = sqlite3_step(statement.get());
  expect_opening(code, db, path);
  if (code != SQLITE_ROW) return "";
  const unsigned char* text = sqlite3_column_text(statement.get(), 0);
  return text != nullptr ? reinterpret_cast<const char*>(text) : "";
}

void execute(sqlite3* db, const std::string& path, const std::string& sql) {
  expect_opening(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), db, path);
}

/// Opens a cache of schema kSchema; an empty file becomes one. Throws Unreadable or UserError.
Database open_database(const std::string& path) {
  sqlite3* raw = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  Database db(raw);
  expect_opening(code, raw, path);
  sqlite3_busy_timeout(raw, kBusyTimeoutMs);
  const bool empty = query(raw, path, "SELECT count(*) FROM sqlite_master") == "0";
  if (sqlite3_db_readonly(raw, "main") == 1) {
    throw user_error("profile cache '{}': the file is read-only", path);
  }
  const std::string id = query(raw, path, "PRAGMA application_id");
  const std::string schema = query(raw, path, "PRAGMA user_version");
  const bool fresh = empty && id == "0" && schema == "0";
  if (!fresh && (id != std::to_string(kApplicationId) || schema != std::to_string(kSchema))) {
    throw Unreadable(fmt::format("it is not a profile cache of schema {}", kSchema));
  }
  execute(raw, path, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL");
  if (fresh) {
    execute(raw, path,
            fmt::format("BEGIN IMMEDIATE; {}; PRAGMA application_id={}; PRAGMA user_version={}; "
                        "COMMIT",
                        kTable, kApplicationId, kSchema));
  }
  prepare(raw, path, "SELECT key, ns, lost, disturbed, checksum FROM samples");
  // Other tables are refused: a view could run without end, a trigger could change stored rows.
  const std::string tables = query(raw, path, "SELECT group_concat(sql, '; ') FROM sqlite_master");
  if (tables != kTable)
    throw Unreadable(fmt::format("its tables are '{}', expected '{}'", tables, kTable));
  const std::string health = query(raw, path, "PRAGMA quick_check(1)");
  if (health != "ok") throw Unreadable(health);
  return db;
}

/// Renames the file and its WAL file to the first free "<path>.corrupt-<n>", and returns that name.
std::string set_aside(const std::string& path) {
  int n = 1;
  while (fs::exists(fmt::format("{}.corrupt-{}", path, n))) ++n;
  const std::string aside = fmt::format("{}.corrupt-{}", path, n);
  std::error_code error;
  fs::rename(path, aside, error);
  if (error) {
    throw user_error(
        "profile cache '{}': the file cannot be used, and cannot be renamed to '{}': {}", path,
        aside, error.message());
  }
  if (fs::exists(path + "-wal", error)) fs::rename(path + "-wal", aside + "-wal", error);
  fs::remove(path + "-shm", error);
  return aside;
}

/// Returns the samples in the text; nullopt unless all are numbers from `least` to kLongestSample.
std::optional<std::vector<Nanoseconds>> from_text(std::string_view text, Nanoseconds least) {
  std::vector<Nanoseconds> samples;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    Nanoseconds sample = 0;
    const auto [next, error] = std::from_chars(at, end, sample);
    if (error != std::errc() || sample < least || sample > kLongestSample) return std::nullopt;
    samples.push_back(sample);
    if (next == end) return samples;
    if (*next != ',') return std::nullopt;
    at = next;
  }
}

/// Returns the checksum of a row as a signed integer, which SQLite stores. ns: the samples as text.
int64_t checksum(const std::string& key, std::string_view ns, double lost, bool disturbed) {
  const std::string quality = fmt::format(";{};{}", lost, disturbed);
  uint64_t sum = fnv1a(kFnvStart, key.c_str(), key.size() + 1);
  sum = fnv1a(sum, ns.data(), ns.size());
  return static_cast<int64_t>(fnv1a(sum, quality.data(), quality.size()));
}

/// Returns the samples of the current row of "SELECT ns, lost, disturbed, checksum"; nullopt unless
/// its checksum is that of `key` and the rest, and all values are in range.
std::optional<Samples> samples_of(sqlite3_stmt* row, const std::string& key, Nanoseconds least) {
  constexpr std::array kTypes = {SQLITE_TEXT, SQLITE_FLOAT, SQLITE_INTEGER, SQLITE_INTEGER};
  for (int column = 0; column < static_cast<int>(kTypes.size()); ++column) {
    if (sqlite3_column_type(row, column) != kTypes[static_cast<size_t>(column)]) return {};
  }
  const auto* const text = reinterpret_cast<const char*>(sqlite3_column_text(row, 0));
  const std::string_view ns(text, static_cast<size_t>(sqlite3_column_bytes(row, 0)));
  const double lost = sqlite3_column_double(row, 1);
  const int64_t disturbed = sqlite3_column_int64(row, 2);
  if (!(lost >= 0 && lost <= 1) || (disturbed != 0 && disturbed != 1)) return {};
  if (sqlite3_column_int64(row, 3) != checksum(key, ns, lost, disturbed == 1)) return {};
  std::optional<std::vector<Nanoseconds>> samples = from_text(ns, least);
  if (!samples) return {};
  return Samples{std::move(*samples), lost, disturbed == 1};
}

}  // namespace

struct ProfileCache::Impl {
  std::mutex mutex;
  std::string path;
  std::string warning;
  Database db;
  Statement find, store;

  [[noreturn]] void fail() const {
    throw run_error("profile cache '{}': {}", path, sqlite3_errmsg(db.get()));
  }
};

ProfileCache::ProfileCache(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path.empty() ? ":memory:" : path;
  std::optional<OpeningLock> lock;
  if (impl_->path != ":memory:") {
    std::error_code error;
    const fs::path folder = fs::path(path).parent_path();
    if (!folder.empty()) fs::create_directories(folder, error);
    if (error)
      throw user_error("profile cache '{}': its folder cannot be created: {}", path,
                       error.message());
    lock.emplace(path);
  }
  try {
    impl_->db = open_database(impl_->path);
  } catch (const Unreadable& unreadable) {
    const std::string aside = set_aside(path);
    impl_->warning =
        fmt::format("profile cache '{}' was renamed to '{}' and a new one was created: {}", path,
                    aside, unreadable.what());
    impl_->db = open_database(path);
  }
  impl_->find = prepare(impl_->db.get(), path,
                        "SELECT ns, lost, disturbed, checksum FROM samples WHERE key = ?");
  impl_->store = prepare(
      impl_->db.get(), path,
      "INSERT OR REPLACE INTO samples(key, ns, lost, disturbed, checksum) VALUES(?, ?, ?, ?, ?)");
}

ProfileCache::~ProfileCache() = default;

std::optional<Samples> ProfileCache::find(const std::string& key, Nanoseconds least) {
  const std::lock_guard<std::mutex> hold(impl_->mutex);
  sqlite3_stmt* const find = impl_->find.get();
  sqlite3_reset(find);
  sqlite3_bind_text(find, 1, key.data(), static_cast<int>(key.size()), SQLITE_TRANSIENT);
  const int code = sqlite3_step(find);
  std::optional<Samples> samples;
  if (code == SQLITE_ROW) {
    samples = samples_of(find, key, least);
  } else if (code != SQLITE_DONE) {
    impl_->fail();
  }
  sqlite3_reset(find);  // ends the read transaction, so that the WAL can be checkpointed
  return samples;
}

void ProfileCache::store(const std::string& key, const Samples& samples) {
  MOE_CHECK(!samples.ns.empty(),
            "ProfileCache::store: key '{}' has 0 samples, but must have at least 1", key);
  const std::string ns = fmt::format("{}", fmt::join(samples.ns, ","));
  const std::lock_guard<std::mutex> hold(impl_->mutex);
  sqlite3_stmt* const store = impl_->store.get();
  sqlite3_reset(store);
  sqlite3_bind_text(store, 1, key.data(), static_cast<int>(key.size()), SQLITE_TRANSIENT);
  sqlite3_bind_text(store, 2, ns.data(), static_cast<int>(ns.size()), SQLITE_TRANSIENT);
  sqlite3_bind_double(store, 3, samples.lost);
  sqlite3_bind_int64(store, 4, samples.disturbed ? 1 : 0);
  sqlite3_bind_int64(store, 5, checksum(key, ns, samples.lost, samples.disturbed));
  if (sqlite3_step(store) != SQLITE_DONE) impl_->fail();
  sqlite3_reset(store);
}

std::string ProfileCache::take_warning() {
  return std::exchange(impl_->warning, "");
}

Nanoseconds median(std::vector<Nanoseconds> samples) {
  MOE_CHECK(!samples.empty(), "median: there are 0 samples, but there must be at least 1");
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>((samples.size() - 1) / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace moe
