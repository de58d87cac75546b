// core.collectives: simulates collectives that share the links of a cluster. core.op_time: the time
// of one op. core.op_table: reads measured times of ops.
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/plan_spec.h"
#include "engine/base/limits.h"
#include "engine/cost/op_table.h"
#include "engine/cost/op_time.h"
#include "engine/network/contention.h"

namespace moe::lua {
namespace {

using nlohmann::json;

constexpr double kMs = 1e6;  // in ns

// Returns the matrix whose table of N rows is on top of the stack. It is read directly, since it is
// too large to be converted to JSON.
std::vector<double> matrix_on_top(lua_State* L) {
  std::vector<double> bytes;
  const int num_rows = static_cast<int>(lua_objlen(L, -1));
  for (int i = 1; i <= num_rows; ++i) {
    lua_rawgeti(L, -1, i);
    const int num_columns = static_cast<int>(lua_objlen(L, -1));
    for (int j = 1; j <= num_columns; ++j) {
      lua_rawgeti(L, -1, j);
      bytes.push_back(lua_tonumber(L, -1));
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  return bytes;
}

// Returns collective i, whose fields are `op`. Its matrix of bytes, if it has one, is entry i of
// the table at index 2 of the stack.
NetworkOp op_of(lua_State* L, const Fields& op, int i) {
  NetworkOp result;
  if (op.text("kind") == "all_to_all") {
    AllToAll a2a;
    a2a.bytes_per_pair = op.number("bytes_per_pair", 0);
    a2a.channels = op.integer("channels", a2a.channels);
    if (op.text("algorithm") == "pairwise") a2a.algorithm = AllToAllAlgorithm::kPairwise;
    lua_rawgeti(L, 2, i);
    if (lua_istable(L, -1)) a2a.bytes = matrix_on_top(L);
    lua_pop(L, 1);
    result.what = std::move(a2a);
  } else {
    result.what =
        AllReduce{.bytes = op.number("bytes"),
                  .rings = op.integer("rings", 0),
                  .algorithm = value_named<AllReduceAlgorithm>("algorithm", op.text("algorithm"))};
  }
  result.start_ns = op.time("start_ms", kMs, 0);
  result.priority = op.integer("priority", 0);
  if (op.has("after")) {
    for (const json& before : op.value().at("after")) {
      result.after.push_back(before.get<size_t>() - 1);
    }
  }
  if (op.has("rank_start_ms")) {
    for (const json& ms : op.value().at("rank_start_ms")) {
      result.rank_start_ns.push_back(
          checked_ns(ms.get<double>() * kMs, [] { return "a number of rank_start_ms"; }));
    }
  }
  return result;
}

json times_json(const NetworkTimes& times) {
  json ranks = json::array();
  for (const Nanoseconds ns : times.rank_end_ns) ranks.push_back(to_ms(ns));
  return {
      {"begin_ms", to_ms(times.begin_ns)}, {"end_ms", to_ms(times.end_ns)}, {"rank_end_ms", ranks}};
}

json use_json(const NetworkRun& run) {
  json all = json::array();
  for (const LinkUse& use : run.use) {
    const LinkName& link = run.links[use.link];
    all.push_back({{"link", name_of(link.kind)},
                   {"node", link.node + 1},
                   {"index", link.index + 1},
                   {"begin_ms", use.begin_ns / 1e6},
                   {"end_ms", use.end_ns / 1e6},
                   {"bytes_per_s", use.bytes_per_s}});
  }
  return all;
}

// (fields of moe.collectives, { [op] = matrix of bytes }) -> { ops = { { begin_ms, end_ms,
// rank_end_ms }, ... }, nodes_alike, link_use (if requested) }; nodes_alike: whether all nodes have
// the same transfers, so that only one node was simulated
int collectives(lua_State* L) {
  luaL_checktype(L, 2, LUA_TTABLE);
  Host::of(L).end_loading();
  const json values = to_json(L, 1);
  const Fields spec(values, "collectives");
  NetworkOptions options;
  options.share = value_named<Share>("sharing rule", spec.text("share"));
  options.efficiency = spec.number("efficiency");
  options.keep_use = spec.flag("link_use", false);
  std::vector<NetworkOp> ops;
  for (const json& op : values.at("ops")) {
    const int i = static_cast<int>(ops.size()) + 1;
    ops.push_back(op_of(L, Fields(op, fmt::format("ops[{}]", i)), i));
  }
  const NetworkRun run = run_collectives(cluster_of(spec.at("cluster")), ops, options);
  json times = json::array();
  for (const NetworkTimes& op : run.ops) times.push_back(times_json(op));
  json result = {{"ops", times}, {"nodes_alike", run.nodes_alike}};
  if (options.keep_use) result["link_use"] = use_json(run);
  push_json(L, result);
  return 1;
}

// (a user's CSV of op times) -> its path, the names of the ops in it
int op_table(lua_State* L) {
  const std::string path = Host::of(L).files().readable(text_argument(L, 1)).string();
  std::set<std::string> ops;
  for (const auto& grid : OpTables::open(path)->grids()) ops.insert(grid->op().name);
  lua_pushstring(L, path.c_str());
  push_json(L, ops);
  return 2;
}

// ({ cluster, op, dtype, sizes, load, collectives_from }) -> the fields of moe.OpTime
int op_time(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields spec(values, "moe.op_time");
  const OpTimeAnswer time =
      op_time(cluster_of(spec.at("cluster")),
              {spec.text("op"), spec.text("dtype"), values.at("sizes").get<std::vector<double>>(),
               spec.flag("in_step", false), spec.text("load"), tables_of(spec.at("cluster")),
               spec.text("collectives_from", "")});
  push_json(L, {{"ms", time.ns / kMs},
                {"lo", time.lo_ns / kMs},
                {"hi", time.hi_ns / kMs},
                {"measured", time.measured},
                {"source", time.source},
                {"extrapolated", time.extrapolated}});
  return 1;
}

}  // namespace

void open_network(lua_State* L) {
  set_functions(L, {{"collectives", core_function<with_effect<collectives>>},
                    {"op_table", core_function<op_table>},
                    {"op_time", core_function<op_time>}});
}

}  // namespace moe::lua
