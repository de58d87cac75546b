#include "engine/cost/profile_cache.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "engine/base/errors.h"
#include "engine/base/stop.h"

namespace moe {
namespace {

namespace fs = std::filesystem;

/// A folder that goes with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "moe_cache_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

/// Runs `body` in a process of its own, which never returns into the test program.
pid_t in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    body();
  } catch (const std::exception&) {
    _exit(1);
  }
  _exit(0);
}

bool succeeded(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string key_of(int writer, int i) {
  return fmt::format("w{}.{}", writer, i);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST_CASE("samples are found as they were stored, and only under their key") {
  ProfileCache cache("");
  CHECK_FALSE(cache.find("a"));
  cache.store("a", {{3, 1, 2}});
  cache.store("b | f32[2,3]", {{int64_t{1} << 40}});
  CHECK(cache.find("a") == Samples{{3, 1, 2}});
  CHECK(cache.find("b | f32[2,3]") == Samples{{int64_t{1} << 40}});
  CHECK_FALSE(cache.find("b"));
  cache.store("a", {{9}});
  CHECK(cache.find("a") == Samples{{9}});
  CHECK(cache.take_warning().empty());
}

TEST_CASE("a row keeps how far its samples were disturbed") {
  ProfileCache cache("");
  for (const Samples& samples : {Samples{{4, 5}, 1.0 / 3, true}, Samples{{4, 5}, 1, false},
                                 Samples{{4, 5}, 1e-300, true}, Samples{{4, 5}}}) {
    cache.store("a", samples);
    CHECK(cache.find("a") == samples);
  }
}

TEST_CASE("a cache without a path is seen by nobody else") {
  ProfileCache one(""), two(":memory:");
  one.store("a", {{1}});
  CHECK_FALSE(two.find("a"));
}

TEST_CASE("a cache outlives its process, and makes the folders of its path") {
  const TempFolder folder;
  const std::string path = folder.file("deep/er/profile.db");
  ProfileCache(path).store("a", {{7, 8}});
  ProfileCache again(path);
  CHECK(again.find("a") == Samples{{7, 8}});
  CHECK(again.take_warning().empty());
}

TEST_CASE("two processes write one cache at the same time and lose nothing") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  constexpr int kWrites = 150;
  std::vector<pid_t> children;
  for (int writer = 0; writer < 3; ++writer) {
    children.push_back(in_child([&path, writer] {
      ProfileCache cache(path);
      for (int i = 0; i < kWrites; ++i) {
        cache.store(key_of(writer, i), {{writer, i}});
        cache.store("contended", {{writer, i}});
      }
    }));
  }
  for (const pid_t child : children) CHECK(succeeded(child));
  ProfileCache cache(path);
  CHECK(cache.take_warning().empty());
  for (int writer = 0; writer < 3; ++writer) {
    for (int i = 0; i < kWrites; ++i)
      CHECK(cache.find(key_of(writer, i), 0) == Samples{{writer, i}});
  }
  CHECK(cache.find("contended", 0)->ns.at(1) == kWrites - 1);
}

TEST_CASE("a request to stop ends the wait for a cache that another process has locked") {
  const TempFolder folder;
  ProfileCache cache(folder.file("profile.db"));
  sqlite3* other = nullptr;
  REQUIRE(sqlite3_open(folder.file("profile.db").c_str(), &other) == SQLITE_OK);
  REQUIRE(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK);
  request_stop();
  CHECK_THROWS_AS(cache.store("key", {{1, 2, 3}}), Interrupted);
  withdraw_stop();
  sqlite3_close(other);
  cache.store("key", {{1, 2, 3}});
}

TEST_CASE("a writer that is killed leaves all that it had stored") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  int progress[2];
  REQUIRE(pipe(progress) == 0);
  const pid_t child = in_child([&] {
    ProfileCache cache(path);
    for (int i = 0; i < 1'000'000; ++i) {
      cache.store(key_of(0, i), {{i}});
      if (write(progress[1], &i, sizeof i) != sizeof i) return;
    }
  });
  close(progress[1]);
  int last = -1;
  while (last < 200) REQUIRE(read(progress[0], &last, sizeof last) == sizeof last);
  kill(child, SIGKILL);
  CHECK_FALSE(succeeded(child));
  while (read(progress[0], &last, sizeof last) == sizeof last) {
  }
  close(progress[0]);

  ProfileCache cache(path);
  CHECK(cache.take_warning().empty());
  for (int i = 0; i <= last; ++i) REQUIRE(cache.find(key_of(0, i), 0) == Samples{{i}});
  cache.store("after", {{1}});
  CHECK(cache.find("after") == Samples{{1}});
}

TEST_CASE("a file that is no database is set aside with a warning that names it") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  for (int n = 1; n <= 2; ++n) {
    write_text(path, std::string(5000, 'x'));
    ProfileCache cache(path);
    const std::string aside = fmt::format("{}.corrupt-{}", path, n);
    CHECK_THAT(cache.take_warning(), Catch::Contains("'" + aside + "'"));
    CHECK(cache.take_warning().empty());
    CHECK(fs::file_size(aside) == 5000);
    cache.store("a", {{n}});
    CHECK(cache.find("a") == Samples{{n}});
  }
}

TEST_CASE("a cache with a destroyed page is set aside") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  {
    ProfileCache cache(path);
    for (int i = 0; i < 500; ++i) cache.store(key_of(0, i), {std::vector<Nanoseconds>(20, i)});
  }
  REQUIRE(fs::file_size(path) > 3 * 4096);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(4096, '\x5a');
  file.close();
  ProfileCache cache(path);
  CHECK_THAT(cache.take_warning(), Catch::Contains(".corrupt-1"));
  CHECK_FALSE(cache.find(key_of(0, 1)));
}

TEST_CASE("a database of somebody else is set aside, not written to") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, "CREATE TABLE theirs(x)", nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
  std::ifstream before(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(before), {}};
  ProfileCache cache(path);
  CHECK_THAT(cache.take_warning(), Catch::Contains("not a profile cache of schema 3"));
  std::ifstream after(path + ".corrupt-1", std::ios::binary);
  CHECK(std::string{std::istreambuf_iterator<char>(after), {}} == bytes);
}

TEST_CASE("a cache that has lost its table is set aside") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  ProfileCache(path).store("a", {{1}});
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, "DROP TABLE samples", nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(db);
  ProfileCache cache(path);
  CHECK_THAT(cache.take_warning(), Catch::Contains("no such table"));
  cache.store("a", {{2}});
  CHECK(cache.find("a") == Samples{{2}});
}

/// Runs SQL on the file, as somebody else would.
void tamper(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  const int code = sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr);
  INFO(sql << ": " << sqlite3_errmsg(db));
  CHECK(code == SQLITE_OK);
  sqlite3_close(db);
}

TEST_CASE("what stands in a row and was not stored there is as good as nothing, and is replaced") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  ProfileCache cache(path);
  for (const char* change : {"ns = ''",
                             "ns = '1,'",
                             "ns = '1;2'",
                             "ns = 'nan'",
                             "ns = '1,2x'",
                             "ns = '2'",
                             "ns = '0'",
                             "ns = '-5'",
                             "ns = '9223372036854775807'",
                             "ns = '9223372036854775808'",
                             "ns = 7",
                             "ns = 1.5",
                             "ns = x'31'",
                             "ns = x'00'",
                             "ns = '1' || char(0) || '2'",
                             "ns = cast('1' AS BLOB)",
                             "checksum = checksum + 1",
                             "lost = 0.25",
                             "lost = 'x'",
                             "lost = -1.0",
                             "lost = 1e999",
                             "disturbed = 1",
                             "disturbed = 0.5",
                             "checksum = 0",
                             "checksum = 'x'",
                             "checksum = x'00'",
                             "checksum = 1e300",
                             "key = 'b'"}) {
    INFO(change);
    cache.store("a", {{1}});
    tamper(path, fmt::format("UPDATE samples SET {} WHERE key = 'a'", change));
    CHECK_FALSE(cache.find("a"));
    CHECK_FALSE(cache.find("b"));
    cache.store("a", {{3}});
    CHECK(cache.find("a") == Samples{{3}});
    tamper(path, "DELETE FROM samples WHERE key <> 'a'");
  }
}

TEST_CASE("a row of another key is not this key's, nor are samples out of range") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  ProfileCache cache(path);
  cache.store("a", {{5}});
  tamper(path, "INSERT INTO samples SELECT 'b', ns, lost, disturbed, checksum FROM samples");
  CHECK_FALSE(cache.find("b"));
  for (const Nanoseconds sample :
       {int64_t{-5}, int64_t{0}, kLongestSample + 1, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    INFO(sample);
    cache.store("c", {{1, sample, 2}});
    CHECK_FALSE(cache.find("c"));
  }
  cache.store("c", {{0, kLongestSample}});
  CHECK_FALSE(cache.find("c"));
  CHECK(cache.find("c", 0) == Samples{{0, kLongestSample}});
}

TEST_CASE("a file of the schema before is set aside, and one whose tables are not ours") {
  const TempFolder folder;
  const std::string path = folder.file("profile.db");
  const std::string ours = "key TEXT PRIMARY KEY NOT NULL, ns TEXT NOT NULL, ";
  const auto made = [&](const std::string& sql, int schema) {
    fs::remove(path);
    tamper(path,
           sql + fmt::format("; PRAGMA application_id=1836017002; PRAGMA user_version={}", schema));
    ProfileCache cache(path);
    CHECK_THAT(cache.take_warning(), Catch::Contains("was renamed to") && Catch::Contains(path));
    CHECK_FALSE(cache.find("a"));
    cache.store("a", {{2}});
    CHECK(cache.find("a") == Samples{{2}});
  };
  made(
      "CREATE TABLE samples(key TEXT PRIMARY KEY, ns TEXT NOT NULL) WITHOUT ROWID;"
      "INSERT INTO samples VALUES('a', '1')",
      1);
  made(
      "CREATE TABLE samples(key TEXT PRIMARY KEY NOT NULL, ns TEXT NOT NULL, checksum INTEGER NOT "
      "NULL) WITHOUT ROWID; INSERT INTO samples VALUES('a', '1', 0)",
      2);
  // A table that takes NULL for a key; a view that never ends; a trigger.
  made(
      "CREATE TABLE samples(key, ns, lost, disturbed, checksum); INSERT INTO samples VALUES(NULL, "
      "NULL, NULL, NULL, NULL)",
      3);
  made(
      "CREATE VIEW samples AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
      "SELECT n AS key, n AS ns, n AS lost, n AS disturbed, n AS checksum FROM r WHERE n < 0",
      3);
  {
    fs::remove(path);
    ProfileCache(path).store("a", {{1}});
  }
  tamper(path, "CREATE TRIGGER t AFTER INSERT ON samples BEGIN DELETE FROM samples; END");
  ProfileCache cache(path);
  CHECK_THAT(cache.take_warning(), Catch::Contains("was renamed to"));
}

TEST_CASE("a path that cannot be written is the user's error, with the path") {
  const TempFolder folder;
  write_text(folder.file("plain"), "text");
  CHECK_THROWS_AS(ProfileCache(folder.file("plain/profile.db")), UserError);
  CHECK_THROWS_WITH(ProfileCache(folder.file("plain/profile.db")),
                    Catch::Contains("plain/profile.db"));
  CHECK_THROWS_AS(ProfileCache("/proc/moebench/profile.db"), UserError);
  fs::create_directory(folder.file("folder.db"));
  CHECK_THROWS_WITH(ProfileCache(folder.file("folder.db")), Catch::Contains("folder.db"));
}

TEST_CASE("a lock that is a link is refused, and nothing is made where it leads") {
  const TempFolder folder;
  fs::create_symlink(folder.file("victim"), folder.file("profile.db.lock"));
  CHECK_THROWS_WITH(ProfileCache(folder.file("profile.db")), Catch::Contains("profile.db.lock"));
  CHECK_FALSE(fs::exists(folder.file("victim")));
}

TEST_CASE("the median is the middle sample, of an even number the lower middle one") {
  CHECK(median({5}) == 5);
  CHECK(median({9, 1, 5}) == 5);
  CHECK(median({4, 1, 3, 2}) == 2);
  CHECK(median({7, 7, 1, 9, 9, 9}) == 7);
}

}  // namespace
}  // namespace moe
