#include "engine/passes/clip_gradients.h"

#include <map>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/ops.h"
#include "engine/ops/slices.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Adds the ops that scale gradients to the end of a graph.
class Clipping {
 public:
  Clipping(Graph& graph, const Grid& grid) : graph_(graph), given_(graph.num_ops()), grid_(grid) {
    for (const OpId id : graph.op_ids()) {
      if (input_of(graph, graph.op(id), Role::kGradient).valid()) updates_.push_back(id);
      if (&graph.def(id) == &ops::kSumCopies) twice_.insert(attr_string(graph.op(id), "what"));
    }
  }

  size_t num_given() const { return given_; }
  /// Returns the square sum of all gradients of the ranks that run the graph, as each of them has
  /// it.
  TensorId sum_of_squares() {
    const std::vector<OpId> producers = graph_.producers();
    std::map<double, std::vector<TensorId>> by_share;
    for (const OpId id : updates_) {
      const TensorId gradient = input_of(graph_, graph_.op(id), Role::kGradient);
      const OpId maker = producers[gradient.index()];
      if (maker.valid() && carries(graph_, maker, Payload::kResidentGradients)) {
        throw user_error(
            "optimizer.clip_norm: op '{}' sums gradients of experts that are resident on several "
            "devices, so their norm is not known; use a placement without extra residents, or omit "
            "clip_norm",
            graph_.op(maker).name);
      }
      by_share[share_of(graph_.op(id))].push_back(gradient);
    }
    TensorId sum;
    int part = 0;
    for (const auto& [share, gradients] : by_share) {
      const std::string number = ++part == 1 ? "" : fmt::format(".{}", part);
      const TensorId squares =
          graph_.out(add(ops::kSquareSum, "clip.squares" + number, gradients, {{"factor", share}}));
      sum = sum.valid() ? graph_.out(add(ops::kAdd, "clip.sum" + number, {sum, squares}, {}))
                        : squares;
    }
    if (graph_.num_ranks == 1) return sum;
    return graph_.out(add(ops::kAllReduce, "clip.all_reduce", {sum}, {}));
  }

  /// Returns the sum over all pipeline ranks.
  TensorId sum_over(const PipelinePlace& place, TensorId sum) {
    const auto handoff = [&](const char* name, TensorId sent, int64_t from, int64_t to) {
      const int64_t peer = from == place.rank ? to : from;
      Attrs attrs = {{"what", std::string("clip")},
                     {"from_stage", from},
                     {"to_stage", to},
                     {"peer", peer},
                     {"far", int64_t{place.far(peer)}}};
      const bool receives = !sent.valid();
      if (receives) attrs.merge(like_attrs(graph_.tensor(sum)));
      const OpId id = add(receives ? ops::kReceive : ops::kSend, name,
                          receives ? std::vector<TensorId>() : std::vector{sent}, std::move(attrs));
      return receives ? graph_.out(id) : sent;
    };
    const int64_t before = place.rank - 1, behind = place.rank + 1;
    const bool last = behind == place.ranks;
    if (!last) {
      const TensorId theirs = handoff("clip.receive", {}, behind, place.rank);
      sum = graph_.out(add(ops::kAdd, "clip.sum_behind", {sum, theirs}, {}));
    }
    if (place.rank > 0) {
      handoff("clip.send", sum, place.rank, before);
      sum = handoff("clip.all.receive", {}, before, place.rank);
    }
    if (!last) handoff("clip.all.send", sum, place.rank, behind);
    return sum;
  }

  /// Lets the updates read scaled gradients.
  void scale(TensorId sum, double norm) {
    std::vector<TensorId> inputs = {sum};
    for (const OpId id : updates_) {
      inputs.push_back(input_of(graph_, graph_.op(id), Role::kGradient));
    }
    const OpId clip = add(ops::kClipGradients, "clip.gradients", inputs, {{"norm", norm}});
    for (size_t i = 0; i < updates_.size(); ++i) {
      const TensorId clipped = graph_.out(clip, i);
      graph_.tensor(clipped).held = graph_.tensor(inputs[i + 1]).held;
      graph_.tensor(clipped).kind = TensorKind::kGradient;
      set_input(graph_, updates_[i], Role::kGradient, clipped);
    }
  }

  /// Returns all ops, with the updates and what follows from them last. Requires: the ops given
  /// were in program order.
  std::vector<OpId> order() const {
    std::vector<bool> late(graph_.tensors().size());  // made or overwritten by these
    std::vector<OpId> order, last;
    const std::set<OpId> updates(updates_.begin(), updates_.end());
    for (size_t i = 0; i < graph_.num_ops(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      const Op& op = graph_.op(id);
      const bool behind =
          updates.contains(id) ||
          (i < given_ && std::any_of(op.inputs.begin(), op.inputs.end(),
                                     [&](TensorId t) { return t.valid() && late[t.index()]; }));
      (behind ? last : order).push_back(id);
      if (!behind) continue;
      for (const TensorId t : op.outputs) late[t.index()] = true;
      for (const int in : mutated_inputs(graph_, op)) {
        late[op.inputs[static_cast<size_t>(in)].index()] = true;
      }
    }
    order.insert(order.end(), last.begin(), last.end());
    return order;
  }

 private:
  /// Returns the share of a gradient's square sum that a rank adds to that of all ranks: of numbers
  /// that several ranks hold, each adds an equal share.
  double share_of(const Op& update) const {
    const Tensor& parameter = graph_.tensor(update.inputs[0]);
    const int64_t holders = copies(grid_, parameter.held).size * parameter.held.same *
                            (twice_.contains(parameter.name) ? 2 : 1);
    const int64_t slices = ops::is_sliced(update) ? group_of(graph_, update).size : 1;
    return static_cast<double>(slices) / static_cast<double>(holders);
  }

  OpId add(const OpDef& def, const std::string& name, std::vector<TensorId> inputs, Attrs attrs) {
    const OpId id = graph_.add_op(def, name, std::move(inputs), std::move(attrs), Phase::kUpdate);
    graph_.op(id).segment =
        def.collective == Collective::kHandoff ? Segment::kHandoff : Segment::kUpdate;
    return id;
  }

  Graph& graph_;
  const size_t given_;  // ops of the graph
  const Grid& grid_;
  std::vector<OpId> updates_;
  std::set<std::string> twice_;  // parameters that two pipeline ranks hold
};

}  // namespace

/// Scales the gradients that updates read down to the optimizer's clip_norm (Pascanu et al. 2013,
/// arXiv 1211.5063, section 3.2): each rank sums the squares of its gradients, an exchange of its
/// own sums these over ranks, and all updates wait for it.
Graph clip_gradients(Graph graph, const PassContext& context) {
  const Grid grid = context.model.grid(graph.num_ranks);
  Clipping clipping(graph, grid);
  clipping.scale(clipping.sum_of_squares(), clip_norm(context.step.optimizer));
  return graph;
}

void clip_over_ranks(UnrolledStep& step, double norm, const Grid& grid, LaneId lane,
                     const PipelinePlace& place) {
  Graph& graph = step.program.graph;
  Schedule& schedule = step.program.schedule;
  Clipping clipping(graph, grid);
  clipping.scale(clipping.sum_over(place, clipping.sum_of_squares()), norm);
  const size_t n = graph.num_ops();
  for (size_t i = clipping.num_given(); i < n; ++i) {
    const bool compute = graph.def(OpId(static_cast<int64_t>(i))).lane == LaneKind::kCompute;
    schedule.lane_of.push_back(compute ? LaneId(0) : lane);
  }
  if (!schedule.priority.empty()) schedule.priority.resize(n);
  if (!schedule.chunk_bytes.empty()) schedule.chunk_bytes.resize(n);
  if (!schedule.chunk_stage.empty()) schedule.chunk_stage.resize(n);
  step.turns.turn_of.resize(n, static_cast<int32_t>(step.turns.turns.size()));
  const std::vector<OpId> order = clipping.order();
  std::vector<OpId> now(n);
  std::vector<int32_t> turn_of;
  for (size_t i = 0; i < n; ++i) {
    now[order[i].index()] = OpId(static_cast<int64_t>(i));
    turn_of.push_back(step.turns.turn_of[order[i].index()]);
  }
  step.turns.turn_of = std::move(turn_of);
  graph = with_order(graph, order);
  renumber(schedule, now);
}

}  // namespace moe
