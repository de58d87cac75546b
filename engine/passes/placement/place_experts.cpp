#include "engine/passes/placement/place_experts.h"

#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The shadow slots that one copy_experts op fills: [begin, end) in sixteenths of a slot. beside:
/// the compute that may hide the op. suffix: of the op's name.
struct Copies {
  int64_t begin, end;
  const char *beside, *suffix;
};

/// Seconds of compute between two MoE layers, or before the first.
struct Between {
  double forward_s = 0, backward_s = 0;
};

class Placer {
 public:
  Placer(Graph graph, const PlacementStage& stage, const PassContext& context)
      : graph_(std::move(graph)),
        stage_(stage),
        context_(context),
        group_(context.model.grid(graph_.num_ranks).over(Axis::kEp)) {}

  Graph run() {
    for (const OpId op : graph_.op_ids()) check_free(op);
    const std::vector<ExchangedLayer> layers = exchanged_layers(graph_);
    if (layers.empty()) return std::move(graph_);
    between_ = time_before(layers.front().dispatch);
    int64_t number = 0;
    for (const ExchangedLayer& layer : layers) place(layer, number++);
    const std::vector<OpId> order = this->order();
    infer_shapes(graph_, order);
    return with_order(graph_, order);
  }

 private:
  /// Throws UserError when the op is the `place` op of an earlier stage, or an exchange of rows
  /// that is cut or not among the ranks that hold all experts together.
  void check_free(OpId id) const {
    const Op& op = graph_.op(id);
    if (is(graph_, id, MoeOp::kPlace)) {
      throw user_error(
          "stage '{}': stage '{}' has already placed the experts; at most one placement per system "
          "is allowed",
          context_.stage, attr_string(op, "stage"));
    }
    if (!carries(graph_, id, Payload::kRows)) return;
    const char* why = nullptr;
    if (op.part >= 0) why = "is one part of a cut all-to-all";
    if (op.rows.round.of > 1) why = "is cut into rounds";
    if (group_of(graph_, op) != group_) why = "is one step of an exchange";
    if (why == nullptr) return;
    throw user_error(
        "stage '{}': all-to-all '{}' {}; a placement needs uncut all-to-alls among the ranks that "
        "hold all experts",
        context_.stage, op.name, why);
  }

  /// Returns the time of the compute before op `end`.
  Between time_before(OpId end) const {
    Between time;
    if (!context_.cost.has_times()) return time;
    for (const OpId op : graph_.op_ids(0, end.index())) {
      if (graph_.def(op).lane != LaneKind::kCompute) continue;
      time.forward_s += static_cast<double>(context_.cost.op_ns(graph_, op)) * 1e-9;
    }
    time.backward_s = 2 * time.forward_s;  // as in fit_placement_rates()
    return time;
  }

  PlacementBounds bounds() const {
    const int64_t experts = context_.model.experts, devices = group_.size;
    PlacementBounds bounds = {.experts = experts,
                              .devices = devices,
                              .residents = (experts + devices - 1) / devices,
                              .shadows = std::min(stage_.shadows, experts),
                              .weighted = stage_.weighted};
    bounds.residents = std::min(experts, bounds.residents + stage_.extra_residents);
    check(bounds);
    return bounds;
  }

  void place(const ExchangedLayer& layer, int64_t number) {
    bounds_ = bounds();
    attrs_ = ops::bounds_attrs(bounds_);
    attrs_.merge(group_attrs(group_, graph_.num_ranks));
    const std::string prefix = fmt::format("b{}.moe.", graph_.op(layer.gate).layer);
    PlacementRates rates = fit_placement_rates(graph_, layer.there, context_);
    const Between behind = {rates.forward_other_s, rates.backward_other_s};
    rates.forward_other_s = between_.forward_s, rates.backward_other_s = between_.backward_s;
    between_ = behind;
    const TensorId state =
        graph_.add_tensor({fmt::format("b{}.placement", graph_.op(layer.gate).layer),
                           {Placement::code_size(bounds_)},
                           DType::kI32,
                           TensorKind::kState});
    const RowsOrigin origin = origin_of_rows(graph_, graph_.out(layer.there), prefix);
    const OpId gather = add(ops::kGatherLoads, prefix + "loads", {origin.counts}, {}, layer.gate,
                            Segment::kDispatch);
    before_[layer.dispatch].push_back(gather);
    Attrs plan = attrs_;
    plan.merge(ops::rate_attrs(rates));
    plan.merge(ops::option_attrs(stage_.options));
    plan["policy"] = stage_.policy;
    plan["every"] = stage_.every;
    plan["layer_number"] = number;
    plan["stage"] = context_.stage;
    plan["moves"] = int64_t{stage_.moves_residents};
    if (stage_.plan_s > 0) plan["plan_s"] = stage_.plan_s;
    if (stage_.static_rows > 0) plan["static_rows"] = stage_.static_rows;
    const bool now = stage_.use == PlacementUse::kNow;
    plan["use"] = std::string(now ? "now" : "next");
    const OpId make = add(ops::kPlace, prefix + "place", {graph_.out(gather), state}, plan,
                          layer.gate, now ? Segment::kDispatch : Segment::kUpdate);
    const TensorId in_force = now ? graph_.out(make) : state;
    if (now) {
      before_[layer.dispatch].push_back(make);
    } else {
      graph_.op(make).phase = Phase::kUpdate;
      last_.push_back(make);
    }
    const OpId rows = add(ops::kSlotRows, prefix + "slot_rows", {graph_.out(gather), in_force},
                          attrs_, layer.gate, Segment::kDispatch);
    before_[layer.dispatch].push_back(rows);
    send_by_slot(graph_, layer, bounds_, origin.counts, in_force, graph_.out(rows));
    if (stage_.split && number > 0) cut_ = hidden_between(rates, bounds_.shadows);
    widen_parameters(layer, in_force, prefix);
  }

  OpId add(const OpDef& kind, const std::string& name, std::vector<TensorId> inputs, Attrs attrs,
           OpId like, Segment segment) {
    const OpId made = graph_.add_op(kind, name, std::move(inputs), std::move(attrs));
    graph_.op(made).segment = segment;
    graph_.op(made).layer = graph_.op(like).layer;
    return made;
  }

  /// Returns what each copy_experts op (one or two) fills, last slots first: sub-Trans A is sent
  /// before B, and autodiff, which goes backwards, makes the gradients of B return first.
  std::vector<Copies> cut_copies(const std::vector<TensorId>& parameters) const {
    constexpr int64_t kWhole = ExpertShare::kWhole;
    const bool divisible = std::all_of(parameters.begin(), parameters.end(), [&](TensorId t) {
      return graph_.tensor(t).shape[1] >= kWhole;
    });
    const int64_t all = kWhole * bounds_.shadows, cut = divisible ? cut_ : cut_ - cut_ % kWhole;
    if (cut == 0) return {{0, all, "experts", ""}};
    if (cut == all) return {{0, all, "between", ""}};
    return {{cut, all, "experts", "_a"}, {0, cut, "between", "_b"}};
  }

  /// Gives each parameter of the experts bounds_.residents slots, and adds the ops that copy
  /// parameters into the shadow slots, which come after these in the same storage.
  void widen_parameters(const ExchangedLayer& layer, TensorId placement,
                        const std::string& prefix) {
    std::vector<TensorId> parameters;
    std::vector<std::pair<OpId, size_t>> readers;
    for (const OpId id : layer.experts) {
      const Op& op = graph_.op(id);
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (!op.inputs[i].valid() || graph_.tensor(op.inputs[i]).kind != TensorKind::kParam)
          continue;
        parameters.push_back(op.inputs[i]);
        readers.emplace_back(id, i);
      }
    }
    for (const TensorId t : parameters) graph_.tensor(t).shape[0] = bounds_.residents;
    if (bounds_.shadows == 0) return;
    std::vector<TensorId> inputs = {placement};
    inputs.insert(inputs.end(), parameters.begin(), parameters.end());
    const bool now = stage_.use == PlacementUse::kNow;
    std::vector<OpId>& where = now ? before_[layer.dispatch] : first_;
    std::vector<OpId> copies;
    for (const Copies& which : cut_copies(parameters)) {
      where.push_back(add(ops::kCopyExperts, prefix + "copy" + which.suffix, inputs,
                          copy_attrs(which), layer.gate, Segment::kExpert));
      copies.push_back(where.back());
    }
    const auto join = [&](const std::string& name, const std::vector<TensorId>& parts,
                          int64_t axis) {
      const OpId whole = add(ops::kConcat, name, parts, {{"axis", axis}, {"view", int64_t{1}}},
                             layer.gate, Segment::kExpert);
      graph_.tensor(graph_.out(whole)).held.moe = true;
      where.push_back(whole);
      return graph_.out(whole);
    };
    for (size_t i = 0; i < parameters.size(); ++i) {
      const std::string name = graph_.tensor(parameters[i]).name;
      std::vector<TensorId> parts = {parameters[i]};
      for (size_t c = copies.size(); c-- > 0;) {  // in ascending order of slots
        const std::vector<ShadowRange> ranges = ops::shadow_ranges(graph_.op(copies[c]));
        for (size_t r = 0; r < ranges.size(); ++r) {
          const TensorId copy = graph_.out(copies[c], r * parameters.size() + i);
          graph_.tensor(copy).held.moe = true;
          if (ranges[r].share.begin > 0) {
            parts.back() = join(name + ".slot", {parts.back(), copy}, 1);
          } else {
            parts.push_back(copy);
          }
        }
      }
      graph_.op(readers[i].first).inputs[readers[i].second] = join(name + ".slots", parts, 0);
    }
  }

  Attrs copy_attrs(const Copies& copies) const {
    constexpr int64_t kWhole = ExpertShare::kWhole;
    Attrs attrs = attrs_;
    attrs["first"] = copies.begin / kWhole;
    attrs["last"] = (copies.end + kWhole - 1) / kWhole;
    if (copies.begin % kWhole > 0) attrs["begin"] = copies.begin % kWhole;
    if (copies.end % kWhole > 0) attrs["end"] = copies.end % kWhole;
    attrs["expected"] = stage_.expected_copies;
    attrs["beside"] = std::string(copies.beside);
    if (context_.cost.network() != nullptr) {
      attrs["devices_per_node"] = context_.cost.network()->devices_per_node;
    }
    return attrs;
  }

  std::vector<OpId> order() const {
    std::vector<OpId> order = first_;
    std::vector<bool> placed(graph_.num_ops());
    const auto mark = [&](const std::vector<OpId>& ops) {
      for (const OpId op : ops) placed[op.index()] = true;
    };
    mark(first_);
    mark(last_);
    for (const auto& [op, ops] : before_) mark(ops);
    for (const OpId op : graph_.op_ids()) {
      if (placed[op.index()]) continue;
      if (const auto added = before_.find(op); added != before_.end()) {
        order.insert(order.end(), added->second.begin(), added->second.end());
      }
      order.push_back(op);
    }
    order.insert(order.end(), last_.begin(), last_.end());
    return order;
  }

  Graph graph_;
  const PlacementStage& stage_;
  const PassContext& context_;
  const Group group_;  // ranks that hold all experts together; its places are a placement's devices
  PlacementBounds bounds_;
  Attrs attrs_;      // attributes made of bounds_ and group_
  Between between_;  // the compute outside experts beside which the next layer's copies travel
  int64_t cut_ = 0;  // hidden_between() of a layer, in sixteenths; 0 of the first
  std::vector<OpId> first_, last_;            // ops at the beginning and at the end of the program
  std::map<OpId, std::vector<OpId>> before_;  // new ops that come before an op
};

}  // namespace

Graph place_experts(Graph graph, const PlacementStage& stage, const PassContext& context) {
  return Placer(std::move(graph), stage, context).run();
}

/// Calls place_experts with the built-in policy and the options that the stage names. Throws
/// UserError also for use = 'now' with a policy that moves residents.
Graph place_by_policy(Graph graph, const PassContext& context) {
  const auto number = [&](const char* name) {
    return static_cast<int64_t>(std::get<double>(context.options.at(name)));
  };
  const std::vector<PlacementPolicy>& all = builtin_policies();
  const auto found = std::find_if(all.begin(), all.end(), [&](const PlacementPolicy& one) {
    return one.pass() == context.stage;
  });
  MOE_CHECK(found != all.end(),
            "stage '{}' must have the name of a built-in placement policy's pass, but has not",
            context.stage);
  const PlacementPolicy& policy = *found;
  PlacementStage stage;
  stage.policy = policy.name;
  const bool now = std::get<std::string>(context.options.at("use")) == "now";
  stage.use = now ? PlacementUse::kNow : PlacementUse::kNext;
  stage.every = number("every");
  stage.shadows = number("shadows");
  stage.extra_residents = number("extra_residents");
  stage.plan_s = std::get<double>(context.options.at("plan_us")) * 1e-6;
  stage.expected_copies = std::get<double>(context.options.at("expected_copies"));
  stage.split = std::get<bool>(context.options.at("split"));
  for (const OptionSpec& option : policy.options) {
    stage.options[option.name] = std::get<double>(context.options.at(option.name));
  }
  stage.options = resolved(policy, stage.options);
  stage.moves_residents = policy.moves_residents;
  stage.weighted = policy.defaults.weighted;
  if (now && policy.moves_residents) {
    throw user_error(
        "{}.use = 'now': this policy moves experts with their optimizer state, so its placements "
        "take effect in the next step; allowed: 'next'",
        context.stage);
  }
  return place_experts(std::move(graph), stage, context);
}

}  // namespace moe
