// The arguments of a Lua gate's route(): ctx with its token ids, and the scores s. They are views
// of the engine's data: indices are checked, and any use after the call has returned is an error.
// Lists of choices are owned by Lua. Tokens and experts count from 1.
#include <cmath>

#include "bindings/host/core.h"
#include "bindings/host/userdata.h"
#include "bindings/policy/gate.h"
#include "bindings/policy/graph_session.h"
#include "engine/base/index.h"
#include "engine/base/rng.h"
#include "engine/routing/primitives.h"

namespace moe::lua {
namespace {

constexpr const char* kContextType = "gate context";
constexpr const char* kScoresType = "scores";
constexpr const char* kIdsType = "token ids";
constexpr const char* kListType = "list";

/// The value behind a view: the call, whose `in` is null after the call has ended.
using CallHandle = std::shared_ptr<GateCall>;

/// Experts or tokens that a bulk operation found, [rows, cols]; from 0 here, from 1 in Lua.
struct IndexList {
  std::vector<int32_t> values;
  int64_t rows, cols;
  int64_t limit;  // all values are below limit
};

const GateCall& check_call(lua_State* L, const char* type) {
  const GateCall& call = *check_userdata<CallHandle>(L, 1, type);
  if (call.in == nullptr)
    throw UserError(
        "this value is from a call of a gate that has ended; use it only during the call");
  return call;
}

ScoreMatrix matrix(const GateInput& in) {
  return {std::span(in.scores, static_cast<size_t>(in.tokens * in.experts)), in.experts};
}

int push_indices(lua_State* L, std::vector<int32_t> values, int64_t cols, int64_t limit) {
  const int64_t rows = static_cast<int64_t>(values.size()) / cols;
  push_userdata<IndexList>(L, kListType, std::move(values), rows, cols, limit);
  return 1;
}

int score(lua_State* L) {
  const GateInput& in = *check_call(L, kScoresType).in;
  const int64_t t = check_index(L, 2, in.tokens, "token");
  const int64_t e = check_index(L, 3, in.experts, "expert");
  lua_pushnumber(L, static_cast<double>(in.scores[t * in.experts + e]));
  return 1;
}

int argmax_of_rows(lua_State* L) {
  const GateInput& in = *check_call(L, kScoresType).in;
  return push_indices(L, argmax_rows(matrix(in)), 1, in.experts);
}

int topk_of_rows(lua_State* L) {
  const GateInput& in = *check_call(L, kScoresType).in;
  const int64_t k = check_index(L, 2, in.experts, "s:topk_rows: k") + 1;
  return push_indices(L, topk_rows(matrix(in), k), k, in.experts);
}

int topk_of_col(lua_State* L) {
  const GateInput& in = *check_call(L, kScoresType).in;
  const int64_t e = check_index(L, 2, in.experts, "expert");
  const int64_t n = check_index(L, 3, in.tokens, "s:topk_col: n") + 1;
  return push_indices(L, topk_col(matrix(in), e, n), 1, in.tokens);
}

// s:order_rows() -> the tokens in order of their best score, the highest first
int order_of_rows(lua_State* L) {
  const GateInput& in = *check_call(L, kScoresType).in;
  const std::vector<int32_t> best = argmax_rows(matrix(in));
  std::vector<float> top(best.size());
  for (size_t t = 0; t < best.size(); ++t) {
    if (best[t] >= 0) top[t] = in.scores[static_cast<int64_t>(t) * in.experts + best[t]];
  }
  return push_indices(L, order_by_score(top), 1, in.tokens);
}

int sum_of_cols(lua_State* L) {
  const GateInput& in = *check_call(L, kScoresType).in;
  const std::vector<double> sums = sum_cols(matrix(in));
  return push_list(L, in.experts, [&](int64_t e) { return sums[index(e)]; });
}

// ctx.ids(t) -> the number of token t in the vocabulary, which counts from 0
int token_id(lua_State* L) {
  const GateInput& in = *check_call(L, kIdsType).in;
  if (in.ids == nullptr)
    throw UserError(
        "ctx.ids: this call of the gate has no token ids, so ctx.ids cannot be used in it");
  lua_pushnumber(L, in.ids[check_index(L, 2, in.tokens, "token")]);
  return 1;
}

int left(lua_State* L) {
  const GateCall& call = check_call(L, kContextType);
  const int64_t e = check_index(L, 2, call.in->experts, "expert");
  lua_pushnumber(L, static_cast<double>(call.out->left(e)));
  return 1;
}

int take(lua_State* L) {
  const GateCall& call = check_call(L, kContextType);
  const int64_t t = check_index(L, 2, call.in->tokens, "token");
  const int64_t e = check_index(L, 3, call.in->experts, "expert");
  lua_pushboolean(L, call.out->take(t, e));
  return 1;
}

// Reads the experts or tokens at `index`, numbers from 1 to `limit`: a list from a bulk operation,
// a table of numbers, or a table of rows of numbers (k > 1). The result counts from 0; false in a
// table means no choice and becomes -1. Throws UserError that begins with `what`.
IndexList check_list(lua_State* L, int index, int64_t limit, const char* what) {
  if (lua_isuserdata(L, index)) {
    const IndexList& list = check_userdata<IndexList>(L, index, kListType);
    if (list.limit != limit) {
      throw user_error(
          "{}: the list has numbers from 1 to {}, but numbers from 1 to {} are needed; is it a "
          "list of tokens in place of experts, or the reverse?",
          what, list.limit, limit);
    }
    return list;
  }
  luaL_checktype(L, index, LUA_TTABLE);
  const int64_t rows = static_cast<int64_t>(lua_objlen(L, index));
  IndexList list{{}, rows, 1, limit};
  const auto add = [&] {
    const bool none = lua_isboolean(L, -1) && lua_toboolean(L, -1) == 0;
    list.values.push_back(none ? -1
                               : static_cast<int32_t>(check_index(L, lua_gettop(L), limit, what)));
  };
  for (int64_t r = 1; r <= rows; ++r) {
    lua_rawgeti(L, index, static_cast<int>(r));
    if (!lua_istable(L, -1)) {
      add();
      lua_pop(L, 1);
      continue;
    }
    const int64_t cols = static_cast<int64_t>(lua_objlen(L, -1));
    if (r > 1 && cols != list.cols) {
      throw user_error(
          "{}: row {} of the list has {} entries, but row 1 has {}; give rows of equal length",
          what, r, cols, list.cols);
    }
    list.cols = cols;
    for (int64_t c = 1; c <= cols; ++c) {
      lua_rawgeti(L, -1, static_cast<int>(c));
      add();
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
  }
  return list;
}

int fill(lua_State* L) {
  const GateCall& call = check_call(L, kContextType);
  const IndexList choices = check_list(L, 2, call.in->experts, "ctx:fill: choice");
  IndexList order{{}, 0, 1, call.in->tokens};
  if (!lua_isnoneornil(L, 3)) order = check_list(L, 3, call.in->tokens, "ctx:fill: order");
  call.out->fill(choices.values, choices.cols, order.values);
  return 0;
}

/// Pushes the member kMember of the call's input, plus kFirst: 0 for sizes, 1 for indices, which
/// count from 1 in Lua.
template <int64_t GateInput::*kMember, int64_t kFirst = 0>
int context_number(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_call(L, kContextType).in->*kMember + kFirst));
  return 1;
}

int context_devices(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_call(L, kContextType).policy->devices));
  return 1;
}
int context_nodes(lua_State* L) {
  const GatePolicy& policy = *check_call(L, kContextType).policy;
  lua_pushnumber(L, std::ceil(static_cast<double>(policy.devices) /
                              static_cast<double>(policy.devices_per_node)));
  return 1;
}

// The device of an expert, from 0.
int64_t device_of_expert(lua_State* L, const GateCall& call) {
  const int64_t e = check_index(L, 2, call.in->experts, "expert");
  return e * call.policy->devices / call.in->experts;
}
int device_of(lua_State* L) {
  const GateCall& call = check_call(L, kContextType);
  lua_pushnumber(L, static_cast<double>(device_of_expert(L, call) + 1));
  return 1;
}
int node_of(lua_State* L) {
  const GateCall& call = check_call(L, kContextType);
  const int64_t node = device_of_expert(L, call) / call.policy->devices_per_node;
  lua_pushnumber(L, static_cast<double>(node + 1));
  return 1;
}

int context_first_token(lua_State* L) {
  const GateInput& in = *check_call(L, kContextType).in;
  if (in.reads_source != nullptr) *in.reads_source = true;
  return context_number<&GateInput::first_token, 1>(L);
}

// Pushes the field `name` of ctx, a value that was made with ctx and is kept in its environment.
int kept_with_context(lua_State* L, const char* name) {
  check_call(L, kContextType);
  lua_getfenv(L, 1);
  lua_getfield(L, -1, name);
  return 1;
}
int context_ids(lua_State* L) {
  return kept_with_context(L, "ids");
}
int context_rng(lua_State* L) {
  return kept_with_context(L, "rng");
}

int list_value(lua_State* L) {
  const IndexList& list = check_userdata<IndexList>(L, 1, kListType);
  const int64_t r = check_index(L, 2, list.rows, "row");
  const int64_t c = lua_isnoneornil(L, 3) ? 0 : check_index(L, 3, list.cols, "column");
  const int32_t value = list.values[static_cast<size_t>(r * list.cols + c)];
  if (value < 0) {
    lua_pushboolean(L, 0);
  } else {
    lua_pushnumber(L, value + 1);
  }
  return 1;
}

int list_length(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_userdata<IndexList>(L, 1, kListType).rows));
  return 1;
}

// list:counts() -> a table that has, for each expert (or token), how often it is in the list
int list_counts(lua_State* L) {
  const IndexList& list = check_userdata<IndexList>(L, 1, kListType);
  const std::vector<int64_t> counts = histogram(list.values, list.limit);
  return push_list(L, list.limit, [&](int64_t i) { return counts[index(i)]; });
}

}  // namespace

GateViews::GateViews(lua_State* L, const GateInput& in, RoutingBuilder& out,
                     const GatePolicy& policy)
    : call_(std::make_shared<GateCall>(&in, &out, &policy)) {
  push_userdata<CallHandle>(L, kContextType, call_);
  lua_createtable(L, 0, 2);
  push_userdata<CallHandle>(L, kIdsType, call_);
  lua_setfield(L, -2, "ids");
  push_rng(L, 1000231, {in.step, in.layer, in.first_token});
  lua_setfield(L, -2, "rng");
  lua_setfenv(L, -2);
  push_userdata<CallHandle>(L, kScoresType, call_);
}

void open_gate(lua_State* L) {
  static constexpr Member kContext[] = {
      {"tokens", "integer", "number of tokens of this call", context_number<&GateInput::tokens>},
      {"experts", "integer", "number of experts of the layer", context_number<&GateInput::experts>},
      {"k", "integer", "choices per token", context_number<&GateInput::k>},
      {"capacity", "integer", "slots of an expert for this rank's tokens",
       context_number<&GateInput::capacity>},
      {"step", "integer", "step of the run, from 1", context_number<&GateInput::step, 1>},
      {"layer", "integer", "number of the block with this MoE layer, from 1",
       context_number<&GateInput::layer, 1>},
      {"first_token", "integer",
       "number of token 1 of this call among the tokens of all ranks, from 1", context_first_token},
      {"devices", "integer", "devices that together hold all experts", context_devices},
      {"nodes", "integer", "nodes of these devices", context_nodes},
      {"ids", "moe.TokenIds", "numbers of the tokens in the vocabulary", context_ids},
      {"rng", "moe.Rng", "random numbers that depend only on --seed, step, layer and first_token",
       context_rng},
      {"device_of", "(expert: integer): integer",
       "the device that holds the expert, from 1; where a placement moves experts, that before the "
       "first step",
       method<device_of>},
      {"node_of", "(expert: integer): integer", "the node of this device, from 1", method<node_of>},
      {"left", "(expert: integer): integer", "free slots of the expert", method<left>},
      {"take", "(token: integer, expert: integer): boolean",
       "makes the token choose the expert; returns false if no slot is free, which drops the "
       "choice",
       method<take>},
      {"fill", "(choices: moe.List|(integer|false)[], order?: moe.List|integer[])",
       "takes the first choices of all tokens, in the given order of tokens, then their second "
       "choices, and so on; false means no choice",
       method<fill>}};
  static constexpr Member kScores[] = {
      {"()", "(token: integer, expert: integer): number",
       "the score of an expert for a token; -math.huge: the token cannot choose the expert",
       method<score>},
      {"argmax_rows", "(): moe.List", "the best expert of each token", method<argmax_of_rows>},
      {"topk_rows", "(k: integer): moe.List",
       "the k best experts of each token, best first; false at the end where a token can choose "
       "fewer",
       method<topk_of_rows>},
      {"topk_col", "(expert: integer, n: integer): moe.List",
       "the n tokens with the best scores for the expert, best first; fewer where fewer can choose "
       "it",
       method<topk_of_col>},
      {"order_rows", "(): moe.List", "tokens by their best score, best first",
       method<order_of_rows>},
      {"sum_cols", "(): number[]", "the sum of each expert's scores", method<sum_of_cols>}};
  static constexpr Member kIds[] = {{"()", "(token: integer): integer",
                                     "the token's number in the vocabulary, from 0",
                                     method<token_id>}};
  static constexpr Member kList[] = {
      {"()", "(row: integer, column?: integer): integer|false",
       "the entry in this row and column; default: column 1", method<list_value>},
      {"#", "integer", "the number of rows", method<list_length>},
      {"counts", "(): integer[]", "how often each expert (or token) is in the list",
       method<list_counts>}};
  new_type<CallHandle>(
      L, {kContextType, "ctx", "the call of a gate: its sizes, and how to give slots to tokens",
          kContext});
  new_type<CallHandle>(L, {kScoresType, "s", "the router's scores in a call of a gate", kScores});
  new_type<CallHandle>(L, {kIdsType, "ctx.ids", "the token ids in a call of a gate", kIds});
  new_type<IndexList>(L,
                      {kListType, "list", "experts or tokens, as methods of s return them", kList});
}

}  // namespace moe::lua
