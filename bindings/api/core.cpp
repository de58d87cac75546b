// core: constants, files, JSON, progress, the machine, and the engine's tables. A comment before a
// function gives its arguments and results in Lua.
#include <fmt/chrono.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <set>

#include "bindings/front/front.h"
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/earlier.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/machine.h"
#include "bindings/host/userdata.h"
#include "bindings/tables.h"
#include "engine/base/names.h"
#include "engine/base/utf8.h"
#include "engine/exec/data.h"
#include "engine/exec/device/executor.h"
#include "engine/exec/results/machine_state.h"
#include "engine/run.h"

namespace moe::lua {
namespace {

int json_encode(lua_State* L) {
  push_text(L, json_text(to_json(L, 1), static_cast<int>(luaL_optinteger(L, 2, -1))));
  return 1;
}

int json_decode(lua_State* L) {
  push_json(L, parse_json(text_argument(L, 1), luaL_optstring(L, 2, "json")));
  return 1;
}

int array(lua_State* L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  mark_array(L, 1);
  return 1;
}

// (): a point of a sweep is made, for which loading may take its time anew
int load_on(lua_State* L) {
  Host::of(L).load_on();
  return 0;
}

// (): the recipe begins what may take long
int end_loading(lua_State* L) {
  Host::of(L).end_loading();
  return 0;
}

// (name, text): writes the file into the output folder; returns its path. When the function
// returns, the file exists for all processes.
int write_output(lua_State* L) {
  Host& host = Host::of(L);
  host.note_effect();
  const std::string name = text_argument(L, 1);
  const nlohmann::json written = broadcast_from_root(host, "write " + name, [&] {
    const auto path = host.files().writable(name);
    write_file(path, text_argument(L, 2));
    if (name == "results.json" && host.options().json) host.keep_results(text_argument(L, 2));
    return path.string();
  });
  push_text(L, written.get_ref<const std::string&>());
  return 1;
}

// () -> the name of the folder to which the output folder's results were moved, or "": keep_earlier
int keep_earlier_results(lua_State* L) {
  const Host& host = Host::of(L);
  push_json(L, broadcast_from_root(host, "earlier results",
                                   [&] { return nlohmann::json(keep_earlier(host.files())); }));
  return 1;
}

int read_readable_file(lua_State* L) {
  push_text(L, Host::of(L).files().read(text_argument(L, 1)));
  return 1;
}

// (name, text, anew): appends the text to the file in the output folder; with anew = true the file
// is emptied first. On other ranks than 0 it does nothing.
int append_output(lua_State* L) {
  const Host& host = Host::of(L);
  if (!is_root(host)) return 0;
  append_file(host.files().writable(text_argument(L, 1)), text_argument(L, 2),
              lua_toboolean(L, 3) != 0);
  return 0;
}

std::optional<double> seconds_argument(lua_State* L, int index) {
  if (lua_isnumber(L, index) == 0) return std::nullopt;
  return lua_tonumber(L, index);
}

// (what, expected_s or nil, rest_s or nil): sets the status line, as Progress::begin does
int status(lua_State* L) {
  Host::of(L).progress().begin(text_argument(L, 1), seconds_argument(L, 2), seconds_argument(L, 3));
  return 0;
}

int row(lua_State* L) {
  Host::of(L).progress().row(text_argument(L, 1));
  return 0;
}

// (f): calls f() and returns nothing. A request to stop does not end the recipe while f runs, so
// that f can write finished results, but at the recipe's next line after it.
int undisturbed(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  {
    const Limits::Hold hold(Host::of(L).limits());
    call(L, 0, 0);
  }
  Host::of(L).check_stop();
  return 0;
}

int warn(lua_State* L) {
  Host& host = Host::of(L);
  if (host.is_silent()) return 0;
  host.note_print();
  host.progress().erase();
  if (is_root(host))
    std::fprintf(stderr, "moebench: %s\n", printable(shortened(text_argument(L, 1))).c_str());
  return 0;
}

int say(lua_State* L) {
  Host& host = Host::of(L);
  if (host.is_silent()) return 0;
  host.note_effect();
  host.note_print();
  host.progress().erase();
  const std::string text = printable(text_argument(L, 1)) + "\n";
  if (!host.print(text)) {
    throw run_error(
        "cannot write to standard output; is the disk full or the reader of the pipe gone?");
  }
  return 0;
}

// (text) -> the position, from 1, of the first byte that is not UTF-8, or nil
int invalid_byte(lua_State* L) {
  const auto at = first_invalid_byte(text_argument(L, 1));
  if (!at) return 0;
  lua_pushinteger(L, static_cast<lua_Integer>(*at + 1));
  return 1;
}

// (text) -> the text with escapes for what would act on a terminal, as \x1b
int printable_text(lua_State* L) {
  push_text(L, printable(text_argument(L, 1)));
  return 1;
}

// (kind, message, traceback or nil) -> an error table of this kind
int failure(lua_State* L) {
  push_failure(L, {text_argument(L, 1), text_argument(L, 2), luaL_optstring(L, 3, "")});
  return 1;
}

// (error) -> its kind, or "" if a recipe made it
int kind_of(lua_State* L) {
  push_text(L, failure_kind(L, 1));
  return 1;
}

int clock(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(steady_ns()) * 1e-9);
  return 1;
}

// () -> the time in UTC, in the form 2025-01-31T12:00:00Z
int now(lua_State* L) {
  push_text(L, fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  return 1;
}

int machine(lua_State* L) {
  push_json(L, machine_json(Host::of(L).options().scripts_dir));
  return 1;
}

// (executor) -> the reason why this machine cannot run the executor, or nil
int executor_missing(lua_State* L) {
  const std::string why = missing(executor_def(luaL_checkstring(L, 1)));
  if (why.empty()) {
    lua_pushnil(L);
  } else {
    push_text(L, why);
  }
  return 1;
}

// () -> the name of the GPU of the executor cuda. Requires: executor_missing "cuda" is nil.
int gpu(lua_State* L) {
  push_text(L, cuda_gpu());
  return 1;
}

int default_corpus(lua_State* L) {
  push_text(L, default_corpus_path(Host::of(L).options().scripts_dir));
  return 1;
}

// (folder of the library, suffix) -> the names of its files with this suffix, without it, in
// alphabetical order
int library_files(lua_State* L) {
  std::set<std::string> names;
  const std::string folder = Host::of(L).options().scripts_dir + "/moe/" + text_argument(L, 1);
  const std::string suffix = text_argument(L, 2);
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == suffix) names.insert(file.path().stem().string());
  }
  push_json(L, names);
  return 1;
}

// (name of a JSON file of the library) -> its value
int library_json(lua_State* L) {
  const std::string path = Host::of(L).options().scripts_dir + "/moe/" + text_argument(L, 1);
  push_json(L, parse_json(read_file(path), path));
  return 1;
}

// (text) -> its hash, as results have that of their recipe
int hash_of_text(lua_State* L) {
  push_text(L, fmt::format("{:016x}", text_hash(text_argument(L, 1))));
  return 1;
}

// (kind) -> the table, one for all calls, which the library does not change
int table(lua_State* L) {
  const std::string kind = text_argument(L, 1);
  luaL_newmetatable(L, "moe.tables");
  lua_getfield(L, -1, kind.c_str());
  if (!lua_isnil(L, -1)) return 1;
  if (kind == "types") {
    push_types(L);
  } else {
    push_json(L, table_json(kind));
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, -4, kind.c_str());
  return 1;
}

int nearest(lua_State* L) {
  std::vector<std::string> names;
  for (size_t i = 1; i <= lua_objlen(L, 2); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i));
    names.push_back(text_argument(L, -1));
    lua_pop(L, 1);
  }
  push_text(L, nearest_name(text_argument(L, 1), names));
  return 1;
}

int caller(lua_State* L) {
  const std::optional<Position> position = Host::of(L).recipe_position(L);
  if (!position) return 0;
  push_text(L, position->source);
  lua_pushinteger(L, position->line);
  return 2;
}

// (source of a Lua chunk) -> the name that messages give the chunk: the source, unchanged, since
// the source of a recipe is the path that the user typed.
int display_name(lua_State* L) {
  luaL_checkstring(L, 1);
  lua_settop(L, 1);
  return 1;
}

void set_text(lua_State* L, const char* key, const std::string& text) {
  push_text(L, text);
  lua_setfield(L, -2, key);
}

void set_arguments(lua_State* L, const HostOptions& options) {
  nlohmann::json args = {{"set", options.set},       {"trust", options.trust},
                         {"cache", options.cache},   {"folders", options.folders},
                         {"device", options.device}, {"precision", options.precision}};
  if (!options.where.empty()) args["where"] = options.where;
  if (!options.names.empty()) args["names"] = options.names;
  if (!options.drawn.empty()) args["drawn"] = options.drawn;
  if (!options.caches.empty()) args["caches"] = options.caches;
  if (!options.points.empty()) args["points"] = options.points;
  if (!options.history.empty()) args["history"] = options.history;
  if (options.temporary) args["temporary"] = true;
  if (!options.executor.empty()) args["executor"] = options.executor;
  if (!options.sensitivity.empty()) args["sensitivity"] = options.sensitivity;
  if (options.ranks) args["ranks"] = *options.ranks;
  if (options.seed) args["seed"] = *options.seed;
  if (options.workers) args["workers"] = *options.workers;
  if (options.max_bytes) args["max_bytes"] = *options.max_bytes;
  if (!options.hidden.empty()) args["hidden"] = options.hidden;
  push_json(L, args);
  lua_setfield(L, -2, "args");
}

void set_recipe(lua_State* L, const HostOptions& options) {
  if (options.recipe.empty()) return;
  const std::filesystem::path path = std::filesystem::absolute(options.recipe);
  set_text(L, "recipe_dir", path.parent_path().string());
  push_json(L, {{"name", options.recipe},
                {"path", path.lexically_normal().string()},
                {"hash", fmt::format("{:016x}", text_hash(recipe_text(options)))}});
  lua_setfield(L, -2, "recipe");
  if (options.recipe_text) set_text(L, "recipe_text", *options.recipe_text);
}

/// Sets those fields of core, the table on top of the stack, that are not functions.
void set_values(lua_State* L, const HostOptions& options) {
  set_text(L, "version", program_version());
  set_text(L, "mode", options.mode);
  set_text(L, "scripts_dir", options.scripts_dir);
  set_text(L, "session", fmt::format("{:x}-{}", steady_ns(), getpid()));
  lua_pushnumber(L, kMostOthers);
  lua_setfield(L, -2, "most_others");
  if (!options.out_dir.empty()) set_text(L, "out_dir", options.out_dir);
  if (options.processes != nullptr) {
    lua_pushinteger(L, options.processes->size());
    lua_setfield(L, -2, "processes");
  }
  push_null(L);
  lua_setfield(L, -2, "null");
  set_arguments(L, options);
  set_recipe(L, options);
}

}  // namespace

int open_core(lua_State* L) {
  lua_newtable(L);
  set_functions(L, {{"append_output", core_function<append_output>},
                    {"array", core_function<array>},
                    {"caller", core_function<caller>},
                    {"clock", core_function<clock>},
                    {"default_corpus", core_function<default_corpus>},
                    {"end_loading", core_function<end_loading>},
                    {"executor_missing", core_function<executor_missing>},
                    {"failure", core_function<failure>},
                    {"gpu", core_function<gpu>},
                    {"invalid_byte", core_function<invalid_byte>},
                    {"display_name", core_function<display_name>},
                    {"json_decode", core_function<json_decode>},
                    {"json_encode", core_function<json_encode>},
                    {"keep_earlier", core_function<keep_earlier_results>},
                    {"kind_of", core_function<kind_of>},
                    {"library_files", core_function<library_files>},
                    {"library_json", core_function<library_json>},
                    {"load_on", core_function<load_on>},
                    {"machine", core_function<machine>},
                    {"nearest", core_function<nearest>},
                    {"now", core_function<now>},
                    {"printable", core_function<printable_text>},
                    {"read_file", core_function<read_readable_file>},
                    {"row", core_function<row>},
                    {"say", core_function<say>},
                    {"status", core_function<status>},
                    {"table", core_function<table>},
                    {"text_hash", core_function<hash_of_text>},
                    {"undisturbed", core_function<undisturbed>},
                    {"warn", core_function<warn>},
                    {"write_output", core_function<write_output>}});
  set_values(L, Host::of(L).options());
  open_plan(L);
  open_handles(L);
  open_builder(L);
  open_gate(L);
  open_placement(L);
  open_calibrate(L);
  open_network(L);
  open_dispatch(L);
  open_lina(L);
  open_pipeline(L);
  open_pipemoe(L);
  open_prophet(L);
  open_routing(L);
  open_simulations(L);
  open_front(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_insert(L, -2);
  lua_setfield(L, -2, "moe.core");
  return 0;
}

int prepare_main(lua_State* L) {
  Host& host = Host::of(L);
  const bool has_recipe = !host.options().recipe.empty();
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moe");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "_main");
  lua_pushnil(L);  // no recipe may call it
  lua_setfield(L, -3, "_main");
  push_text(L, host.options().mode);
  if (has_recipe) {
    host.push_recipe();
  } else if (lua_objlen(L, 1) > 0) {
    lua_pushvalue(L, 1);
  } else {
    lua_pushnil(L);
  }
  return 3;
}

}  // namespace moe::lua
