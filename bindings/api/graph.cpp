// Methods of the graph `g` of a pass or schedule policy: finding and editing ops. Layers and parts
// count from 1.
#include <algorithm>
#include <cmath>
#include <optional>

#include "bindings/host/core.h"
#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"
#include "engine/base/names.h"
#include "engine/graph/edit.h"

namespace moe::lua {
namespace {

GraphSession& check_graph(lua_State* L) {
  return GraphSession::of(L, check_userdata<GraphHandle>(L, 1, kGraphType).session);
}

/// The conditions of g:ops{...}.
struct Filter {
  std::optional<std::string> name, kind;
  std::optional<Segment> segment;
  std::optional<Phase> phase;
  std::optional<int64_t> layer, part;
  std::optional<bool> is_dw;
  int where = 0;  // stack index of the function

  bool matches(const Graph& graph, const Op& op) const {
    return (!name || op.name == *name) && (!kind || graph.def(op).name == *kind) &&
           (!segment || op.segment == *segment) && (!phase || op.phase == *phase) &&
           (!layer || op.layer == *layer) && (!part || op.part == *part) &&
           (!is_dw || op.is_dw == *is_dw);
  }
};

std::string text_value(lua_State* L, const std::string& key) {
  if (lua_type(L, -1) != LUA_TSTRING) throw user_error("g:ops: {}: give a string", key);
  return lua_tostring(L, -1);
}

constexpr int64_t kMostLayers = 1000000;  // more layers or parts than any op has

// Sets one condition of the filter; the value of the key is on top of the stack.
void set_filter(lua_State* L, const Graph& graph, const std::string& key, Filter& filter) {
  if (key == "name") {
    filter.name = text_value(L, key);
  } else if (key == "kind") {
    filter.kind = text_value(L, key);
    graph.table().kind(*filter.kind);  // throws UserError for an unknown kind
  } else if (key == "seg") {
    filter.segment = value_named<Segment>("seg", text_value(L, key));
  } else if (key == "phase") {
    filter.phase = value_named<Phase>("phase", text_value(L, key));
  } else if (key == "layer") {
    filter.layer = check_index(L, -1, kMostLayers, "g:ops: layer");
  } else if (key == "part") {
    filter.part = check_index(L, -1, kMostLayers, "g:ops: part");
  } else if (key == "dw") {
    filter.is_dw = lua_toboolean(L, -1) != 0;
  } else if (key == "where") {
    if (!lua_isfunction(L, -1)) throw UserError("g:ops: where: give a function");
  } else {
    throw UserError(
        "g:ops: " +
        unknown_name("key", key, {"name", "kind", "seg", "phase", "layer", "part", "dw", "where"}));
  }
}

Filter check_filter(lua_State* L, int index, const Graph& graph) {
  Filter filter;
  if (lua_isnoneornil(L, index)) return filter;
  if (lua_type(L, index) == LUA_TSTRING) {
    filter.name = lua_tostring(L, index);
    return filter;
  }
  luaL_checktype(L, index, LUA_TTABLE);
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    const std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "[]";
    set_filter(L, graph, key, filter);
  }
  lua_getfield(L, index, "where");
  if (!lua_isnil(L, -1)) filter.where = lua_gettop(L);
  return filter;
}

std::vector<OpId> find(lua_State* L, GraphSession& session, const Filter& filter) {
  std::vector<OpId> found;
  for (const OpId id : session.graph().op_ids()) {
    const Graph& graph = session.graph();
    if (!filter.matches(graph, graph.op(id))) continue;
    if (filter.where != 0) {
      lua_pushvalue(L, filter.where);
      session.push_op(L, id);
      lua_call(L, 1, 1);
      const bool wanted = lua_toboolean(L, -1) != 0;
      lua_pop(L, 1);
      if (!wanted) continue;
    }
    found.push_back(id);
  }
  return found;
}

int graph_ops(lua_State* L) {
  GraphSession& session = check_graph(L);
  session.push_ops(L, find(L, session, check_filter(L, 2, session.graph())));
  return 1;
}

int graph_op(lua_State* L) {
  GraphSession& session = check_graph(L);
  const std::vector<OpId> found = find(L, session, check_filter(L, 2, session.graph()));
  if (found.empty() && lua_type(L, 2) == LUA_TSTRING) {
    throw user_error("g:op: the graph has no op '{}'", lua_tostring(L, 2));
  }
  if (found.empty()) throw UserError("g:op: no op of the graph fulfils the filter");
  session.push_op(L, found.front());
  return 1;
}

int graph_tensor(lua_State* L) {
  GraphSession& session = check_graph(L);
  const std::string name = luaL_checkstring(L, 2);
  const TensorId tensor = session.graph().find_tensor(name);
  if (!tensor.valid()) throw user_error("g:tensor: the graph has no tensor '{}'", name);
  session.push_tensor(L, tensor);
  return 1;
}

/// Returns the neighbours of an op with these inputs: the ops that make the inputs or, if there are
/// none, the ops that read them.
std::vector<OpId> neighbours(GraphSession& session, const std::vector<TensorId>& inputs) {
  const Graph& graph = session.graph();
  std::vector<OpId> found;
  for (const TensorId t : inputs) {
    const OpId maker = t.valid() ? session.producers()[t.index()] : OpId();
    if (maker.valid()) found.push_back(maker);
  }
  if (!found.empty()) return found;
  for (const OpId id : graph.op_ids()) {
    const std::vector<TensorId>& read = graph.op(id).inputs;
    const auto reads = [&](TensorId t) {
      return t.valid() && std::find(read.begin(), read.end(), t) != read.end();
    };
    if (std::any_of(inputs.begin(), inputs.end(), reads)) found.push_back(id);
  }
  return found;
}

/// The fields of a new op that the call of g:insert omits: they are taken from the op's neighbours,
/// which must have equal values.
class Inherited {
 public:
  Inherited(GraphSession& session, const std::string& name, const std::vector<TensorId>& inputs)
      : graph_(session.graph()), name_(name), next_to_(neighbours(session, inputs)) {}

  /// Returns the neighbours' value of a field; throws UserError if there is no neighbour, or two
  /// have different values. get(op) returns an op's value, text(value) a value's name for errors.
  template <class Get, class Text>
  auto of(const char* field, Get get, Text text) const {
    if (next_to_.empty()) {
      throw user_error(
          "g:insert: '{}': {} is not given and cannot be taken from an op that makes or reads an "
          "input of '{}', since there is none; give {}",
          name_, field, name_, field);
    }
    const OpId first = next_to_.front();
    for (const OpId other : next_to_) {
      if (get(graph_.op(other)) == get(graph_.op(first))) continue;
      throw user_error(
          "g:insert: '{}': {} is not given, and the ops next to it differ in it: '{}' has {}, '{}' "
          "has {}; give {}",
          name_, field, graph_.op(first).name, text(get(graph_.op(first))), graph_.op(other).name,
          text(get(graph_.op(other))), field);
    }
    return get(graph_.op(first));
  }

 private:
  const Graph& graph_;
  const std::string name_;
  const std::vector<OpId> next_to_;
};

/// Returns the layer or part that is on top of the stack, counted from 0; -1 for false, which means
/// that the op has none.
int32_t index_or_none(lua_State* L, const char* what) {
  if (lua_isboolean(L, -1) && lua_toboolean(L, -1) == 0) return -1;
  return static_cast<int32_t>(check_index(L, -1, kMostLayers, what));
}

/// Returns an op with the new op's phase, segment, layer, part and dw, as given or inherited.
Op place_of(lua_State* L, const Inherited& inherited) {
  const auto given = [L](const char* key) {
    lua_getfield(L, 2, key);
    return !lua_isnil(L, -1);
  };
  Op op;
  op.phase = given("phase") ? value_named<Phase>("phase", luaL_checkstring(L, -1))
                            : inherited.of(
                                  "phase", [](const Op& o) { return o.phase; }, name_of<Phase>);
  op.segment = given("seg") ? value_named<Segment>("seg", luaL_checkstring(L, -1))
                            : inherited.of(
                                  "seg", [](const Op& o) { return o.segment; }, name_of<Segment>);
  const auto layer_text = [](int32_t layer) {
    return layer < 0 ? std::string("none (false)") : std::to_string(layer + 1);
  };
  op.layer = given("layer") ? index_or_none(L, "g:insert: layer")
                            : inherited.of(
                                  "layer", [](const Op& o) { return o.layer; }, layer_text);
  op.part = given("part") ? index_or_none(L, "g:insert: part") : -1;
  op.is_dw = given("dw") ? lua_toboolean(L, -1) != 0
                         : inherited.of(
                               "dw", [](const Op& o) { return o.is_dw; },
                               [](bool dw) { return dw ? "true" : "false"; });
  return op;
}

// g:insert{ kind=, name=, inputs={op or tensor or false, ...}, attrs={}, phase=, seg=, layer=,
// part=, dw= } -> the new op. Its place in the order follows from its inputs and readers. If phase,
// seg, layer or dw is not given, it is that of the ops that make the inputs (or read them).
int graph_insert(lua_State* L) {
  GraphSession& session = check_graph(L);
  lua_settop(L, 2);
  check_keys(L, 2, "g:insert",
             {"kind", "name", "inputs", "attrs", "phase", "seg", "layer", "part", "dw"});
  const auto field = [L](const char* key) {
    lua_getfield(L, 2, key);
    return lua_gettop(L);
  };
  const auto text = [&](const char* key) {
    const int at = field(key);
    if (lua_type(L, at) != LUA_TSTRING) throw user_error("g:insert: {}: give a string", key);
    return std::string(lua_tostring(L, at));
  };
  const std::string kind = text("kind"), name = text("name");
  session.graph().table().kind(kind);  // throws UserError for an unknown kind
  const std::vector<TensorId> inputs = check_tensors(L, field("inputs"), session);
  const Attrs attrs = check_attrs(L, field("attrs"), "g:insert");
  if (session.graph().find_op(name).valid()) {
    throw user_error("g:insert: the graph already has an op '{}'; give another name", name);
  }
  const Op place = place_of(L, Inherited(session, name, inputs));
  Graph& graph = session.edit();
  const OpId id = graph.add_op(kind, name, inputs, attrs, place.phase);
  Op& op = graph.op(id);
  op.segment = place.segment;
  op.layer = place.layer;
  op.part = place.part;
  op.is_dw = place.is_dw;
  session.push_op(L, id);
  return 1;
}

// g:redirect(from, to[, but]): all readers of `from`, except the ops in `but`, read `to` instead.
int graph_redirect(lua_State* L) {
  GraphSession& session = check_graph(L);
  const TensorId from = check_tensor(L, 2, session), to = check_tensor(L, 3, session);
  const std::vector<OpId> but =
      lua_isnoneornil(L, 4) ? std::vector<OpId>() : check_ops(L, 4, session);
  redirect(session.edit(), from, to, but);
  return 0;
}

int graph_remove(lua_State* L) {
  GraphSession& session = check_graph(L);
  session.edit().remove(check_own_op(L, 2, session));
  return 0;
}

// Returns the lengths of the parts into which `length` is cut: equal, or if `parts` does not divide
// `length`, the first length % parts of them longer by 1.
std::vector<int64_t> equal_sizes(int64_t length, int64_t parts) {
  std::vector<int64_t> sizes(static_cast<size_t>(parts), length / parts);
  for (int64_t i = 0; i < length % parts; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

// Returns all inputs and outputs of the ops, except parameters and optimizer state, each to be cut
// along `axis` (from 0).
std::vector<CutAxis> cuts_along(const Graph& graph, const std::vector<OpId>& ops, int axis) {
  std::vector<CutAxis> cuts;
  const auto add = [&](TensorId t) {
    if (!t.valid()) return;
    const TensorKind kind = graph.tensor(t).kind;
    if (kind != TensorKind::kParam && kind != TensorKind::kState) cuts.push_back({t, axis});
  };
  for (const OpId id : ops) {
    for (const TensorId t : graph.op(id).inputs) add(t);
    for (const TensorId t : graph.op(id).outputs) add(t);
  }
  return cuts;
}

// Cuts the ops; returns the ops of each part. If the ops cannot be cut, returns an empty list, sets
// `why`, and leaves the graph unchanged.
std::vector<std::vector<OpId>> try_split(GraphSession& session, const std::vector<OpId>& ops,
                                         const std::vector<CutAxis>& cuts,
                                         const std::vector<int64_t>& sizes, std::string& why) {
  const Graph before = session.graph();
  try {
    return split_ops(session.edit(), ops, cuts, sizes);
  } catch (const UserError& e) {
    session.edit() = before;
    why = e.what();
    return {};
  }
}

// Returns the first output of an op that is given in place of a tensor. Throws UserError if the op
// has none.
TensorId output_of(const Graph& graph, OpId op) {
  if (graph.op(op).outputs.empty()) {
    throw user_error("op '{}' has no output, which is needed here; give a tensor or another op",
                     graph.op(op).name);
  }
  return graph.out(op);
}

// g:split(ops, { axis =, parts =, try = }) -> { part -> { op, ... } }. Every input and output of
// the ops, except parameters and optimizer state, is cut along the axis (from 1). If the ops cannot
// be cut, it raises an error with the reason, or with try = true returns nil and the reason.
int graph_split(lua_State* L) {
  GraphSession& session = check_graph(L);
  const std::vector<OpId> ops = check_ops(L, 2, session);
  check_keys(L, 3, "g:split", {"axis", "parts", "try"});
  lua_getfield(L, 3, "try");
  const bool only_try = lua_toboolean(L, -1) != 0;
  if (ops.empty()) throw UserError("g:split: the list of ops is empty; give at least one op");
  const Shape shape = session.graph().tensor(output_of(session.graph(), ops.front())).shape;
  lua_getfield(L, 3, "axis");
  const auto axis =
      static_cast<int>(check_index(L, -1, static_cast<int64_t>(shape.size()), "g:split: axis ="));
  const int64_t length = shape[static_cast<size_t>(axis)];
  lua_getfield(L, 3, "parts");
  const int64_t parts = check_index(L, -1, length, "g:split: parts =") + 1;
  std::string why;
  const auto made = try_split(session, ops, cuts_along(session.graph(), ops, axis),
                              equal_sizes(length, parts), why);
  if (made.empty() && !only_try) throw user_error("g:split: {}", why);
  if (made.empty()) {
    lua_pushnil(L);
    push_text(L, why);
    return 2;
  }
  lua_createtable(L, static_cast<int>(made.size()), 0);
  for (size_t p = 0; p < made.size(); ++p) {
    session.push_ops(L, made[p]);
    lua_rawseti(L, -2, static_cast<int>(p + 1));
  }
  return 1;
}

}  // namespace

TensorId check_tensor(lua_State* L, int index, const GraphSession& session) {
  void* value = lua_touserdata(L, index);
  if (value != nullptr && lua_getmetatable(L, index) != 0) {
    luaL_getmetatable(L, kOpType);
    const bool is_op = lua_rawequal(L, -1, -2) != 0;
    lua_pop(L, 2);
    if (is_op) return output_of(session.graph(), check_own_op(L, index, session));
  }
  const TensorHandle handle = check_userdata<TensorHandle>(L, index, kTensorType);
  if (&GraphSession::of(L, handle.session) != &session)
    throw UserError(
        "the tensor belongs to the graph of another policy call; give a tensor of this call's g");
  return handle.tensor;
}

std::vector<TensorId> check_tensors(lua_State* L, int index, const GraphSession& session) {
  luaL_checktype(L, index, LUA_TTABLE);
  std::vector<TensorId> tensors;
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    const bool absent = lua_isboolean(L, -1) && lua_toboolean(L, -1) == 0;
    tensors.push_back(absent ? TensorId() : check_tensor(L, lua_gettop(L), session));
    lua_pop(L, 1);
  }
  return tensors;
}

Attrs check_attrs(lua_State* L, int index, const char* what) {
  Attrs attrs;
  if (lua_isnil(L, index)) return attrs;
  if (!lua_istable(L, index)) {
    throw user_error("{}: attrs: a {} is not allowed; give a table of attributes", what,
                     luaL_typename(L, index));
  }
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING)
      throw user_error(
          "{}: attrs: a key is a {}; the keys must be names of attributes, which are strings", what,
          luaL_typename(L, -2));
    const std::string key = lua_tostring(L, -2);
    if (lua_type(L, -1) == LUA_TSTRING) {
      attrs[key] = std::string(lua_tostring(L, -1));
      continue;
    }
    constexpr double kMostWhole = 1LL << 53;
    const bool is_number = lua_type(L, -1) == LUA_TNUMBER;
    const double number = is_number ? lua_tonumber(L, -1) : NAN;
    if (!std::isfinite(number)) {
      throw user_error("{}: attrs.{}: {} is not allowed; give a finite number or a text", what, key,
                       is_number ? fmt::format("{}", number) : luaL_typename(L, -1));
    }
    if (number == std::floor(number) && std::abs(number) <= kMostWhole) {
      attrs[key] = static_cast<int64_t>(number);
    } else {
      attrs[key] = number;
    }
  }
  return attrs;
}

void open_handles(lua_State* L) {
  static constexpr Member kGraph[] = {
      {"ops",
       "(filter?: string|{ name?: string, kind?: string, seg?: string, phase?: string, layer?: "
       "integer, part?: integer, dw?: boolean, where?: fun(op: moe.Op): boolean }): moe.Op[]",
       "the ops that fulfil the filter, in order; without a filter, all ops", method<graph_ops>},
      {"op", "(filter: string|table): moe.Op",
       "the first op that fulfils the filter; an error if there is none", method<graph_op>},
      {"tensor", "(name: string): moe.Tensor", "the tensor of this name", method<graph_tensor>},
      {"insert",
       "(t: { kind: string, name: string, inputs: (moe.Op|moe.Tensor|false)[], attrs?: table, "
       "phase?: string, seg?: string, layer?: integer|false, part?: integer|false, dw?: boolean "
       "}): moe.Op",
       "adds an op; an op among inputs means its first output; phase, seg, layer and dw are those "
       "of the ops that make the inputs (or, if there are none, read them) unless given",
       method<graph_insert>},
      {"redirect", "(from: moe.Op|moe.Tensor, to: moe.Op|moe.Tensor, but?: moe.Op[])",
       "makes all readers of `from`, except the ops in `but`, read `to`", method<graph_redirect>},
      {"remove", "(op: moe.Op)", "removes an op whose outputs no op reads", method<graph_remove>},
      {"split",
       "(ops: moe.Op[], t: { axis: integer, parts: integer, try?: boolean }): moe.Op[][]?, string?",
       "cuts a chain along an axis, from 1, and returns the ops of each part; with try = true, nil "
       "and why it cannot be",
       method<graph_split>}};
  new_type<GraphHandle>(
      L, {kGraphType, "g", "the graph of a pass, or (read only) of a schedule policy", kGraph});
  open_ops(L);
  open_schedule(L);
  open_policy_context(L);
}

}  // namespace moe::lua
