// The builder `b` of models: build(b, o) of an architecture in Lua declares parameters and adds ops
// with it, by blocks (engine/model/blocks.h) or one by one. Blocks of a model count from 1.
#include "bindings/policy/model.h"
#include "bindings/host/core.h"
#include "bindings/host/field_json.h"
#include "bindings/host/host.h"
#include "bindings/host/job.h"
#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"
#include "engine/base/names.h"
#include "engine/model/blocks.h"
#include "engine/ops/ops.h"

namespace moe::lua {
namespace {

using nlohmann::json;

struct BuilderHandle {
  uint32_t session;
};
constexpr const char* kBuilderType = "builder";
constexpr int64_t kMostBlocks = 4096;

/// The session of the builder at index 1, whose graph may be edited.
GraphSession& check_session(lua_State* L) {
  GraphSession& session =
      GraphSession::of(L, check_userdata<BuilderHandle>(L, 1, kBuilderType).session);
  session.edit();
  return session;
}

ModelBuilder& check_builder(lua_State* L) {
  return *check_session(L).builder();
}

/// Begins the segment that the table at `index` gives in its field `seg`, if any.
void begin_segment(lua_State* L, int index, ModelBuilder& builder) {
  lua_getfield(L, index, "seg");
  if (!lua_isnil(L, -1))
    builder.begin_segment(value_named<Segment>("seg", luaL_checkstring(L, -1)));
  lua_pop(L, 1);
}

int builder_ids(lua_State* L) {
  GraphSession& session = check_session(L);
  session.push_tensor(L, session.builder()->ids());
  return 1;
}

int builder_targets(lua_State* L) {
  GraphSession& session = check_session(L);
  session.push_tensor(L, session.builder()->targets());
  return 1;
}

// b:block(i) begins block i of the model, from 1; b:block() ends it.
int builder_block(lua_State* L) {
  ModelBuilder& builder = check_builder(L);
  builder.begin_block(lua_isnoneornil(L, 2) ? -1 : check_index(L, 2, kMostBlocks, "b:block"));
  return 0;
}

std::string text_field(lua_State* L, const char* what, const char* key) {
  lua_getfield(L, 2, key);
  if (lua_type(L, -1) != LUA_TSTRING) throw user_error("{}: {}: give a string", what, key);
  std::string text = lua_tostring(L, -1);
  lua_pop(L, 1);
  return text;
}

Shape check_shape(lua_State* L, int index, const char* what) {
  if (!lua_istable(L, index)) throw user_error("{}: shape: give a list of lengths", what);
  Shape shape;
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    shape.push_back(check_index(L, -1, int64_t{1} << 40, what) + 1);
    lua_pop(L, 1);
  }
  return shape;
}

// b:all_rows(x, name), b:sum_to_own_rows(x, name) -> a tensor.
template <TensorId (ModelBuilder::*kRows)(std::string_view, TensorId)>
int builder_rows(lua_State* L) {
  GraphSession& session = check_session(L);
  const TensorId x = check_tensor(L, 2, session);
  session.push_tensor(L, (session.builder()->*kRows)(luaL_checkstring(L, 3), x));
  return 1;
}

// b:own(n, what) -> how many of n of `what` a rank has.
int builder_own(lua_State* L) {
  const int64_t n = check_index(L, 2, int64_t{1} << 40, "b:own") + 1;
  lua_pushinteger(L, static_cast<lua_Integer>(check_builder(L).own(luaL_checkstring(L, 3), n)));
  return 1;
}

// b:parameter{ name=, shape={...}, init=, experts=, split_axis=, blocks= } -> its tensor.
int builder_parameter(lua_State* L) {
  GraphSession& session = check_session(L);
  lua_settop(L, 2);
  luaL_checktype(L, 2, LUA_TTABLE);
  check_keys(L, 2, "b:parameter", {"name", "shape", "init", "experts", "split_axis", "blocks"});
  const std::string name = text_field(L, "b:parameter", "name");
  lua_getfield(L, 2, "init");
  const auto init = lua_isnil(L, -1)
                        ? ParamInfo::Init::kUniform
                        : value_named<ParamInfo::Init>("init", luaL_checkstring(L, -1));
  lua_getfield(L, 2, "experts");
  const bool experts = lua_toboolean(L, -1) != 0;
  if (const int64_t etp = session.builder()->spec().etp; experts && etp > 1) {
    throw user_error(
        "b:parameter: '{}': grid.etp = {} splits the experts of b:experts alone; use them, or etp "
        "= 1",
        name, etp);
  }
  lua_getfield(L, 2, "shape");
  const Shape shape = check_shape(L, lua_gettop(L), "b:parameter: shape");
  Held held = {.moe = experts};
  lua_getfield(L, 2, "split_axis");
  if (!lua_isnil(L, -1)) {
    if (experts) throw user_error("b:parameter: '{}': give experts or split_axis, not both", name);
    const auto axes = static_cast<int64_t>(shape.size());
    const auto axis = static_cast<int8_t>(check_index(L, -1, axes, "b:parameter: split_axis"));
    lua_getfield(L, 2, "blocks");
    const int64_t blocks =
        lua_isnil(L, -1) ? 1 : check_index(L, -1, 127, "b:parameter: blocks") + 1;
    held = session.builder()->split(axis, static_cast<int8_t>(blocks));
  }
  session.push_tensor(L, session.builder()->parameter(name, shape, init, held));
  return 1;
}

// b:op{ kind=, name=, inputs={op or tensor or false, ...}, attrs={}, seg= } -> the new op.
int builder_op(lua_State* L) {
  GraphSession& session = check_session(L);
  lua_settop(L, 2);
  luaL_checktype(L, 2, LUA_TTABLE);
  check_keys(L, 2, "b:op", {"kind", "name", "inputs", "attrs", "seg"});
  const std::string kind = text_field(L, "b:op", "kind"), name = text_field(L, "b:op", "name");
  session.graph().table().kind(kind);  // throws UserError for an unknown kind
  begin_segment(L, 2, *session.builder());
  lua_getfield(L, 2, "inputs");
  const std::vector<TensorId> inputs = check_tensors(L, lua_gettop(L), session);
  lua_getfield(L, 2, "attrs");
  const Attrs attrs = check_attrs(L, lua_gettop(L), "b:op");
  session.push_op(L, session.builder()->add(kind, name, inputs, attrs));
  return 1;
}

template <class O>
using BlockFunction = TensorId (*)(ModelBuilder&, const blocks::In&, const O&);

/// Whether the block reads a tensor x.
template <class O>
constexpr bool kReads = !std::is_same_v<O, blocks::Embedding> && !std::is_same_v<O, blocks::Rope>;

/// The member of blocks::In that a tensor of this name is.
TensorId& tensor_of(blocks::In& in, std::string_view name) {
  return name == "residual" ? in.residual : in.angles;
}

/// Reads the options of a block from the table at `index`.
template <class O>
O block_options(lua_State* L, int index, const std::string& what) {
  std::vector<std::string> names(O::kTensors.begin(), O::kTensors.end());
  names.emplace_back("seg");
  O options;
  for_each_field(options,
                 [&](const std::string& name, const auto&, const auto&) { names.push_back(name); });
  check_keys(L, index, what, names);
  json given = to_json(L, index, true);
  if (!given.is_object()) given = json::object();
  const Fields fields(given, what);
  for_each_field(options, [&]<class M>(const std::string& name, const auto&, const M&) {
    if constexpr (std::is_integral_v<M> && !std::is_same_v<M, bool>) {
      if (fields.has(name.c_str())) fields.integer(name.c_str());  // throws for a fraction
    }
  });
  read_fields(fields, options);
  check_fields(options, what);
  // A required number may not be its default, which check_fields() allows.
  for_each_field(options, [&]<class Row, class M>(const std::string& name, const Row& row,
                                                  const M& value) {
    if constexpr (std::is_arithmetic_v<M>) {
      if (row.required && static_cast<double>(value) < row.lo) {
        throw user_error("{}.{} = {}: must be from {} to {}", what, name, value, row.lo, row.hi);
      }
    }
  });
  return options;
}

// b:BLOCK(x, { options }) -> its output; a block that reads no x takes only the table.
template <class O, BlockFunction<O> kBlock>
int builder_block_of(lua_State* L) {
  GraphSession& session = check_session(L);
  blocks::In in;
  if (kReads<O>) in.x = check_tensor(L, 2, session);
  const int table = kReads<O> ? 3 : 2;
  lua_settop(L, table);
  if (lua_isnil(L, table)) {
    lua_newtable(L);
    lua_replace(L, table);
  }
  luaL_checktype(L, table, LUA_TTABLE);
  const O options = block_options<O>(L, table, fmt::format("b:{}", O::kName));
  for (const char* name : O::kTensors) {
    lua_getfield(L, table, name);
    if (!lua_isnil(L, -1)) tensor_of(in, name) = check_tensor(L, lua_gettop(L), session);
  }
  begin_segment(L, table, *session.builder());
  session.push_tensor(L, kBlock(*session.builder(), in, options));
  return 1;
}

/// Returns the type of a member of a block's options as type stubs write it.
template <class M>
std::string type_text() {
  if constexpr (HasNames<M>) {
    std::string text;
    for (const char* name : names_of(M())) {
      text += fmt::format("{}\"{}\"", text.empty() ? "" : "|", name);
    }
    return text;
  } else if constexpr (std::is_same_v<M, bool>) {
    return "boolean";
  } else if constexpr (std::is_same_v<M, std::string>) {
    return "string";
  } else if constexpr (std::is_floating_point_v<M>) {
    return "number";
  } else {
    return "integer";
  }
}

/// Returns the signature of a block's method.
template <class O>
std::string signature() {
  std::string fields;
  O options;
  for_each_field(
      options, [&]<class Row, class M>(const std::string& name, const Row& row, const M&) {
        fields += fmt::format("{}{}: {}, ", name, row.required ? "" : "?", type_text<M>());
      });
  for (const char* name : O::kTensors) fields += fmt::format("{}?: moe.Op|moe.Tensor, ", name);
  const char* x = kReads<O> ? "x: moe.Op|moe.Tensor, " : "";
  return fmt::format("({}o: {{ {}seg?: string }}): moe.Tensor", x, fields);
}

/// Returns the method of a block. Its signature is made once, when the first Lua state opens.
template <class O, BlockFunction<O> kBlock>
Member block_member() {
  static const std::string type = signature<O>();
  return {O::kName, type.c_str(), O::kDoc, method<builder_block_of<O, kBlock>>};
}

/// Returns { parameters = { { name, elements, expert } }, flops = of the forward of a step } of a
/// model.
json counts_of(const Model& model) {
  json parameters = json::array();
  for (const ParamInfo& info : model.parameters) {
    parameters.push_back(
        {{"name", info.name}, {"elements", num_elements(info.shape)}, {"expert", info.held.moe}});
  }
  double flops = 0;
  for (const Op& op : model.forward.ops()) {
    flops += model.forward.def(op).work(model.forward, op, WorkContext{1}).flops;
  }
  return {{"parameters", parameters}, {"flops", flops}};
}

// core.model_counts({ model, build }): builds the model for one rank, with a gate of k choices, and
// returns its counts.
int model_counts(lua_State* L) {
  Host& host = Host::of(L);
  push_json(L, broadcast_from_root(host, "model", [&] {
              const json values = to_json(L, 1, true);
              const json& options = values.at("model");
              ModelSpec spec = model_of({options, "model"});
              spec.ep = 0;
              const GateSpec gate = gate_spec(spec, builtin_gate("top_k"));
              return counts_of(*build_model(L, 1, options, spec, gate, 1));
            }));
  return 1;
}

}  // namespace

void open_builder(lua_State* L) {
  set_functions(L, {{"model_counts", core_function<model_counts>}});
  static const Member kBuilder[] = {
      {"ids", "moe.Tensor", "the input tokens [batch_per_device, seq]", builder_ids},
      {"targets", "moe.Tensor", "the tokens that the model is to predict", builder_targets},
      {"block", "(i?: integer)",
       "begins block i of the model, from 1: names that follow get the prefix 'b<i-1>.'; without "
       "i, what follows is in no block",
       method<builder_block>},
      {"parameter",
       "(t: { name: string, shape: integer[], init?: \"uniform\"|\"one\"|\"zero\", experts?: "
       "boolean, split_axis?: integer, blocks?: integer }): moe.Tensor",
       "declares a parameter; with experts = true its first axis is the experts; split_axis: the "
       "one of which each rank of a group over tp has a part, or a part of each of its `blocks` "
       "equal blocks",
       method<builder_parameter>},
      {"all_rows", "(x: moe.Op|moe.Tensor, name: string): moe.Tensor",
       "the rows of all ranks of a group over tp, which split the tokens of a sequence between "
       "products; their gradients are summed",
       method<builder_rows<&ModelBuilder::all_rows>>},
      {"sum_to_own_rows", "(x: moe.Op|moe.Tensor, name: string): moe.Tensor",
       "a rank's own rows of the sum of x over the ranks of a group over tp",
       method<builder_rows<&ModelBuilder::sum_to_own_rows>>},
      {"own", "(n: integer, what: string): integer",
       "how many of n of `what`, such as heads, a rank of a group over tp has",
       method<builder_own>},
      {"op",
       "(t: { kind: string, name: string, inputs: (moe.Op|moe.Tensor|false)[], attrs?: table, "
       "seg?: string }): moe.Op",
       "adds an op; an op among inputs means its first output; seg: the segment of this op and of "
       "those that follow",
       method<builder_op>},
      block_member<blocks::Embedding, blocks::embedding>(),
      block_member<blocks::Layernorm, blocks::layernorm>(),
      block_member<blocks::Rmsnorm, blocks::rmsnorm>(),
      block_member<blocks::Rope, blocks::rope>(),
      block_member<blocks::Attention, blocks::attention>(),
      block_member<blocks::GroupedAttention, blocks::grouped_attention>(),
      block_member<blocks::LatentAttention, blocks::latent_attention>(),
      block_member<blocks::FeedForward, blocks::feed_forward>(),
      block_member<blocks::Experts, blocks::experts>(),
      block_member<blocks::Head, blocks::head>()};
  new_type<BuilderHandle>(
      L, {kBuilderType, "b", "the builder of a model: blocks, and below them every op", kBuilder});
}

std::shared_ptr<Model> build_model(lua_State* L, int index, const json& options,
                                   const ModelSpec& spec, const GateSpec& gate, int64_t num_ranks) {
  GraphSession session(L, Graph(op_table()), fmt::format("model '{}'", spec.name));
  ModelBuilder builder(session.edit(), spec, gate, num_ranks);
  session.set_builder(&builder);
  lua_getfield(L, index, "build");
  push_userdata<BuilderHandle>(L, kBuilderType, session.serial());
  push_json(L, options);
  session.call(L, 2, 0, session.what());
  auto model = std::make_shared<Model>(builder.finish());
  return model;
}

}  // namespace moe::lua
