// Experts whose activation consists of several ops (the square of ReLU): passes that count, pack or
// cut rows treat these ops like built-in activations.
#include <catch2/catch.hpp>

#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/row_cut.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

/// Replaces GELU of experts by a product of ReLU with itself and adds GELU's bias in the product
/// before.
Graph squared_relu(Graph graph, const PassContext&) {
  const size_t num_ops = graph.num_ops();
  const std::vector<OpId> producers = graph.producers();
  for (size_t i = 0; i < num_ops; ++i) {
    const OpId id(static_cast<int64_t>(i));
    const Op gelu = graph.op(id);
    if (!is(graph, id, BasicOp::kGelu)) continue;
    const OpId product = producers[gelu.inputs[0].index()];
    if (!is(graph, product, MoeOp::kExpertProduct)) continue;
    set_input(graph, product, Role::kBias, gelu.inputs[1]);
    // A placement has counted the rows already.
    const TensorId counts = input_of(graph, gelu, Role::kRecvCounts);
    const Attrs rows = ops::row_attrs(gelu);
    const OpId relu = graph.add_op(ops::kRelu, gelu.name + ".relu", {gelu.inputs[0], counts}, rows);
    const TensorId r = graph.out(relu);
    const OpId square =
        graph.add_op(ops::kMul, gelu.name + ".square", {r, r, TensorId(), counts}, rows);
    for (const OpId made : {relu, square}) {
      graph.op(made).segment = gelu.segment;
      graph.op(made).layer = gelu.layer;
    }
    redirect(graph, gelu.outputs[0], graph.out(square));
    graph.remove(id);
  }
  return graph;
}

std::vector<double> losses(std::vector<Stage> stages, double capacity_factor) {
  Gpt2 model = small_model("switch", 4);
  model.experts = 8;
  model.capacity_factor = capacity_factor;
  PlanSpec spec = spec_of(model, 2, Precision::kF64);
  spec.system.stages = {
      {.name = "squared_relu", .kind = StageKind::kForward, .transform = squared_relu}};
  spec.system.stages.insert(spec.system.stages.end(), stages.begin(), stages.end());
  const auto plan = make_plan(spec);
  if (capacity_factor == 0 && !stages.empty()) {
    const TensorId act = plan->graph.find_tensor("b1.moe.gelu.square");
    CHECK((!act.valid() || plan->graph.tensor(act).stored_rows > 0));
  }
  RunOptions options = options_of(*plan, 3);
  options.precision = Precision::kF64;
  options.test.poison = true;
  return run_cpu(*plan, options).losses;
}

TEST_CASE("experts of several elementwise ops train alike with counted, packed and cut rows") {
  for (const double capacity_factor : {1.25, 0.0}) {
    const std::vector<double> plain = losses({}, capacity_factor);
    CHECK(plain[2] < plain[0]);
    const std::vector<Stage> counted = {pass("irregular_a2a"), pass("used_rows")};
    for (const std::vector<Stage>& more :
         {std::vector<Stage>{},
          {pass("capacity_pipeline", {{"degree", 2.0}})},
          {pass("partition", {{"parts", 2.0}, {"before", 2.0}, {"after", 0.0}})},
          {pass("eplb")}}) {
      std::vector<Stage> stages = counted;
      stages.insert(stages.end(), more.begin(), more.end());
      const std::vector<double> other = losses(stages, capacity_factor);
      for (size_t s = 0; s < plain.size(); ++s) CHECK(other[s] == Approx(plain[s]).epsilon(1e-12));
    }
  }
}

}  // namespace
}  // namespace moe::test
