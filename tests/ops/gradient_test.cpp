// The gradient of every op against central differences in float64.
#include <catch2/catch.hpp>

#include <set>

#include "engine/graph/autodiff.h"
#include "engine/graph/verify.h"
#include "engine/model/model.h"
#include "engine/routing/gate.h"
#include "tests/ops/small_graphs.h"

namespace moe::test {
namespace {

std::vector<SmallGraph> all_small_graphs() {
  std::vector<SmallGraph> graphs = {dense_graph(),         reuse_graph(),          split_graph(),
                                    attention_graph(true), attention_graph(false), rms_graph(),
                                    gated_graph(),         elementwise_graph(),    heads_graph(),
                                    rope_graph(),          attend_graph(),         rounds_graph()};
  for (const char* scores : {"softmax", "sigmoid"}) {
    for (const char* weight : {"prob", "renorm", "one"}) {
      graphs.push_back(moe_graph({.gate = "top_k",
                                  .k = 2,
                                  .columns = 2,
                                  .capacity = 5,
                                  .scores = scores,
                                  .weight = weight,
                                  .rows = "used"}));
    }
  }
  for (const char* weight : {"prob", "renorm"}) {
    graphs.push_back(
        moe_graph({.gate = "top_k",
                   .k = 2,
                   .columns = 2,
                   .capacity = 6,
                   .scores = "sigmoid",
                   .weight = weight,
                   .bias = true,
                   .more = ", scale=2.5, groups=2, top_groups=1, group_score=\"top2\""}));
  }
  graphs.push_back(moe_graph({.gate = "switch", .rows = "capacity"}));
  graphs.push_back(moe_graph({.gate = "expert_choice", .columns = 4}));
  graphs.push_back(moe_graph({.gate = "switch", .rows = "used", .exchange = true}));
  graphs.push_back(moe_graph({.gate = "switch", .in_steps = true}));
  for (const char* act : {"silu_mul", "relu2"}) {
    for (const char* rows : {"capacity", "used"}) {
      graphs.push_back(moe_graph({.capacity = 5, .rows = rows, .act = act, .logits_bias = true}));
    }
  }
  for (const char* rows : {"capacity", "used"}) {
    graphs.push_back(moe_graph({.gate = "top_k",
                                .k = 2,
                                .columns = 2,
                                .capacity = 5,
                                .rows = rows,
                                .act = "silu_mul",
                                .weighted = true}));
  }
  for (const char* scores : {"softmax", "sigmoid"}) {
    for (const bool bias : {false, true}) {
      graphs.push_back(moe_graph({.gate = "top_k",
                                  .k = 2,
                                  .columns = 2,
                                  .capacity = 5,
                                  .scores = scores,
                                  .weight = "renorm",
                                  .router_losses = true,
                                  .bias = bias}));
    }
  }
  return graphs;
}

/// Perturbing a parameter by this changes no routing decision of these graphs.
constexpr double kStep = 1e-5;

/// The sum of all losses.
double loss_with(const Graph& graph, Interpreter<double>& run, double* place, double value) {
  const double before = *place;
  *place = value;
  run.run();
  *place = before;
  double sum = 0;
  for (const Op& op : graph.ops()) {
    if (graph.def(op).loss != Loss::kNone) sum += run.scalar(op.outputs[0]);
  }
  return sum;
}

}  // namespace

TEST_CASE("every gradient agrees with central differences") {
  for (const SmallGraph& small : all_small_graphs()) {
    INFO(small.name);
    const Graph forward = parse_graph(small.text, op_table());
    Graph graph = forward;
    const auto gradients = autodiff(graph, loss_of(graph));
    verify(graph, "autodiff");
    Interpreter<double> step(graph), probe(forward);
    step.rank.gate = probe.rank.gate = &builtin_gate(small.gate);
    fill_inputs(graph, step, 4);
    fill_inputs(forward, probe, 4);
    step.run();
    const bool no_gate_gradient = small.text.find("weight=\"one\"") != std::string::npos;
    size_t num_params = 0;
    for (const Tensor& tensor : forward.tensors()) num_params += tensor.kind == TensorKind::kParam;
    CHECK(gradients.size() == num_params - (no_gate_gradient ? 1 : 0));
    for (const auto& [param, gradient] : gradients) {
      INFO(graph.tensor(param).name);
      REQUIRE(graph.tensor(gradient).shape == graph.tensor(param).shape);
      CHECK(graph.tensor(gradient).held == graph.tensor(param).held);
      double largest = 0;
      for (int64_t i = 0; i < probe.size(param); ++i) {
        double* place = probe.real(param) + i;
        const double expected = (loss_with(forward, probe, place, *place + kStep) -
                                 loss_with(forward, probe, place, *place - kStep)) /
                                (2 * kStep);
        INFO("element " << i);
        CHECK(step.real(gradient)[i] == Approx(expected).epsilon(1e-6).margin(1e-9));
        largest = std::max(largest, std::abs(expected));
      }
      CHECK(largest > 1e-4);
    }
  }
}

TEST_CASE("the gradient cases hold every op that runs") {
  std::set<std::string> seen;
  for (const SmallGraph& small : all_small_graphs()) {
    Graph graph = parse_graph(small.text, op_table());
    autodiff(graph, loss_of(graph));
    for (const Op& op : graph.ops()) seen.insert(graph.def(op).name);
  }
  for (const OpDef* def : op_table().defs()) {
    const std::string name = def->name;
    const std::set<std::string> without = {
        "all_reduce", "reduce_scatter", "all_gather", "sgd", "square_sum", "clip_to_norm", "adamw",
        "balance_bias", "count_part", "join_rows",
        // tests/exec/placement_test.cpp, inference_test.cpp
        "add_loads", "gather_loads", "slot_rows", "place", "commit", "copy_experts",
        "return_gradients", "sum_residents", "migrate", "expect_experts", "place_expected",
        "fine_tune", "swap_in",
        // tests/mesh_matrix.lua
        "send", "receive", "sum_copies", "shift_rows", "attend_step", "attend_step_dx",
        "join_steps", "repeat_rows", "sum_repeats",
        // tests/exec/mixes/mixes_test.cpp
        "split_rows", "concat_rows", "reorder_rows", "pack_slots", "stand_in",
        "stand_in_back",  // run nowhere
        "round"};         // of plans for a device: tests/exec/device/device_lowering_test.cpp
    if (without.contains(name)) continue;
    INFO(name);
    CHECK(seen.contains(name));
  }
}

TEST_CASE("weights, biases, norms and tables get their gradients from ops of their own") {
  for (const SmallGraph& small : all_small_graphs()) {
    Graph graph = parse_graph(small.text, op_table());
    const size_t num_forward = graph.num_ops();
    const auto gradients = autodiff(graph, loss_of(graph));
    const std::vector<OpId> producers = graph.producers();
    for (const auto& [param, gradient] : gradients) {
      if (graph.tensor(param).name == "x") continue;
      INFO(small.name << ": " << graph.tensor(param).name);
      CHECK(graph.op(producers[gradient.index()]).is_dw);
    }
    for (size_t i = num_forward; i < graph.num_ops(); ++i) {
      const Op& op = graph.ops()[i];
      INFO(small.name << ": " << op.name);
      CHECK(op.phase == Phase::kBackward);
      if (!op.is_dw) continue;
      for (const Op& reader : graph.ops()) {
        const bool reads = std::any_of(reader.inputs.begin(), reader.inputs.end(), [&](TensorId t) {
          return std::find(op.outputs.begin(), op.outputs.end(), t) != op.outputs.end();
        });
        CHECK((!reads || reader.is_dw));
      }
    }
  }
}

TEST_CASE("gradients come back in the order in which they become complete") {
  Graph graph = parse_graph(dense_graph().text, op_table());
  const auto gradients = autodiff(graph, loss_of(graph));
  std::vector<std::string> names;
  for (const auto& [param, gradient] : gradients) names.push_back(graph.tensor(param).name);
  CHECK(names == std::vector<std::string>{"w2", "b2", "b1", "w1", "ln.w", "ln.b", "wte", "wpe"});
}

TEST_CASE("autodiff refuses a part of a split that no gradient reaches") {
  Graph graph = parse_graph(R"(
graph g ranks=1
%1 input i32 [2] targets
%2 param f64 [4,3] x
%3, %4 = split(%2) {axis=0, sizes="2,2"} cut forward mlp
%5, %6 = cross_entropy(%3, %1) loss forward head
)",
                            op_table());
  CHECK_THROWS_WITH(autodiff(graph, loss_of(graph)),
                    Catch::Contains("does not depend on part 'cut:1'"));
}

}  // namespace moe::test
