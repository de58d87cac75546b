// Random legal graphs of small ops, for properties.
#pragma once

#include "engine/base/rng.h"
#include "engine/ops/ops.h"

namespace moe::test {

/// `num_ops` (3 or more) adds, gelus, splits, concats and updates of [2,3] tensors, wired at
/// random.
inline Graph random_graph(uint64_t seed, int64_t num_ops) {
  Rng rng(seed);
  Graph graph(op_table());
  graph.name = "random";
  std::vector<TensorId> values, params;
  for (int i = 0; i < 3; ++i) {
    params.push_back(graph.add_tensor({.name = fmt::format("w{}", i),
                                       .shape = {2, 3},
                                       .kind = TensorKind::kParam,
                                       .held = {.moe = i == 1}}));
  }
  values = params;
  const auto pick = [&] {
    return values[static_cast<size_t>(rng.below(static_cast<int64_t>(values.size())))];
  };
  for (int64_t i = 0; i < num_ops; ++i) {
    const std::string name = fmt::format("op{}", i);
    const auto phase = static_cast<Phase>(rng.below(2));
    OpId id;
    switch (rng.below(4)) {
      case 0:
        id = graph.add_op("gelu", name, {pick()}, {}, phase);
        break;
      case 1: {
        id = graph.add_op("split", name, {pick()},
                          {{"axis", int64_t{0}}, {"sizes", std::string("1,1")}}, phase);
        const std::vector<TensorId> halves = graph.op(id).outputs;
        id = graph.add_op("concat", name + ".back", {halves[1], halves[0]}, {{"axis", int64_t{0}}},
                          phase);
        break;
      }
      default:
        id = graph.add_op("add", name, {pick(), pick()}, {}, phase);
    }
    Op& op = graph.op(id);
    op.layer = static_cast<int32_t>(rng.below(4)) - 1;
    op.part = static_cast<int32_t>(rng.below(3)) - 1;
    op.segment = static_cast<Segment>(rng.below(9));
    op.is_dw = rng.below(2) == 1;
    graph.tensor(graph.out(id)).held.moe = rng.below(3) == 0;
    values.push_back(graph.out(id));
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const TensorId v = graph.add_tensor(
        {.name = fmt::format("v{}", i), .shape = {2, 3}, .kind = TensorKind::kState});
    graph.add_op("sgd", fmt::format("sgd{}", i), {params[i], v, values[params.size() + i]},
                 {{"lr", 1.0 / 3}, {"momentum", 1.0}}, Phase::kUpdate);
  }
  return graph;
}

}  // namespace moe::test
