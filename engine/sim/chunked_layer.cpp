#include "engine/sim/chunked_layer.h"

#include <algorithm>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/ops.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/sim/simulator.h"

namespace moe {
namespace {

/// Costs of all-to-alls and GEMMs by PipeMoeLines. All other ops, such as those that cut and join
/// tensors, take no time, as in the paper.
class LinesCost : public CostModel {
 public:
  explicit LinesCost(const PipeMoeLines& lines) : lines_(lines) {}
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    const Work work = graph.def(op).work(graph, graph.op(op), {});
    if (graph.def(op).collective == Collective::kAllToAll) {
      return checked_ns((lines_.alpha_a + lines_.beta_a * work.bytes) * kNsPerSecond, [&] {
        return fmt::format("op '{}' by alpha_a = {:g} and beta_a = {:g}, {:g} bytes,",
                           graph.op(op).name, lines_.alpha_a, lines_.beta_a, work.bytes);
      });
    }
    if (!work.gemm()) return 0;
    const double products = work.flops / 2;
    return checked_ns((lines_.alpha_gemm + lines_.beta_gemm * products) * kNsPerSecond, [&] {
      return fmt::format("op '{}' by alpha_gemm = {:g} and beta_gemm = {:g}, {:g} multiply-adds,",
                         graph.op(op).name, lines_.alpha_gemm, lines_.beta_gemm, products);
    });
  }
  std::string describe() const override {
    return fmt::format("PipeMoE's lines: {:g} s + {:g} s/byte, {:g} s + {:g} s/multiply-add",
                       lines_.alpha_a, lines_.beta_a, lines_.alpha_gemm, lines_.beta_gemm);
  }

 private:
  PipeMoeLines lines_;
};

int64_t capacity_of(const ChunkedLayer& layer) {
  return layer.rows / (layer.num_ranks * layer.experts_per_rank);
}

void check(const ChunkedLayer& layer, int64_t degree) {
  struct Size {
    const char* name;
    int64_t value, least;
  };
  for (const Size& size :
       {Size{"devices", layer.num_ranks, 2}, Size{"experts_per_device", layer.experts_per_rank, 1},
        Size{"rows", layer.rows, 1}, Size{"hidden", layer.hidden, 1}, Size{"ffn", layer.ffn, 1}}) {
    if (size.value >= size.least) continue;
    throw user_error("layer.{} = {}: must be {} or more", size.name, size.value, size.least);
  }
  const int64_t experts = layer.num_ranks * layer.experts_per_rank;
  if (layer.rows % experts != 0) {
    throw user_error("layer.rows = {}: must be a multiple of the number of experts, {}", layer.rows,
                     experts);
  }
  if (degree < 1 || degree > capacity_of(layer)) {
    throw user_error(
        "layer.degree = {}: an expert has {} rows per source rank, so degrees 1 to {} are allowed",
        degree, capacity_of(layer), capacity_of(layer));
  }
  check(model_of(layer), "layer");
}

/// Returns the graph x [E, C, M] -> all_to_all -> fc1 -> fc2 -> all_to_all. The GELU has no op of
/// its own: it is counted as part of fc1.
Graph layer_graph(const ChunkedLayer& layer) {
  Graph graph(op_table());
  graph.name = "moe_layer";
  graph.num_ranks = layer.num_ranks;
  const int64_t experts = layer.experts_per_rank;
  const auto param = [&](const char* name, Shape shape) {
    return graph.add_tensor({name, std::move(shape), layer.dtype, TensorKind::kParam, true});
  };
  const TensorId w1 = param("w1", {experts, layer.ffn, layer.hidden});
  const TensorId w2 = param("w2", {experts, layer.hidden, layer.ffn});
  TensorId rows = graph.add_tensor({"rows",
                                    {experts * layer.num_ranks, capacity_of(layer), layer.hidden},
                                    layer.dtype,
                                    TensorKind::kInput});
  const auto op = [&](const OpDef& kind, const char* name, std::vector<TensorId> inputs,
                      Segment segment, Attrs attrs) {
    const OpId id = graph.add_op(kind, name, std::move(inputs), std::move(attrs));
    graph.op(id).segment = segment;
    graph.op(id).layer = 0;
    return graph.out(id);
  };
  const Attrs padded = {{"rows", std::string("capacity")}};
  rows =
      op(ops::kAllToAll, "dispatch", {rows}, Segment::kDispatch, {{"to", std::string("expert")}});
  rows = op(ops::kExpertLinear, "fc1", {rows, w1}, Segment::kExpert, padded);
  rows = op(ops::kExpertLinear, "fc2", {rows, w2}, Segment::kExpert, padded);
  op(ops::kAllToAll, "combine", {rows}, Segment::kCombine, {{"to", std::string("source")}});
  return graph;
}

}  // namespace

LayerModel model_of(const ChunkedLayer& layer) {
  const auto rows = static_cast<double>(layer.rows), m = static_cast<double>(layer.hidden);
  return {.alpha_a = layer.lines.alpha_a,
          .beta_a = layer.lines.beta_a,
          .n_d = rows * m * static_cast<double>(dtype_bytes(layer.dtype)),
          .alpha_e = 2 * layer.lines.alpha_gemm,
          .beta_e = 2 * layer.lines.beta_gemm,
          .n_e = rows * m * static_cast<double>(layer.ffn)};
}

std::shared_ptr<const Plan> plan_layer(const ChunkedLayer& layer, int64_t degree) {
  check(layer, degree);
  Graph graph = layer_graph(layer);
  if (degree > 1) {
    cut_capacity(graph, capacity_chains(graph, "pipemoe").front(), degree);
    graph = compact(graph);
  }
  PlanSpec spec;
  spec.num_ranks = layer.num_ranks;
  spec.cost = std::make_shared<LinesCost>(layer.lines);
  Schedule schedule = default_schedule(graph);
  return make_plan_of(std::move(spec), std::move(graph), std::move(schedule));
}

Timeline simulate_layer(const Plan& plan) {
  return make_simulator()->run(plan, {}).timelines.front();
}

Nanoseconds end_of(const Timeline& timeline) {
  Nanoseconds end = 0;
  for (const Span& span : timeline.spans) end = std::max(end, span.end);
  return end;
}

}  // namespace moe
