// Fields and methods of op and tensor handles. Layers and parts count from 1 in Lua.
#include <algorithm>

#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"
#include "engine/base/index.h"

namespace moe::lua {
namespace {

// Pushes index + 1, since numbers count from 1 in Lua; nil for -1, which means none.
void push_number_from_1(lua_State* L, int64_t index) {
  if (index < 0) {
    lua_pushnil(L);
  } else {
    lua_pushnumber(L, static_cast<double>(index + 1));
  }
}

int op_producers(lua_State* L) {
  const auto [session, op] = check_op(L, 1);
  std::vector<OpId> found;
  for (const TensorId t : session->graph().op(op).inputs) {
    const OpId p = t.valid() ? session->producers()[t.index()] : OpId();
    if (p.valid() && std::find(found.begin(), found.end(), p) == found.end()) found.push_back(p);
  }
  session->push_ops(L, found);
  return 1;
}

int op_consumers(lua_State* L) {
  const auto [session, op] = check_op(L, 1);
  const Graph& graph = session->graph();
  const std::vector<TensorId>& outputs = graph.op(op).outputs;
  const auto is_output = [&](TensorId t) {
    return std::find(outputs.begin(), outputs.end(), t) != outputs.end();
  };
  std::vector<OpId> found;
  for (const OpId id : graph.op_ids()) {
    const std::vector<TensorId>& inputs = graph.op(id).inputs;
    if (std::any_of(inputs.begin(), inputs.end(), is_output)) found.push_back(id);
  }
  session->push_ops(L, found);
  return 1;
}

int op_attr(lua_State* L) {
  const auto [session, id] = check_op(L, 1);
  const Op& op = session->graph().op(id);
  const Attrs attrs = all_attrs(op);
  const auto found = attrs.find(luaL_checkstring(L, 2));
  if (found == attrs.end()) return 0;
  if (const auto* text = std::get_if<std::string>(&found->second)) {
    push_text(L, *text);
  } else if (const auto* integer = std::get_if<int64_t>(&found->second)) {
    lua_pushnumber(L, static_cast<double>(*integer));
  } else {
    lua_pushnumber(L, std::get<double>(found->second));
  }
  return 1;
}

void push_tensors(lua_State* L, GraphSession& session, const std::vector<TensorId>& tensors) {
  lua_createtable(L, static_cast<int>(tensors.size()), 0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    session.push_tensor(L, tensors[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

/// Pushes a field of the op whose handle is argument 1; kPush pushes the field of an op.
template <auto kPush>
int op_field(lua_State* L) {
  const auto [session, op] = check_op(L, 1);
  kPush(L, *session, op);
  return 1;
}

/// As op_field(), of a tensor.
template <auto kPush>
int tensor_field(lua_State* L) {
  const TensorHandle handle = check_userdata<TensorHandle>(L, 1, kTensorType);
  kPush(L, GraphSession::of(L, handle.session).graph(), handle.tensor);
  return 1;
}

int op_to_string(lua_State* L) {
  const auto [session, op] = check_op(L, 1);
  push_text(L, session->graph().op(op).name);
  return 1;
}

}  // namespace

void open_ops(lua_State* L) {
  static constexpr Member kOp[] = {
      {"name", "string", "name, unique in the graph",
       op_field<[](auto L, auto& s, OpId op) { push_text(L, s.graph().op(op).name); }>},
      {"kind", "string", "kind of the op, one of `moebench list ops`",
       op_field<[](auto L, auto& s, OpId op) { push_text(L, s.graph().def(op).name); }>},
      {"lane", "string", "the lane that runs the op; in a pass, the kind of lane",
       op_field<[](auto L, auto& s, OpId op) { push_text(L, s.lane_name(op)); }>},
      {"seg", "string",
       "part of a block: embed, attn, gate, dispatch, expert, combine, mlp, head or update",
       op_field<[](auto L, auto& s, OpId op) { push_text(L, name_of(s.graph().op(op).segment)); }>},
      {"phase", "string", "phase of the step: forward, recompute, backward or update",
       op_field<[](auto L, auto& s, OpId op) { push_text(L, name_of(s.graph().op(op).phase)); }>},
      {"layer", "integer?", "number of the block, from 1; nil outside of blocks",
       op_field<[](auto L, auto& s, OpId op) { push_number_from_1(L, s.graph().op(op).layer); }>},
      {"part", "integer?", "number of the part, from 1; nil if the op is not cut",
       op_field<[](auto L, auto& s, OpId op) { push_number_from_1(L, s.graph().op(op).part); }>},
      {"micro", "integer", "micro-batch of the step, from 1; 1 for an op that runs once per step",
       op_field<[](auto L, auto& s, OpId op) { push_number_from_1(L, s.graph().op(op).micro); }>},
      {"dw", "boolean", "whether it computes a weight's gradient",
       op_field<[](auto L, auto& s, OpId op) { lua_pushboolean(L, s.graph().op(op).is_dw); }>},
      {"flops", "number", "floating-point operations",
       op_field<[](auto L, auto& s, OpId op) { lua_pushnumber(L, s.work(op).flops); }>},
      {"bytes", "number", "bytes of memory that the op reads and writes",
       op_field<[](auto L, auto& s, OpId op) { lua_pushnumber(L, s.work(op).bytes); }>},
      {"cost_ms", "number", "time of the op if it runs alone, by the plan's cost model",
       op_field<[](auto L, auto& s, OpId op) { lua_pushnumber(L, s.cost_ms(op)); }>},
      {"priority", "integer", "the number set by s:priority, 0 if none is; the highest goes first",
       op_field<[](auto L, auto& s, OpId op) {
         lua_pushnumber(L, static_cast<double>(s.priority(op)));
       }>},
      {"inputs", "moe.Tensor[]", "the tensors that the op reads; false for an absent input",
       op_field<[](auto L, auto& s, OpId op) { push_tensors(L, s, s.graph().op(op).inputs); }>},
      {"outputs", "moe.Tensor[]", "the tensors that the op makes",
       op_field<[](auto L, auto& s, OpId op) { push_tensors(L, s, s.graph().op(op).outputs); }>},
      {"attr", "(name: string): any", "an attribute of the op, or nil", method<op_attr>},
      {"producers", "(): moe.Op[]", "the ops that make the op's inputs", method<op_producers>},
      {"consumers", "(): moe.Op[]", "the ops that read the op's outputs", method<op_consumers>}};
  static constexpr Member kTensor[] = {
      {"name", "string", "name, unique in the graph",
       tensor_field<[](auto L, auto& g, TensorId t) { push_text(L, g.tensor(t).name); }>},
      {"dtype", "string", "type of an element",
       tensor_field<[](auto L, auto& g, TensorId t) { push_text(L, name_of(g.tensor(t).dtype)); }>},
      {"kind", "string", "input, param, state, activation or gradient",
       tensor_field<[](auto L, auto& g, TensorId t) { push_text(L, name_of(g.tensor(t).kind)); }>},
      {"bytes", "integer", "bytes in memory", tensor_field<[](auto L, auto& g, TensorId t) {
         lua_pushnumber(L, static_cast<double>(g.bytes(t)));
       }>},
      {"shape", "integer[]", "size of each axis", tensor_field<[](auto L, auto& g, TensorId t) {
         const Shape& shape = g.tensor(t).shape;
         push_list(L, std::ssize(shape), [&](int64_t i) { return shape[index(i)]; });
       }>}};
  new_type<OpHandle>(
      L, {kOpType, "op", "an op of a graph, read only; equal handles mean the same op", kOp});
  set_metamethod(L, kOpType, "__tostring", method<op_to_string>);
  new_type<TensorHandle>(L, {kTensorType, "t", "a tensor of a graph, read only", kTensor});
}

}  // namespace moe::lua
