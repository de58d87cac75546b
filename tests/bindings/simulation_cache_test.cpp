#include "bindings/sweep/simulation_cache.h"

#include <sqlite3.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace moe::lua {
namespace {

namespace fs = std::filesystem;

/// A cache file in a folder that goes with the test.
class TempCache {
 public:
  std::string path() const { return folder_.path("s.sqlite"); }
  void change(const std::string& sql) const {
    sqlite3* db = nullptr;
    REQUIRE(sqlite3_open(path().c_str(), &db) == SQLITE_OK);
    CHECK(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(db);
  }

 private:
  test::Folder folder_;
};

TEST_CASE("a simulation is found by a later process, and only under its key") {
  const TempCache temp;
  const Simulation stored{R"({"iteration_ms": 3})", std::string("a\0trace", 7)};
  SimulationCache(temp.path()).store("k1", stored);
  SimulationCache later(temp.path());
  CHECK(later.find("k1") == stored);
  CHECK_FALSE(later.find("k2"));
  later.store("k1", {"{}", ""});
  CHECK(SimulationCache(temp.path()).find("k1") == Simulation{"{}", ""});
}

TEST_CASE("a damaged simulation is not found") {
  const TempCache temp;
  for (const char* damage : {"outcome = '{}'", "trace = 'x'", "key = 'b'", "checksum = 1"}) {
    INFO(damage);
    SimulationCache(temp.path()).store("a", {"{\"x\": 1}", "t"});
    temp.change(std::string("UPDATE simulations SET ") + damage);
    SimulationCache cache(temp.path());
    CHECK_FALSE(cache.find("a"));
    CHECK_FALSE(cache.find("b"));
    temp.change("DELETE FROM simulations");
  }
}

TEST_CASE("a destroyed page costs nothing at the opening, and is an error when it is read") {
  const TempCache temp;
  { SimulationCache(temp.path()).store("a", {std::string(100'000, 'x'), ""}); }
  std::fstream file(temp.path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(8 * 4096, '\x5a');
  file.close();
  SimulationCache cache(temp.path());
  CHECK(cache.take_warning().empty());
  CHECK_THROWS_WITH(cache.find("a"), Catch::EndsWith("; remove the file"));
}

TEST_CASE("of a file that has grown too large the older half is removed") {
  const TempCache temp;
  const std::string large(20'000, 'x');
  {
    SimulationCache cache(temp.path());
    for (int i = 0; i < 10; ++i) cache.store(std::to_string(i), {large, ""});
  }
  SimulationCache kept(temp.path(), 1'000'000);
  CHECK(kept.find("0"));
  SimulationCache cut(temp.path(), 100'000);
  for (int i = 0; i < 10; ++i) CHECK(cut.find(std::to_string(i)).has_value() == (i >= 5));
}

TEST_CASE("the cache of simulations lies beside the profile cache") {
  CHECK(simulations_beside("/a/profile.sqlite") == "/a/profile.simulations.sqlite");
  CHECK(simulations_beside(":memory:").empty());
  CHECK(simulations_beside("").empty());
}

}  // namespace
}  // namespace moe::lua
