#include "engine/graph/op_def.h"
#include "engine/model/blocks.h"
#include "engine/ops/rules.h"

namespace moe::blocks {
namespace {

/// Adds the all-to-all of `rows` and returns its output. Where one rank holds every expert, returns
/// `rows`: nothing is exchanged, and their shape is [E,C,d] (experts, capacity, hidden).
TensorId exchange(ModelBuilder& b, std::string_view name, TensorId rows, TensorId counts,
                  const char* to) {
  const Group group = b.grid().over(Axis::kEp);
  if (group.size == 1) return rows;
  Attrs attrs = group_attrs(group, b.graph().num_ranks);
  attrs["to"] = std::string(to);
  return b.op("all_to_all", name, {rows, counts}, attrs);
}

/// Attributes that have their default are left out, so that they change no plan's hash.
Attrs gate_attrs(const GateSpec& gate, double factor) {
  Attrs attrs = {{"gate", gate.name},
                 {"k", gate.k},
                 {"columns", gate.columns},
                 {"capacity", gate.capacity},
                 {"scores", gate.scores},
                 {"weight", gate.weight},
                 {"scope", std::string(gate.batch_scope ? "batch" : "token")}};
  if (gate.scale * factor != 1) attrs["scale"] = gate.scale * factor;
  if (!gate.groups.limits()) return attrs;
  attrs["groups"] = gate.groups.groups;
  attrs["top_groups"] = gate.groups.top;
  attrs["group_score"] = std::string(name_of(gate.groups.score));
  return attrs;
}

/// Adds the router and the gate. gate_b: not valid if the router has no bias. A factor of what is
/// added to the residual is a factor of the gate's weights.
OpId route(ModelBuilder& b, TensorId x, TensorId gate_w, TensorId gate_b, const Experts& o) {
  b.begin_segment(Segment::kGate);
  std::vector<TensorId> inputs = {b.op("gate_logits", "moe.logits", {x, gate_w, gate_b}),
                                  b.own_ids()};
  TensorId bias;
  if (o.choice_bias || b.spec().bias_balance.rate > 0) {
    bias = b.state("gate.bias", {b.spec().experts});
    inputs.insert(inputs.end(), {TensorId(), bias});
  }
  Attrs attrs = gate_attrs(b.gate(), o.residual_scale);
  if (o.bias_on == BiasOn::kLogits) attrs["bias_on"] = std::string(name_of(o.bias_on));
  const OpId gate = b.add("gate", "moe.gate", std::move(inputs), std::move(attrs));
  b.add_router(gate, bias);
  return gate;
}

}  // namespace

TensorId experts(ModelBuilder& b, const In& in, const Experts& o) {
  using Init = ParamInfo::Init;
  const int64_t d = b.width(in.x), n = b.spec().experts, rows1 = o.form.fc1_rows();
  const auto bias = [&](const char* name, int64_t length) {
    return o.form.bias ? b.parameter(name, {n, length}, Init::kZero, {.moe = true}) : TensorId();
  };
  const TensorId gate_w = b.parameter("gate.w", {n, d}, Init::kUniform);
  const TensorId gate_b = o.router_bias ? b.parameter("gate.b", {n}, Init::kZero) : TensorId();
  const TensorId w1 = b.parameter("ex.fc1.w", {n, rows1, d}, Init::kUniform, {.moe = true});
  const TensorId b1 = bias("ex.fc1.b", rows1);
  const TensorId w2 = b.parameter("ex.fc2.w", {n, d, o.form.ffn}, Init::kUniform, {.moe = true});
  const TensorId b2 = bias("ex.fc2.b", d);
  const OpId gate = route(b, in.x, gate_w, gate_b, o);
  const auto routed = [&b, gate](size_t i) { return b.graph().out(gate, i); };
  const TensorId weight = routed(1), choice_slot = routed(3), slot_choice = routed(4);
  const TensorId counts = routed(5);
  b.begin_segment(Segment::kDispatch);
  TensorId rows = b.op("dispatch", "moe.dispatch", {in.x, slot_choice, choice_slot, counts},
                       {{"k", b.gate().columns}});
  rows = exchange(b, "moe.a2a_1", rows, counts, "expert");
  b.begin_segment(Segment::kExpert);
  const Attrs all_rows = {{"rows", std::string("capacity")}};
  rows = activated(b, o.form, "moe", "expert_linear", rows, w1, b1, all_rows);
  rows = b.op("expert_linear", "moe.fc2", {rows, w2, b2}, all_rows);
  b.begin_segment(Segment::kCombine);
  rows = exchange(b, "moe.a2a_2", rows, counts, "source");
  const Attrs shape = in.residual.valid() ? Attrs() : ops::seq_attr(b.graph().tensor(in.x).shape);
  return b.op("combine", "moe.combine", {rows, weight, choice_slot, in.residual, slot_choice},
              shape);
}

}  // namespace moe::blocks
