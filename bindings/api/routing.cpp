// Functions of core for routing models: making them from names and from recorded traces, asking for
// their choices, and writing traces.
#include "bindings/routing.h"

#include <limits>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/files.h"
#include "bindings/host/host.h"
#include "bindings/host/userdata.h"
#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/routing/trace.h"
#include "engine/routing/workload.h"

namespace moe::lua {
namespace {

// core.workload(name, options, seed) -> routing model, its full name
int make_workload(lua_State* L) {
  const nlohmann::json options = to_json(L, 2);
  WorkloadOptions given;
  for (const auto& [name, value] : options.items()) given[name] = value.get<double>();
  push_routing(
      L, workload(luaL_checkstring(L, 1), given, static_cast<uint64_t>(luaL_checknumber(L, 3))));
  return 2;
}

/// A query { step, layer from 1, ranks, tokens, experts, k, ep }.
RoutingQuery query_of(const Fields& fields) {
  return {.step = fields.integer("step") - 1,
          .layer = fields.integer("layer") - 1,
          .ranks = fields.integer("ranks"),
          .tokens = fields.integer("tokens"),
          .experts = fields.integer("experts"),
          .k = fields.integer("k"),
          .ep = fields.integer("ep", 0)};
}

// core.loads(routing model, query) -> number of choices, indexed by [source rank][expert]
int loads(lua_State* L) {
  Host::of(L).end_loading();
  const RoutingHandle& handle = check_userdata<RoutingHandle>(L, 1, kRoutingType);
  const nlohmann::json values = to_json(L, 2);
  const RoutingQuery query = query_of(Fields(values, "loads"));
  const Host::EngineCall call(Host::of(L));
  const ExpertCounts loads = handle.routing->loads(query);
  lua_createtable(L, static_cast<int>(loads.sources), 0);
  for (int64_t s = 0; s < loads.sources; ++s) {
    push_list(L, loads.experts, [&](int64_t e) { return loads.at(s, e); });
    lua_rawseti(L, -2, static_cast<int>(s + 1));
  }
  return 1;
}

// core.choices(routing model, query with rank from 1) -> the experts, from 0, that the tokens of
// the rank choose, k for each token; -1: none
int choices(lua_State* L) {
  const RoutingHandle& handle = check_userdata<RoutingHandle>(L, 1, kRoutingType);
  const nlohmann::json values = to_json(L, 2);
  const Fields fields(values, "choices");
  const RoutingQuery query = query_of(fields);
  const Host::EngineCall call(Host::of(L));
  std::vector<int32_t> choices(static_cast<size_t>(query.tokens * query.k));
  handle.routing->route(query, fields.integer("rank") - 1, choices);
  return push_list(L, std::ssize(choices), [&](int64_t i) { return choices[index(i)]; });
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// core.trace_routing(file, cycle) -> routing model that replays the trace, its name
int trace_routing(lua_State* L) {
  const std::string path = text_argument(L, 1);
  const Host::EngineCall call(Host::of(L));
  const ReadTrace read = trace_in(L, path);
  const bool cycle = lua_toboolean(L, 2) != 0;
  push_routing(L, routing_of(read.trace,
                             fmt::format("trace({}, {:08x}{})", file_name(path), read.hash >> 32,
                                         cycle ? ", cycle" : ""),
                             cycle));
  return 2;
}

// core.trace_info(file) -> the sizes of the trace
int trace_info(lua_State* L) {
  const Host::EngineCall call(Host::of(L));
  const std::shared_ptr<const Trace> t = trace_in(L, text_argument(L, 1)).trace;
  nlohmann::json blocks = nlohmann::json::array();
  for (const int32_t block : t->blocks) blocks.push_back(block + 1);
  push_json(L, {{"steps", t->steps},
                {"layers", t->layers},
                {"ranks", t->ranks},
                {"tokens", t->tokens},
                {"experts", t->experts},
                {"k", t->k},
                {"blocks", blocks},
                {"choices", !t->choices.empty()}});
  return 1;
}

/// Returns the numbers, whole ones from 0, of the lists in the list at index 2: `each` of every
/// list, `fill` where a list has fewer.
template <class T>
std::vector<T> numbers_of(lua_State* L, size_t each, T fill) {
  const size_t lists = lua_objlen(L, 2);
  std::vector<T> all(lists * each, fill);
  for (size_t i = 0; i < lists; ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i + 1));
    const size_t n = lua_objlen(L, -1);
    MOE_CHECK(n <= each, "list {} of a trace has {} numbers, but must have at most {}", i + 1, n,
              each);
    for (size_t j = 0; j < n; ++j) {
      lua_rawgeti(L, -1, static_cast<int>(j + 1));
      const lua_Number value = lua_tonumber(L, -1);
      MOE_CHECK(value >= 0 && value <= std::numeric_limits<T>::max(),
                "number {} in list {} of a trace is {}, but must be from 0 to {}", j + 1, i + 1,
                value, std::numeric_limits<T>::max());
      all[i * each + j] = static_cast<T>(value);
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  return all;
}

// core.trace_write({ to, source, steps, layers, ranks, tokens, experts, k, blocks, counted },
// lists) -> path of the trace, a file of the output folder. lists: one for each step, layer and
// rank, in order: the experts, from 0, that its tokens choose, k for each token, where tokens after
// the last have none; or, if counted, how many choices each expert gets. Errors begin with source.
// Choices that are far fewer than the trace would have are refused before it takes memory.
int trace_write(lua_State* L) {
  const nlohmann::json values = to_json(L, 1);
  const Fields f(values, "trace");
  luaL_checktype(L, 2, LUA_TTABLE);
  const Host::EngineCall call(Host::of(L));
  const std::string source = f.text("source");
  const bool counted = f.flag("counted", false);
  Trace t = {.steps = f.integer("steps"),
             .layers = f.integer("layers"),
             .ranks = f.integer("ranks"),
             .tokens = f.integer("tokens"),
             .experts = f.integer("experts"),
             .k = f.integer("k"),
             .blocks = values.at("blocks").get<std::vector<int32_t>>()};
  const auto lists = static_cast<int64_t>(lua_objlen(L, 2));
  MOE_CHECK(lists == t.steps * t.layers * t.ranks,
            "{}: the trace has {} lists, but {} steps, {} layers and {} ranks", source, lists,
            t.steps, t.layers, t.ranks);
  if (counted) {
    t.counts = numbers_of<uint32_t>(L, static_cast<size_t>(t.experts), 0);
  } else {
    int64_t known = lists;
    for (int64_t i = 1; i <= lists; ++i) {
      lua_rawgeti(L, 2, static_cast<int>(i));
      known += static_cast<int64_t>(lua_objlen(L, -1));
      lua_pop(L, 1);
    }
    check_room(t, known, source);
    t.choices = numbers_of(L, static_cast<size_t>(t.tokens * t.k), kNoExpert);
  }
  finish_trace(t, source);
  const std::filesystem::path to = Host::of(L).files().writable(f.text("to"));
  write_file(to, trace_bytes(t));
  push_text(L, to.string());
  return 1;
}

}  // namespace

std::shared_ptr<const RoutingModel> routing_in(lua_State* L, int index) {
  lua_getfield(L, index, "routing");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return nullptr;
  }
  lua_getfield(L, -1, "handle");
  std::shared_ptr<const RoutingModel> routing =
      check_userdata<RoutingHandle>(L, lua_gettop(L), kRoutingType).routing;
  lua_pop(L, 2);
  return routing;
}

ReadTrace trace_in(lua_State* L, const std::string& path) {
  const std::string bytes = Host::of(L).files().read(path);
  return {std::make_shared<const Trace>(read_trace(bytes, file_name(path))), text_hash(bytes)};
}

void push_routing(lua_State* L, RoutingModel routing) {
  const std::string name = routing.name;
  push_kept<RoutingHandle>(L, kRoutingType,
                           std::make_shared<const RoutingModel>(std::move(routing)));
  push_text(L, name);
}

void open_routing(lua_State* L) {
  set_functions(L, {{"choices", core_function<choices>},
                    {"loads", core_function<loads>},
                    {"trace_info", core_function<trace_info>},
                    {"trace_routing", core_function<trace_routing>},
                    {"trace_write", core_function<trace_write>},
                    {"workload", core_function<make_workload>}});
  new_inner_type<RoutingHandle>(L, kRoutingType);
}

}  // namespace moe::lua
