#include "engine/passes/capacity/pipemoe_fit.h"

#include "engine/base/errors.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/op_def.h"
#include "engine/model/model.h"
#include "engine/passes/moe_layer.h"

namespace moe {
namespace {

/// Times of a layer cut at one degree: those of its first part, which is the longest, and the
/// total time of the ops that split and join the rows.
struct ChunkTimes {
  TimedWork transfer, experts, backward;
  double cut_ns = 0;
};

/// Returns the graph with this chain cut and, for the objective kStep, with its backward.
Graph cut_at(Graph graph, const CapacityChain& chain, DegreeObjective objective, int64_t degree) {
  if (degree > 1) cut_capacity(graph, chain, degree);
  graph = compact(graph);
  if (objective == DegreeObjective::kStep) {
    autodiff(graph, has_loss(graph) ? loss_of(graph) : TensorId());
  }
  return graph;
}

ChunkTimes chunk_times(const Graph& graph, int32_t layer, const CostModel& cost) {
  ChunkTimes times;
  double transfers = 0, flops = 0;
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    if (op.layer != layer || op.part > 0) continue;
    const auto ns = [&] { return static_cast<double>(cost.op_ns(graph, id)); };
    if (carries(graph, id, Payload::kRows)) {
      times.transfer.x = payload_bytes(graph, id, {});
      times.transfer.ns += ns();
      ++transfers;
    } else if (op.segment == Segment::kExpert && graph.def(op).collective == Collective::kNone) {
      const bool forward = op.phase == Phase::kForward;
      (forward ? times.experts : times.backward).ns += ns();
      const Work work = graph.def(id).work(graph, op, {});
      if (forward && work.gemm()) flops += work.flops;
    } else if (is(graph, id, BasicOp::kSplit) || is(graph, id, BasicOp::kConcat)) {
      times.cut_ns += ns();
    }
  }
  times.transfer.ns /= transfers;
  times.experts.x = times.backward.x = flops / 4;
  return times;
}

}  // namespace

LayerModel work_of(const Graph& forward, const CapacityChain& chain) {
  LayerModel model;
  model.n_d = payload_bytes(forward, chain.ops[0], {});
  for (const OpId id : chain.ops) {
    const Work work = forward.def(id).work(forward, forward.op(id), {});
    if (work.gemm()) model.n_e += work.flops / 4;
  }
  return model;
}

LayerFit fit_layer(const Graph& forward, const CapacityChain& chain, const CostModel& cost,
                   DegreeObjective objective, int64_t max_degree) {
  const Op& first = forward.op(chain.ops[0]);
  std::vector<TimedWork> transfers, experts, backward;
  LayerFit fit;
  double cut_ns = 0;
  for (int64_t r = 1; r <= std::min({max_degree, chain.capacity, int64_t{16}}); r *= 2) {
    const ChunkTimes times = chunk_times(cut_at(forward, chain, objective, r), first.layer, cost);
    transfers.push_back(times.transfer);
    experts.push_back(times.experts);
    backward.push_back(times.backward);
    cut_ns += times.cut_ns;
    fit.degrees.push_back(r);
  }
  MOE_CHECK(fit.degrees.size() > 1,
            "op '{}': a fit of its times needs two degrees or more, but max_degree = {} and its "
            "capacity = {} allow only one",
            first.name, max_degree, chain.capacity);
  const auto line = [&first](const char* what, const std::vector<TimedWork>& points) {
    return fit_line(fmt::format("{} of '{}'", what, first.name), points, true);
  };
  const LineFit a = line("transfers", transfers), e = line("experts", experts);
  fit.model = work_of(forward, chain);
  fit.model.alpha_a = a.alpha_ns / kNsPerSecond, fit.model.beta_a = a.beta_ns / kNsPerSecond;
  fit.model.alpha_e = e.alpha_ns / kNsPerSecond, fit.model.beta_e = e.beta_ns / kNsPerSecond;
  fit.model.cut_s = cut_ns / static_cast<double>(fit.degrees.size() - 1) / kNsPerSecond;
  fit.transfer = a.error, fit.experts = e.error;
  if (objective == DegreeObjective::kForward) return fit;
  const LineFit b = line("the backward of experts", backward);
  fit.model.alpha_b = b.alpha_ns / kNsPerSecond, fit.model.beta_b = b.beta_ns / kNsPerSecond;
  fit.backward = b.error;
  return fit;
}

}  // namespace moe
