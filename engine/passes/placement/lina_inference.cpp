// Lina's inference scheduler in the forward graph: experts are kept in host memory, and a device
// gets those that its slots hold for this batch and layer.
#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"
#include "engine/placement/two_phase.h"

namespace moe {
namespace {

class InferencePlacer {
 public:
  InferencePlacer(Graph graph, const PassContext& context)
      : graph_(std::move(graph)),
        context_(context),
        group_(context.model.grid(graph_.num_ranks).over(Axis::kEp)),
        before_(graph_.num_ops()) {}

  Graph run() {
    for (const OpId op : graph_.op_ids()) check_free(op);
    layers_ = exchanged_layers(graph_);
    if (layers_.empty()) return std::move(graph_);
    const Model& model = context_.model;
    bounds_ = two_phase_bounds(model.experts, group_.size,
                               {.cap = number("cap"), .weighted = text("share") == "weighted"});
    attrs_ = ops::bounds_attrs(bounds_);
    attrs_.merge(group_attrs(group_, graph_.num_ranks));
    attrs_["seed"] = number("seed");
    attrs_["normalise"] = int64_t{flag("normalise")};
    const size_t first = !flag("estimation") ? 0 : flag("shorter") ? 1 : path();
    for (size_t i = first; i < layers_.size(); ++i) place(i);
    const std::vector<OpId> order = this->order();
    infer_shapes(graph_, order);
    return with_order(graph_, order);
  }

 private:
  int64_t number(const char* name) const {
    return static_cast<int64_t>(std::get<double>(context_.options.at(name)));
  }
  bool flag(const char* name) const { return std::get<bool>(context_.options.at(name)); }
  const std::string& text(const char* name) const {
    return std::get<std::string>(context_.options.at(name));
  }
  size_t path() const { return static_cast<size_t>(number("path")); }

  /// Throws UserError when the op is placed or cut, or its exchange is a step of one.
  void check_free(OpId id) const {
    const Op& op = graph_.op(id);
    if (op.part >= 0 || is(graph_, id, MoeOp::kPlace) || op.attrs.contains("residents")) {
      throw user_error(
          "stage '{}': op '{}' is already cut or placed by another stage; leave that stage out",
          context_.stage, op.name);
    }
    if (carries(graph_, id, Payload::kRows) && group_of(graph_, op) != group_) {
      throw user_error(
          "stage '{}': all-to-all '{}' is one step of an exchange; a placement needs one "
          "all-to-all among the ranks that hold all experts",
          context_.stage, op.name);
    }
  }

  OpId add(const OpDef& kind, const std::string& name, std::vector<TensorId> inputs, Attrs attrs,
           const ExchangedLayer& layer, OpId before) {
    const OpId made = graph_.add_op(kind, name, std::move(inputs), std::move(attrs));
    graph_.op(made).segment = Segment::kDispatch;
    graph_.op(made).layer = graph_.op(layer.gate).layer;
    before_[before.index()].push_back(made);
    return made;
  }

  /// Adds the ops by which all ranks estimate the loads of layer i from the paths of the tokens
  /// through the layers before it. They run before layer i - 1 dispatches its rows.
  TensorId expect(size_t i, const std::string& prefix) {
    const ExchangedLayer& layer = layers_[i];
    Attrs attrs = attrs_;
    attrs["layer_number"] = static_cast<int64_t>(i);
    attrs["path"] = number("path");
    std::vector<TensorId> choices;
    for (size_t j = i - std::min(i, path()); j < i; ++j) {
      choices.push_back(output_of(graph_, graph_.op(layers_[j].gate), Role::kExpert));
    }
    const OpId early = layers_[i - 1].dispatch;
    const OpId part = add(ops::kExpectExperts, prefix + "expect", choices, attrs, layer, early);
    return graph_.out(
        add(ops::kGatherLoads, prefix + "expected", {graph_.out(part)}, {}, layer, early));
  }

  /// A placement of a layer and the slots with the weights of its experts.
  struct Placed {
    TensorId placement;
    std::vector<TensorId> slots;
  };

  Placed swap_in(const std::string& name, TensorId placement, std::vector<TensorId> more,
                 const ExchangedLayer& layer, OpId before) {
    Attrs attrs = attrs_;
    if (more.size() > weights_.size()) attrs["keep"] = int64_t{1};
    std::vector<TensorId> inputs = {placement};
    inputs.insert(inputs.end(), more.begin(), more.end());
    const OpId swap = add(ops::kSwapIn, name, std::move(inputs), std::move(attrs), layer, before);
    return {placement, graph_.op(swap).outputs};
  }

  /// Adds the ops that place the experts of layer i by the estimate and copy their weights to slots
  /// while layer i - 1 runs its experts.
  Placed phase_1(size_t i, TensorId estimates, const std::string& prefix) {
    const OpId later = layers_[i - 1].experts.front();
    const OpId placed =
        add(ops::kPlaceExpected, prefix + "place_expected", {estimates}, attrs_, layers_[i], later);
    return swap_in(prefix + "swap_in", graph_.out(placed), weights_, layers_[i], later);
  }

  /// Adds the ops that place the experts of layer i by the counts of the gate and copy missing
  /// weights. In the run the placement `before` stays where the estimate is close enough; without
  /// an estimate there is no `before`, and the counts always decide.
  Placed phase_2(size_t i, TensorId loads, TensorId estimates, const Placed& before,
                 const std::string& prefix) {
    const ExchangedLayer& layer = layers_[i];
    Attrs attrs = attrs_;
    attrs["k"] = attr_int(graph_.op(layer.gate), "k", 1);
    attrs["compare"] = text("compare");
    std::vector<TensorId> inputs = {loads};
    if (estimates.valid()) {
      attrs["estimated"] = int64_t{1};
      inputs.insert(inputs.end(), {estimates, before.placement});
    }
    const TensorId placed = graph_.out(add(ops::kFineTune, prefix + "fine_tune", std::move(inputs),
                                           std::move(attrs), layer, layer.dispatch));
    if (!estimates.valid()) {
      return swap_in(prefix + "swap_in", placed, weights_, layer, layer.dispatch);
    }
    std::vector<TensorId> kept = {before.placement};
    kept.insert(kept.end(), weights_.begin(), weights_.end());
    kept.insert(kept.end(), before.slots.begin(), before.slots.end());
    return swap_in(prefix + "swap_again", placed, std::move(kept), layer, layer.dispatch);
  }

  void place(size_t i) {
    const ExchangedLayer& layer = layers_[i];
    const std::string prefix = fmt::format("b{}.moe.", graph_.op(layer.gate).layer);
    weights_ = take_weights(layer);
    TensorId estimates;
    Placed placed;
    if (flag("estimation")) {
      estimates = expect(i, prefix);
      placed = phase_1(i, estimates, prefix);
    }
    const TensorId counts =
        origin_of_rows(graph_, graph_.out(layer.there), prefix + "inference").counts;
    const TensorId loads =
        graph_.out(add(ops::kGatherLoads, prefix + "loads", {counts}, {}, layer, layer.dispatch));
    if (!estimates.valid() || flag("fine_tuning")) {
      placed = phase_2(i, loads, estimates, placed, prefix);
    }
    const OpId rows = add(ops::kSlotRows, prefix + "slot_rows", {loads, placed.placement}, attrs_,
                          layer, layer.dispatch);
    for (const OpId id : layer.experts) {
      for (TensorId& t : graph_.op(id).inputs) {
        const auto found = std::find(weights_.begin(), weights_.end(), t);
        if (t.valid() && found != weights_.end()) {
          t = placed.slots[static_cast<size_t>(found - weights_.begin())];
        }
      }
    }
    send_by_slot(graph_, layer, bounds_, counts, placed.placement, graph_.out(rows));
  }

  /// Returns the parameters of a layer's experts and gives each device the weights of all experts.
  std::vector<TensorId> take_weights(const ExchangedLayer& layer) {
    std::vector<TensorId> weights;
    for (const OpId id : layer.experts) {
      for (const TensorId t : graph_.op(id).inputs) {
        if (!t.valid() || graph_.tensor(t).kind != TensorKind::kParam) continue;
        graph_.tensor(t).shape[0] = bounds_.experts;
        weights.push_back(t);
      }
    }
    return weights;
  }

  std::vector<OpId> order() const {
    std::vector<OpId> order;
    for (size_t i = 0; i < before_.size(); ++i) {
      order.insert(order.end(), before_[i].begin(), before_[i].end());
      const OpId op(static_cast<int64_t>(i));
      if (!graph_.removed(op)) order.push_back(op);
    }
    return order;
  }

  Graph graph_;
  const PassContext& context_;
  const Group group_;  // ranks that hold all experts together; its places are a placement's devices
  std::vector<ExchangedLayer> layers_;
  PlacementBounds bounds_;
  Attrs attrs_;
  std::vector<TensorId> weights_;  // weights of the experts of the layer that is being placed
  std::vector<std::vector<OpId>> before_;  // new ops that come before each op of the given graph
};

}  // namespace

/// Lina's inference scheduler (USENIX ATC 2023, section 5) for a forward without a backward: the
/// weights of all experts are on every device, in its host memory. From layer `path` on, the
/// popularity of a layer's experts is estimated from the paths of the tokens after the gate of the
/// layer before. Experts are placed by this estimate and their weights are copied to slots (phase
/// 1), on a lane of kind kHost, while the layer before exchanges its rows and runs its experts.
/// After the gate, where its counts differ from the estimate, experts are placed again and the
/// missing weights are copied (phase 2). Earlier layers use plain expert parallelism, unless the
/// option shorter estimates them from shorter paths. Without estimation every layer is placed only
/// by its counts; without fine_tuning phase 1 is final. Weights are copied in every batch: slots
/// keep none from one batch to the next. Throws UserError for layers that are cut, placed or not
/// exchanged among the ranks that hold all experts. All groups of such ranks take the same
/// placement, by the estimates and counts of all.
Graph lina_inference(Graph graph, const PassContext& context) {
  return InferencePlacer(std::move(graph), context).run();
}

}  // namespace moe
