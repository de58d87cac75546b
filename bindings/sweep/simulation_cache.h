// The cache of simulations: what a simulation found, as JSON text, under a key that names all that
// it depends on (scripts/moe/run/simulations.lua makes the keys). Stored in a CacheFile beside the
// profile cache. A row whose checksum is wrong is ignored, so that the simulation runs again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/cost/cache_file.h"

namespace moe::lua {

/// What a simulation found: `outcome` is JSON text; `trace` is the text of its trace file, or "".
struct Simulation {
  std::string outcome, trace;
  bool operator==(const Simulation&) const = default;
};

class SimulationCache {
 public:
  /// The file grows up to this many bytes. When a larger one is opened, the older half of its rows
  /// is removed.
  static constexpr int64_t kMostBytes = int64_t{1} << 30;

  /// Opens or creates the file, as CacheFile does.
  explicit SimulationCache(const std::string& path, int64_t most_bytes = kMostBytes);

  std::optional<Simulation> find(const std::string& key);
  /// Stores the simulation in place of an earlier one of this key.
  void store(const std::string& key, const Simulation& simulation);
  /// Adds the simulations of another file that this one lacks; returns how many these were. Throws
  /// UserError if there is no such file.
  int64_t add(const std::string& path);
  std::string take_warning() { return file_.take_warning(); }

 private:
  CacheFile file_;
  CacheFile::Statement find_, store_;
};

/// Returns the path of the cache of simulations that belongs to the profile cache at `path`; ""
/// (in memory) if that is in memory too.
std::string simulations_beside(const std::string& path);

}  // namespace moe::lua
