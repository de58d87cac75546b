// Functions of core that keep simulations and run them side by side (scripts/moe/run).
#include <cstdio>
#include <filesystem>
#include <set>
#include <stdexcept>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/files.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "bindings/sweep/simulation_cache.h"
#include "bindings/sweep/workers.h"
#include "engine/base/stop.h"

namespace moe::lua {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWorkersType = "workers";

/// A number that changes with each build of this program and with each change of its Lua library.
uint64_t program_hash(const std::string& scripts_dir) {
  std::set<fs::path> files = {"/proc/self/exe"};
  for (const auto& file : fs::recursive_directory_iterator(scripts_dir + "/moe")) {
    if (file.is_regular_file()) files.insert(file.path());
  }
  uint64_t hash = text_hash("");
  for (const fs::path& file : files) {
    hash = text_hash(fs::relative(file, scripts_dir).string(), hash);
    hash = text_hash(read_file(file), hash);
  }
  return hash;
}

/// (parts, code): the key of the simulation that these parts determine, together with the program
/// and, if code is true, with the texts of the recipe and its modules. parts: any value; functions
/// and userdata in it count as null.
int simulation_key(lua_State* L) {
  Host& host = Host::of(L);
  host.end_loading();  // as before a plan, which there may be none of if all are found
  const auto program =
      host.kept<uint64_t>("program hash", [&] { return program_hash(host.options().scripts_dir); });
  std::string text = json_text(to_json(L, 1, true), -1);
  text += fmt::format("{:016x}", *program);
  if (lua_toboolean(L, 2) != 0) text += fmt::format("{:016x}", host.code_hash());
  // Two hashes with different beginnings: with one of 64 bits, two of a billion simulations would
  // share a key with a probability of 3%.
  const std::string key =
      fmt::format("{:016x}{:016x}", text_hash(text), text_hash(text, text_hash("second")));
  push_text(L, key);
  return 1;
}

/// The cache of this process; in memory once its file could not be used.
struct Kept {
  std::unique_ptr<SimulationCache> cache;

  /// Goes on in memory, which is said: a cache that fails must not end a run.
  void give_up(const std::string& why) {
    std::fprintf(stderr, "moebench: simulations are not kept beyond this run: %s\n", why.c_str());
    cache = std::make_unique<SimulationCache>("");
  }
  /// Calls use(cache), again with a cache in memory if the file fails.
  template <class Use>
  void with(const Use& use) {
    try {
      use(*cache);
    } catch (const Interrupted&) {
      throw;
    } catch (const RunError& error) {
      give_up(error.what());
      use(*cache);
    }
  }
};

/// Returns this process's cache. In a job of several processes, where all processes must do the
/// same, there is none: the result is null.
std::shared_ptr<Kept> kept_of(lua_State* L) {
  Host& host = Host::of(L);
  if (host.options().processes != nullptr) return nullptr;
  return host.kept<Kept>("simulations", [&] {
    Kept kept;
    try {
      kept.cache = std::make_unique<SimulationCache>(simulations_beside(host.options().cache));
      const std::string warning = kept.cache->take_warning();
      if (!warning.empty()) std::fprintf(stderr, "moebench: %s\n", warning.c_str());
    } catch (const Interrupted&) {
      throw;
    } catch (const std::runtime_error& error) {
      kept.give_up(error.what());
    }
    return kept;
  });
}

/// (key) -> the outcome and the trace that were stored under the key, or nothing
int find_simulation(lua_State* L) {
  const std::string key = text_argument(L, 1);
  std::optional<Simulation> found;
  if (const auto kept = kept_of(L)) {
    kept->with([&](SimulationCache& cache) { found = cache.find(key); });
  }
  if (!found) return 0;
  push_text(L, found->outcome);
  push_text(L, found->trace);
  return 2;
}

/// (key, outcome, trace): stores a simulation
int store_simulation(lua_State* L) {
  const std::string key = text_argument(L, 1);
  const Simulation simulation = {text_argument(L, 2), text_argument(L, 3)};
  if (const auto kept = kept_of(L)) {
    kept->with([&](SimulationCache& cache) { cache.store(key, simulation); });
  }
  return 0;
}

/// () -> how many lines were printed and how many files that are not the library's were asked for
int touched(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(Host::of(L).printed() + Files::reads()));
  return 1;
}

/// (count, function) -> child processes that call the function with texts and return its texts
int make_workers(lua_State* L) {
  const auto count = static_cast<int64_t>(luaL_checknumber(L, 1));
  lua_settop(L, 2);
  auto workers = std::make_unique<Workers>(L, count);
  push_userdata<std::unique_ptr<Workers>>(L, kWorkersType, std::move(workers));
  return 1;
}

Workers& check_workers(lua_State* L) {
  return *check_userdata<std::unique_ptr<Workers>>(L, 1, kWorkersType);
}

/// workers:ask(number from 1, text)
int ask(lua_State* L) {
  check_workers(L).ask(static_cast<size_t>(luaL_checknumber(L, 2)) - 1, text_argument(L, 3));
  return 0;
}

/// workers:next() -> the number of a child and its answer; nothing when a stop was requested
int next_answer(lua_State* L) {
  const auto answer = check_workers(L).next();
  if (!answer) return 0;
  lua_pushnumber(L, static_cast<double>(answer->child + 1));
  push_text(L, answer->text);
  return 2;
}

/// workers:count() -> how many children were started
int count_workers(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_workers(L).size()));
  return 1;
}

/// workers:close(): ends the children
int close_workers(lua_State* L) {
  check_userdata<std::unique_ptr<Workers>>(L, 1, kWorkersType).reset();
  return 0;
}

}  // namespace

void open_simulations(lua_State* L) {
  static constexpr luaL_Reg kMethods[] = {{"ask", core_function<ask>},
                                          {"close", core_function<close_workers>},
                                          {"count", core_function<count_workers>},
                                          {"next", core_function<next_answer>},
                                          {nullptr, nullptr}};
  new_inner_type<std::unique_ptr<Workers>>(L, kWorkersType, kMethods);
  static constexpr luaL_Reg kFunctions[] = {{"find_simulation", core_function<find_simulation>},
                                            {"simulation_key", core_function<simulation_key>},
                                            {"store_simulation", core_function<store_simulation>},
                                            {"touched", core_function<touched>},
                                            {"workers", core_function<make_workers>},
                                            {nullptr, nullptr}};
  luaL_setfuncs(L, kFunctions, 0);
}

}  // namespace moe::lua
