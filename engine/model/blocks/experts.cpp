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

/// The exchange by which all ranks of a group over etp, each of which has a part of the products of
/// the same experts, get all rows, and that of the way back, of which each rank sums its own
/// (Megatron-Core's parallel folding, Liu et al. 2025: an all-gather and a reduce-scatter). Without
/// etp both functions return the rows.
class Repeated {
 public:
  /// counts: those of the gate.
  Repeated(ModelBuilder& b, TensorId counts) : b_(b), group_(b.grid().over(Axis::kEtp)) {
    if (group_.size == 1) return;
    const Group experts = b.grid().over(Axis::kEp);
    if (experts.size > 1) {
      counts = b.op("exchange_counts", "moe.exchange_counts", {counts},
                    group_attrs(experts, b.graph().num_ranks));
    }
    received_ = counts;
    counts_ = b.op("repeat_rows", "moe.repeat_counts", {counts}, {{"times", group_.size}});
  }
  TensorId to_all(TensorId rows) const {
    if (group_.size == 1) return rows;
    rows = b_.op("repeat_rows", "moe.repeat", {rows, received_}, {{"times", group_.size}});
    return b_.op("all_to_all", "moe.to_all", {rows, counts_}, attrs("expert"));
  }
  TensorId summed(TensorId rows) const {
    if (group_.size == 1) return rows;
    Attrs back = attrs("source");
    const Shape& sent = b_.graph().tensor(counts_).shape;
    if (sent.size() == 2) back["sources"] = sent[1];
    rows = b_.op("all_to_all", "moe.from_all", {rows, counts_}, back);
    return b_.op("sum_repeats", "moe.sum", {rows, received_}, {{"times", group_.size}});
  }

 private:
  Attrs attrs(const char* to) const {
    Attrs attrs = group_attrs(group_, b_.graph().num_ranks);
    attrs["to"] = std::string(to);
    attrs["repeated"] = int64_t{1};
    return attrs;
  }

  ModelBuilder& b_;
  const Group group_;
  TensorId received_, counts_;  // of the rows that the rank gets, and of those times the group
};

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
  const bool together = b.gate().shared_capacity > 0;
  const TensorId logits = b.op("gate_logits", "moe.logits", {x, gate_w, gate_b});
  std::vector<TensorId> inputs = {logits, together ? b.ids() : b.own_ids()};
  TensorId bias;
  if (o.choice_bias || b.spec().bias_balance.rate > 0) {
    bias = b.state("gate.bias", {b.spec().experts});
    inputs.insert(inputs.end(), {TensorId(), bias});
  }
  Attrs attrs = gate_attrs(b.gate(), o.residual_scale);
  if (o.bias_on == BiasOn::kLogits) attrs["bias_on"] = std::string(name_of(o.bias_on));
  if (together) {
    const Attrs group = group_attrs(b.grid().over(Axis::kTp, Axis::kCp), b.graph().num_ranks);
    Attrs gathered = group;
    gathered["axis"] = int64_t{0};
    inputs.resize(4);
    inputs.push_back(b.op("gather_rows", "moe.all_logits", {logits}, gathered));
    attrs.merge(Attrs(group));
    attrs.insert({{"context", b.spec().cp},
                  {"sequences", b.spec().batch_per_device},
                  {"all_capacity", b.gate().shared_capacity}});
  }
  const OpId gate = b.add("gate", "moe.gate", std::move(inputs), std::move(attrs));
  b.add_router(gate, bias);
  return gate;
}

}  // namespace

TensorId experts(ModelBuilder& b, const In& in, const Experts& o) {
  using Init = ParamInfo::Init;
  const int64_t d = b.width(in.x), n = b.spec().experts, rows1 = o.form.fc1_rows();
  const auto bias = [&](const char* name, int64_t length, Held held) {
    return o.form.bias ? b.parameter(name, {n, length}, Init::kZero, held) : TensorId();
  };
  const Held fc1 = b.experts(1, o.form.form == Activation::kSiluMul ? 2 : 1);
  const TensorId gate_w = b.parameter("gate.w", {n, d}, Init::kUniform);
  const TensorId gate_b = o.router_bias ? b.parameter("gate.b", {n}, Init::kZero) : TensorId();
  const TensorId w1 = b.parameter("ex.fc1.w", {n, rows1, d}, Init::kUniform, fc1);
  const TensorId b1 = bias("ex.fc1.b", rows1, fc1);
  const TensorId w2 = b.parameter("ex.fc2.w", {n, d, o.form.ffn}, Init::kUniform, b.experts(2));
  const TensorId b2 = bias("ex.fc2.b", d, b.experts());
  const OpId gate = route(b, in.x, gate_w, gate_b, o);
  const auto routed = [&b, gate](size_t i) { return b.graph().out(gate, i); };
  const TensorId weight = routed(1), choice_slot = routed(3), slot_choice = routed(4);
  const TensorId counts = routed(5);
  b.begin_segment(Segment::kDispatch);
  TensorId rows = b.op("dispatch", "moe.dispatch", {in.x, slot_choice, choice_slot, counts},
                       {{"k", b.gate().columns}});
  const Repeated repeated(b, counts);
  rows = exchange(b, "moe.a2a_1", rows, counts, "expert");
  rows = repeated.to_all(rows);
  b.begin_segment(Segment::kExpert);
  const Attrs all_rows = {{"rows", std::string("capacity")}};
  rows = activated(b, o.form, "moe", "expert_linear", rows, w1, b1, all_rows);
  Attrs once = all_rows;
  if (b.spec().etp > 1 && b2.valid()) once["bias_of"] = b.spec().etp;
  rows = b.op("expert_linear", "moe.fc2", {rows, w2, b2}, once);
  b.begin_segment(Segment::kCombine);
  rows = repeated.summed(rows);
  rows = exchange(b, "moe.a2a_2", rows, counts, "source");
  const Attrs shape = in.residual.valid() ? Attrs() : ops::seq_attr(b.graph().tensor(in.x).shape);
  return b.op("combine", "moe.combine", {rows, weight, choice_slot, in.residual, slot_choice},
              shape);
}

}  // namespace moe::blocks
