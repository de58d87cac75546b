// core.check_exchange: refuses sizes of an exchange. core.dispatch: rows and bytes of a dispatcher.
// core.dispatch_rows and core.dispatch_us: expected rows, and the time of a call.
#include "bindings/dispatch.h"
#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "engine/dispatch/law.h"
#include "engine/exec/dispatch/moved.h"

namespace moe::lua {
namespace {

using dispatch::Way;
using nlohmann::json;

constexpr int64_t kMostExecuted = 16;  // ranks, a thread each
constexpr int64_t kMostShown = 64;     // ranks of a result with a number per pair of ranks

// Pushes entry i of the table on top, which must be a table; `path`: of that entry.
int push_entry(lua_State* L, int i, const std::string& path) {
  lua_rawgeti(L, -1, i);
  if (!lua_istable(L, -1)) throw user_error("{}: is missing; give a list", path);
  return static_cast<int>(lua_objlen(L, -1));
}

// Returns the choices in the table at index 2: [rank][token] = { expert, ... }, from 1; 0: none. It
// is read directly, since it is too large to be converted to JSON.
dispatch::Choices choices_of(lua_State* L, const dispatch::Exchange& exchange) {
  dispatch::Choices choices{{0}, {}};
  lua_pushvalue(L, 2);
  if (static_cast<int64_t>(lua_objlen(L, -1)) != exchange.ranks) {
    throw user_error("choices: has {} lists; give one per rank, {}", lua_objlen(L, -1),
                     exchange.ranks);
  }
  for (int rank = 1; rank <= exchange.ranks; ++rank) {
    const int tokens = push_entry(L, rank, fmt::format("choices[{}]", rank));
    for (int token = 1; token <= tokens; ++token) {
      const int k = push_entry(L, token, fmt::format("choices[{}][{}]", rank, token));
      if (k != exchange.topk) {
        throw user_error("choices[{}][{}]: has {} entries; give topk = {}, 0 for none", rank, token,
                         k, exchange.topk);
      }
      for (int i = 1; i <= k; ++i) {
        lua_rawgeti(L, -1, i);
        const double expert = lua_tonumber(L, -1);
        if (lua_type(L, -1) != LUA_TNUMBER || expert != std::floor(expert) ||
            std::abs(expert) > 1e9) {
          throw user_error("choices[{}][{}]: entry {} is not a whole number", rank, token, i);
        }
        choices.experts.push_back(static_cast<int32_t>(expert) - 1);
        lua_pop(L, 1);
      }
      lua_pop(L, 1);
    }
    choices.first.push_back(choices.first.back() + tokens);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return choices;
}

json matrix_json(const std::vector<int64_t>& values, int64_t ranks, int64_t times = 1) {
  json rows = json::array();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % static_cast<size_t>(ranks) == 0) rows.push_back(json::array());
    rows.back().push_back(values[i] * times);
  }
  return rows;
}

json rows_json(const dispatch::Route& route, const dispatch::Exchange& exchange,
               const dispatch::Choices& choices, Way way) {
  const int64_t bytes = route.row_bytes(way);
  const dispatch::LinkRows on = rows_on(route, exchange, choices, way);
  const auto nvlink = dispatch::ports_of(on.nvlink, on.ranks);
  const auto nic = dispatch::ports_of(on.nic, on.ranks);
  const auto times = [&](std::vector<int64_t> list) {
    for (int64_t& n : list) n *= bytes;
    return list;
  };
  json result = {{"row_bytes", {{"nvlink", bytes}, {"nic", bytes}, {"local", bytes}}},
                 {"rows", {{"nvlink", nvlink.total}, {"nic", nic.total}, {"local", on.local}}},
                 {"nvlink_out", times(nvlink.out)},
                 {"nvlink_in", times(nvlink.in)},
                 {"nic_out", times(nic.out)},
                 {"nic_in", times(nic.in)},
                 {"nvlink_total", nvlink.total * bytes},
                 {"nic_total", nic.total * bytes},
                 {"nvlink_port_max", nvlink.max * bytes},
                 {"nic_max", nic.max * bytes}};
  if (on.ranks <= kMostShown) {
    result["nvlink_bytes"] = matrix_json(on.nvlink, on.ranks, bytes);
    result["nic_bytes"] = matrix_json(on.nic, on.ranks, bytes);
  }
  return result;
}

json experts_json(const dispatch::ExpertRows& rows) {
  return {{"rows", rows.rows},
          {"padded_rows", rows.padded_rows},
          {"padded_rows_per_rank", rows.padded_rows_per_rank},
          {"received_rows_per_rank", rows.received_rows_per_rank},
          {"choices_per_rank", rows.choices_per_rank},
          {"choices", rows.choices},
          {"rank_rows", rows.rank_rows},
          {"node_rows", rows.node_rows},
          {"remote_node_rows", rows.remote_node_rows}};
}

json buffers_json(const dispatch::Route& route, const dispatch::Exchange& exchange,
                  const dispatch::ExpertRows& rows) {
  std::vector<int64_t> received = received_rows(route, exchange, rows);
  std::vector<int64_t> by_expert = rows.padded_rows_per_rank;
  for (int64_t& n : received) n *= payload_bytes(route.dispatch, exchange.hidden);
  for (int64_t& n : by_expert) n *= payload_bytes(dispatch::Wire::kBf16, exchange.hidden);
  json result = {{"received", received}, {"by_expert", by_expert}};
  if (route.buffer_bytes > 0) result["library"] = route.buffer_bytes;
  return result;
}

// ({ members of Exchange, expert_rank (from 1), dispatch, combine }): refuses sizes and types
int check_exchange(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields spec(values, "exchange");
  check(exchange_of(spec), value_named<dispatch::Wire>("dispatch", spec.text("dispatch")),
        value_named<dispatch::Wire>("combine", spec.text("combine")));
  return 0;
}

dispatch::Route route_of(const Fields& spec, const dispatch::Exchange& exchange) {
  dispatch::Route route;
  read_fields(spec.at("route"), route);
  check(route, exchange);
  return route;
}

// ({ exchange, route, way }) -> the members of TokenRows for choices that are drawn, and their
// logical_rows()
int dispatch_rows(lua_State* L) {
  const json values = to_json(L, 1);
  const Fields spec(values, "moe.dispatch_time");
  const dispatch::Exchange exchange = exchange_of(spec.at("exchange"));
  const dispatch::Route route = route_of(spec, exchange);
  const dispatch::Choices drawn = dispatch::sampled_choices(exchange);
  const dispatch::TokenRows rows =
      token_rows(route, exchange, drawn, value_named<Way>("way", spec.text("way")));
  push_json(L, {rows.received, rows.moved, rows.nic, rows.nvlink,
                dispatch::logical_rows(route, exchange, drawn)});
  return 1;
}

// (fields of Law, members of TokenRows, members of Call) -> microseconds
int dispatch_us(lua_State* L) {
  const json values = to_json(L, 1), r = to_json(L, 2), c = to_json(L, 3);
  dispatch::Law law;
  read_fields(Fields(values, "law"), law);
  lua_pushnumber(
      L, time_us(law, {r[0], r[1], r[2], r[3]}, {c[0], c[1], c[2], c[3], c[4], c[5], c[6]}));
  return 1;
}

// ({ exchange, route }, choices) -> the fields of moe.DispatchRows
int dispatched(lua_State* L) {
  luaL_checktype(L, 2, LUA_TTABLE);
  const json values = to_json(L, 1);
  const Fields spec(values, "moe.dispatch");
  const dispatch::Exchange exchange = exchange_of(spec.at("exchange"));
  const dispatch::Route route = route_of(spec, exchange);
  const dispatch::Choices choices = choices_of(L, exchange);
  check(route, exchange, choices);
  const dispatch::ExpertRows experts = expert_rows(exchange, choices);
  json result = {{"experts_computed", experts_json(experts)},
                 {"buffers", buffers_json(route, exchange, experts)}};
  if (route.control_bytes > 0) result["control_bytes_per_peer"] = route.control_bytes;
  for (const Way way : {Way::kDispatch, Way::kCombine}) {
    result[name_of(way)] = rows_json(route, exchange, choices, way);
  }
  if (spec.flag("execute", false)) {
    if (exchange.ranks > kMostExecuted) {
      throw user_error("execute: {} ranks are more than {}, of one thread each", exchange.ranks,
                       kMostExecuted);
    }
    const dispatch::Moved moved = move_exact(route, exchange, choices);
    std::vector<int64_t> sum = moved.sent[0];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += moved.sent[1][i];
    result["sent"] = matrix_json(sum, exchange.ranks);
    result["fnv1a"] = fmt::format("{:016x}", moved.fnv1a);
    for (const Way way : {Way::kDispatch, Way::kCombine}) {
      result[name_of(way)]["sent"] =
          matrix_json(moved.sent[static_cast<size_t>(way)], exchange.ranks);
    }
  }
  push_json(L, result);
  return 1;
}

}  // namespace

void open_dispatch(lua_State* L) {
  set_functions(L, {{"check_exchange", core_function<check_exchange>},
                    {"dispatch", core_function<with_effect<dispatched>>},
                    {"dispatch_rows", core_function<dispatch_rows>},
                    {"dispatch_us", core_function<dispatch_us>}});
}

}  // namespace moe::lua
