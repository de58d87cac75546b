// Fields and methods of op and tensor handles. Layers and parts count from 1 in Lua.
#include <algorithm>
#include <map>

#include "bindings/host/names.h"
#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"

namespace moe::lua {
namespace {

void push_text(lua_State* L, std::string_view text) {
  lua_pushlstring(L, text.data(), text.size());
}

// Pushes nil for -1, which means none; otherwise the number counted from 1.
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
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const std::vector<TensorId>& inputs = graph.op(id).inputs;
    if (!graph.removed(id) && std::any_of(inputs.begin(), inputs.end(), is_output)) {
      found.push_back(id);
    }
  }
  session->push_ops(L, found);
  return 1;
}

int op_attr(lua_State* L) {
  const auto [session, id] = check_op(L, 1);
  const Op& op = session->graph().op(id);
  const auto found = op.attrs.find(luaL_checkstring(L, 2));
  if (found == op.attrs.end()) return 0;
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

using OpField = void (*)(lua_State*, GraphSession&, OpId);

const std::map<std::string_view, OpField>& op_fields() {
  static const std::map<std::string_view, OpField> kFields = {
      {"name", [](lua_State* L, GraphSession& s, OpId op) { push_text(L, s.graph().op(op).name); }},
      {"kind",
       [](lua_State* L, GraphSession& s, OpId op) { push_text(L, s.graph().def(op).name); }},
      {"flops",
       [](lua_State* L, GraphSession& s, OpId op) { lua_pushnumber(L, s.work(op).flops); }},
      {"bytes",
       [](lua_State* L, GraphSession& s, OpId op) { lua_pushnumber(L, s.work(op).bytes); }},
      {"cost_ms", [](lua_State* L, GraphSession& s, OpId op) { lua_pushnumber(L, s.cost_ms(op)); }},
      {"lane", [](lua_State* L, GraphSession& s, OpId op) { push_text(L, s.lane_name(op)); }},
      {"priority", [](lua_State* L, GraphSession& s,
                      OpId op) { lua_pushnumber(L, static_cast<double>(s.priority(op))); }},
      {"seg", [](lua_State* L, GraphSession& s,
                 OpId op) { push_text(L, segment_name(s.graph().op(op).segment)); }},
      {"phase", [](lua_State* L, GraphSession& s,
                   OpId op) { push_text(L, phase_name(s.graph().op(op).phase)); }},
      {"layer", [](lua_State* L, GraphSession& s,
                   OpId op) { push_number_from_1(L, s.graph().op(op).layer); }},
      {"part", [](lua_State* L, GraphSession& s,
                  OpId op) { push_number_from_1(L, s.graph().op(op).part); }},
      {"dw",
       [](lua_State* L, GraphSession& s, OpId op) { lua_pushboolean(L, s.graph().op(op).is_dw); }},
      {"inputs",
       [](lua_State* L, GraphSession& s, OpId op) { push_tensors(L, s, s.graph().op(op).inputs); }},
      {"outputs", [](lua_State* L, GraphSession& s,
                     OpId op) { push_tensors(L, s, s.graph().op(op).outputs); }},
  };
  return kFields;
}

int op_index(lua_State* L) {
  if (push_method(L)) return 1;
  const auto [session, op] = check_op(L, 1);
  const std::string_view key = luaL_checkstring(L, 2);
  const auto found = op_fields().find(key);
  if (found == op_fields().end()) return no_such_member(L);
  found->second(L, *session, op);
  return 1;
}

int tensor_index(lua_State* L) {
  const TensorHandle handle = check_userdata<TensorHandle>(L, 1, kTensorType);
  GraphSession& session = GraphSession::of(L, handle.session);
  const Tensor& tensor = session.graph().tensor(handle.tensor);
  const std::string_view key = luaL_checkstring(L, 2);
  if (key == "name") {
    push_text(L, tensor.name);
  } else if (key == "dtype") {
    push_text(L, dtype_name(tensor.dtype));
  } else if (key == "kind") {
    push_text(L, tensor_kind_name(tensor.kind));
  } else if (key == "bytes") {
    lua_pushnumber(L, static_cast<double>(session.graph().bytes(handle.tensor)));
  } else if (key == "shape") {
    lua_createtable(L, static_cast<int>(tensor.shape.size()), 0);
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      lua_pushnumber(L, static_cast<double>(tensor.shape[i]));
      lua_rawseti(L, -2, static_cast<int>(i + 1));
    }
  } else {
    return no_such_member(L);
  }
  return 1;
}

int op_to_string(lua_State* L) {
  const auto [session, op] = check_op(L, 1);
  push_text(L, session->graph().op(op).name);
  return 1;
}

}  // namespace

void open_ops(lua_State* L) {
  static constexpr luaL_Reg kOpMethods[] = {{"attr", method<op_attr>},
                                            {"consumers", method<op_consumers>},
                                            {"producers", method<op_producers>},
                                            {nullptr, nullptr}};
  static constexpr luaL_Reg kNone[] = {{nullptr, nullptr}};
  std::vector<std::string> op_names;
  for (const auto& [name, field] : op_fields()) op_names.emplace_back(name);
  new_type<OpHandle>(L, kOpType, kOpMethods, method<op_index>, op_names);
  set_metamethod(L, kOpType, "__tostring", method<op_to_string>);
  new_type<TensorHandle>(L, kTensorType, kNone, method<tensor_index>,
                         {"name", "dtype", "kind", "bytes", "shape"});
}

}  // namespace moe::lua
