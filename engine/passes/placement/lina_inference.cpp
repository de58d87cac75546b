// Lina's inference scheduler in the forward graph: experts wait in host memory, and a device gets
// those that its slots hold in this batch and layer.
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
      : graph_(std::move(graph)), context_(context), before_(graph_.num_ops()) {}

  Graph run() {
    for (size_t i = 0; i < graph_.num_ops(); ++i) check_free(OpId(static_cast<int64_t>(i)));
    layers_ = exchanged_layers(graph_);
    if (layers_.empty()) return std::move(graph_);
    const ModelSpec& model = context_.model;
    bounds_ = two_phase_bounds(model.experts, graph_.num_ranks, {.cap = number("cap")});
    attrs_ = ops::bounds_attrs(bounds_);
    attrs_["seed"] = int64_t{0};
    attrs_["normalise"] = int64_t{std::get<bool>(context_.options.at("normalise"))};
    const bool estimates = std::get<bool>(context_.options.at("estimation"));
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool expected = static_cast<int64_t>(i) >= number("path");
      if (expected || !estimates) place(i, expected && estimates);
    }
    const std::vector<OpId> order = this->order();
    infer_shapes(graph_, order);
    return with_order(graph_, order);
  }

 private:
  int64_t number(const char* name) const {
    return static_cast<int64_t>(std::get<double>(context_.options.at(name)));
  }

  /// Nothing is placed or cut yet, and exchanges are among all ranks.
  void check_free(OpId id) const {
    const Op& op = graph_.op(id);
    if (graph_.removed(id)) return;
    if (op.part >= 0 || is(graph_, id, MoeOp::kPlace) || op.attrs.contains("residents")) {
      throw user_error("stage '{}': op '{}' is cut or placed already; this stage stands alone",
                       context_.stage, op.name);
    }
    if (carries(graph_, id, Payload::kRows) && group_of(graph_, op).size != graph_.num_ranks) {
      throw user_error(
          "stage '{}': all-to-all '{}' is among fewer than all ranks; model.ep "
          "and a placement exclude each other",
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

  /// What all ranks estimate of layer i's loads, which is there before its block begins. expected:
  /// by the paths that lead here; else by the layer's own choices.
  OpId expect(size_t i, bool expected, const std::string& prefix) {
    const ExchangedLayer& layer = layers_[i];
    Attrs attrs = attrs_;
    attrs["layer_number"] = expected ? static_cast<int64_t>(i) : 0;  // none leads to the first
    std::vector<TensorId> choices;
    const size_t first = expected ? i - static_cast<size_t>(number("path")) : i;
    for (size_t j = first; j < i; ++j) {
      choices.push_back(output_of(graph_, graph_.op(layers_[j].gate), Role::kExpert));
    }
    if (choices.empty()) choices.push_back(output_of(graph_, graph_.op(layer.gate), Role::kExpert));
    const OpId early = expected ? layers_[i - 1].dispatch : layer.dispatch;
    const OpId part = add(ops::kExpectExperts, prefix + "expect", choices, attrs, layer, early);
    return add(ops::kGatherLoads, prefix + "expected", {graph_.out(part)}, {}, layer, early);
  }

  /// expected: by the paths that lead here, then fine-tuned; else by the gate's counts alone.
  void place(size_t i, bool expected) {
    const ExchangedLayer& layer = layers_[i];
    const std::string prefix = fmt::format("b{}.moe.", graph_.op(layer.gate).layer);
    const std::vector<TensorId> weights = take_weights(layer);
    const auto slots_of = [&](OpId swap) { return graph_.op(swap).outputs; };
    const OpId gathered = expect(i, expected, prefix);
    // The copies run beside the experts of the layer before.
    const OpId later = expected ? layers_[i - 1].experts.front() : layer.dispatch;
    const OpId phase_1 = add(ops::kPlaceExpected, prefix + "place_expected", {graph_.out(gathered)},
                             attrs_, layer, later);
    std::vector<TensorId> inputs = {graph_.out(phase_1)};
    inputs.insert(inputs.end(), weights.begin(), weights.end());
    const OpId swap = add(ops::kSwapIn, prefix + "swap_in", inputs, attrs_, layer, later);

    const TensorId counts =
        origin_of_rows(graph_, graph_.out(layer.there), prefix + "inference").counts;
    const OpId loads =
        add(ops::kGatherLoads, prefix + "loads", {counts}, {}, layer, layer.dispatch);
    TensorId in_force = graph_.out(phase_1);
    std::vector<TensorId> slots = slots_of(swap);
    if (!expected || std::get<bool>(context_.options.at("fine_tuning"))) {
      Attrs tune = attrs_;
      tune["k"] = attr_int(graph_.op(layer.gate), "k", 1);
      tune["compare"] = std::get<std::string>(context_.options.at("compare"));
      const OpId phase_2 = add(ops::kFineTune, prefix + "fine_tune",
                               {graph_.out(loads), graph_.out(gathered), graph_.out(phase_1)}, tune,
                               layer, layer.dispatch);
      in_force = graph_.out(phase_2);
      Attrs keep = attrs_;
      keep["keep"] = int64_t{1};
      inputs = {in_force, graph_.out(phase_1)};
      inputs.insert(inputs.end(), weights.begin(), weights.end());
      inputs.insert(inputs.end(), slots.begin(), slots.end());
      slots =
          slots_of(add(ops::kSwapIn, prefix + "swap_again", inputs, keep, layer, layer.dispatch));
    }
    const OpId rows = add(ops::kSlotRows, prefix + "slot_rows", {graph_.out(loads), in_force},
                          attrs_, layer, layer.dispatch);
    for (const OpId id : layer.experts) {
      for (TensorId& t : graph_.op(id).inputs) {
        const auto found = std::find(weights.begin(), weights.end(), t);
        if (t.valid() && found != weights.end()) {
          t = slots[static_cast<size_t>(found - weights.begin())];
        }
      }
    }
    send_by_slot(graph_, layer, bounds_, counts, in_force, graph_.out(rows));
  }

  /// The parameters of a layer's experts, all of them on every device.
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
  std::vector<ExchangedLayer> layers_;
  PlacementBounds bounds_;
  Attrs attrs_;
  std::vector<std::vector<OpId>> before_;  // by op of the graph that was given
};

}  // namespace

/// Lina's inference scheduler (USENIX ATC 2023, section 5) in a forward without a backward: the
/// weights of all experts are on every device, in its host memory. From layer `path` on, the
/// popularity of a layer's experts is estimated from the paths of the tokens behind the gate of the
/// layer before, experts are placed by it and their weights copied to slots beside that layer's
/// experts (phase 1); behind the gate, where its counts say otherwise, they are placed again and
/// what is missing is copied (phase 2). Earlier layers stay as expert parallelism has them. Without
/// estimation every layer is placed by its counts, without fine-tuning phase 1 stands. Weights are
/// copied in every batch: slots keep nothing. Throws UserError for layers that are cut, placed or
/// grouped.
Graph lina_inference(Graph graph, const PassContext& context) {
  return InferencePlacer(std::move(graph), context).run();
}

}  // namespace moe
