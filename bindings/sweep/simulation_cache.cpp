#include "bindings/sweep/simulation_cache.h"

#include <sqlite3.h>

#include <filesystem>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"

namespace moe::lua {
namespace {

constexpr CacheFile::Layout kLayout = {
    .what = "simulation cache",
    .application_id = 0x6d6f6573,  // "moes" in ASCII
    .schema = 1,
    .table =
        "CREATE TABLE simulations(number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, outcome "
        "TEXT NOT NULL, trace TEXT NOT NULL, checksum INTEGER NOT NULL)",
};

int64_t checksum(const std::string& key, std::string_view outcome, std::string_view trace) {
  uint64_t sum = fnv1a(kFnvStart, key.c_str(), key.size() + 1);
  sum = fnv1a(sum, outcome.data(), outcome.size());
  sum = fnv1a(sum, "", 1);
  return static_cast<int64_t>(fnv1a(sum, trace.data(), trace.size()));
}

int64_t number_of(CacheFile& file, const char* query) {
  int64_t number = 0;
  file.execute(file.prepare(query), {},
               [&](sqlite3_stmt* row) { number = sqlite3_column_int64(row, 0); });
  return number;
}

}  // namespace

SimulationCache::SimulationCache(const std::string& path, int64_t most_bytes)
    : file_(path, kLayout) {
  const int64_t page = number_of(file_, "PRAGMA page_size");
  const auto used = [&] {
    return page *
           (number_of(file_, "PRAGMA page_count") - number_of(file_, "PRAGMA freelist_count"));
  };
  if (used() > most_bytes) {
    const int64_t rows = number_of(file_, "SELECT count(*) FROM simulations");
    file_.execute(file_.prepare("DELETE FROM simulations WHERE number IN (SELECT number FROM "
                                "simulations ORDER BY number LIMIT ?)"),
                  {(rows + 1) / 2});
  }
  find_ = file_.prepare("SELECT outcome, trace, checksum FROM simulations WHERE key = ?");
  store_ = file_.prepare(
      "INSERT OR REPLACE INTO simulations(key, outcome, trace, checksum) VALUES(?, ?, ?, ?)");
}

std::optional<Simulation> SimulationCache::find(const std::string& key) {
  std::optional<Simulation> found;
  const auto take = [&](sqlite3_stmt* row) {
    const auto outcome = text_column(row, 0), trace = text_column(row, 1);
    if (!outcome || !trace) return;
    if (sqlite3_column_int64(row, 2) != checksum(key, *outcome, *trace)) return;
    found = {std::string(*outcome), std::string(*trace)};
  };
  file_.execute(find_, {key}, take);
  return found;
}

void SimulationCache::store(const std::string& key, const Simulation& simulation) {
  file_.execute(store_, {key, simulation.outcome, simulation.trace,
                         checksum(key, simulation.outcome, simulation.trace)});
}

int64_t SimulationCache::add(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw user_error("{}: there is no such file; give caches that --cache of a run named", path);
  }
  CacheFile from(path, kLayout);
  const auto next = from.prepare(
      "SELECT outcome, trace, checksum, key, number FROM simulations WHERE number > ? ORDER BY "
      "number LIMIT 1");
  int64_t number = -1, added = 0;
  for (int64_t before = -2; before != number;) {
    before = number;
    from.execute(next, {number}, [&](sqlite3_stmt* row) {
      number = sqlite3_column_int64(row, 4);
      const auto outcome = text_column(row, 0), trace = text_column(row, 1),
                 key = text_column(row, 3);
      if (!outcome || !trace || !key) return;
      const std::string name(*key);
      if (sqlite3_column_int64(row, 2) != checksum(name, *outcome, *trace) || find(name)) return;
      store(name, {std::string(*outcome), std::string(*trace)});
      ++added;
    });
  }
  return added;
}

std::string simulations_beside(const std::string& path) {
  if (path.empty() || path == ":memory:") return "";
  return std::filesystem::path(path).replace_extension(".simulations.sqlite").string();
}

}  // namespace moe::lua
