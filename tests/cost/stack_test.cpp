// Stacks: what further kernels, passes, masks and host time add to the ops of a step.
#include "engine/cost/stack.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "engine/graph/autodiff.h"
#include "tests/model/gpt2.h"

namespace moe {
namespace {

constexpr int64_t kRanks = 8, kHidden = 256, kTokens = 4 * 128;
constexpr Nanoseconds kLaunch = 3000;

Graph step() {
  test::Gpt2 model;
  model.layers = 2, model.hidden = kHidden, model.heads = 4, model.ffn = 1024;
  model.seq = 128, model.batch_per_device = 4, model.vocab = 512, model.experts = 16;
  model.fused_attention = false;
  Graph graph = test::build_forward(model, gate_spec(model), kRanks);
  add_backward_and_update(graph, {}, {});
  return graph;
}

Cluster node() {
  Cluster c{.nodes = 1, .devices_per_node = kRanks};
  c.device = {.gemm_flops_per_s = 1e12,
              .vector_flops_per_s = 1e12,
              .memory_bytes_per_s = 1e11,
              .launch_ns = kLaunch};
  c.intra = {300e9, 1000};
  return c;
}

StackCost with(Stack stack) {
  return StackCost(RooflineCost(node(), {}), std::move(stack));
}

std::vector<OpId> ops_of(const Graph& graph) {
  std::vector<OpId> all;
  for (size_t i = 0; i < graph.num_ops(); ++i) all.emplace_back(static_cast<int64_t>(i));
  return all;
}

OpId first(const Graph& graph, std::string_view kind) {
  for (const OpId op : ops_of(graph)) {
    if (graph.def(op).name == kind) return op;
  }
  FAIL("the step has no " << kind);
  return {};
}

TEST_CASE("a stack of one kernel per op, without host time, is no stack") {
  const Graph graph = step();
  const RooflineCost plain(node(), {});
  const StackCost one = with({.name = "one"});
  for (const OpId op : ops_of(graph)) CHECK(one.op_ns(graph, op) == plain.op_ns(graph, op));
}

TEST_CASE("a stack never makes an op shorter, and leaves collectives and views as they are") {
  const Graph graph = step();
  Stack stack{.name = "all", .host_launch_ns = 20'000, .host_op_ns = 5'000};
  for (const OpDef* def : op_table().defs()) {
    stack.ops[def->name] = {{"masks", "", 1, 1}};
    for (const auto* operands : {&def->inputs, &def->outputs}) {
      for (const Operand& operand : *operands) {
        stack.ops[def->name].push_back({operand.name, "", 1, 2});
      }
    }
  }
  const RooflineCost plain(node(), {});
  const StackCost cost = with(stack);
  for (const OpId op : ops_of(graph)) {
    CAPTURE(graph.op(op).name);
    const Nanoseconds before = plain.op_ns(graph, op), after = cost.op_ns(graph, op);
    const bool compute = graph.def(op).lane == LaneKind::kCompute && !is_view(graph, graph.op(op));
    CHECK((compute ? after > before : after == before));
  }
}

TEST_CASE("further kernels take a launch each and their passes, where the op has the operands") {
  const Graph graph = step();
  const OpId gelu = first(graph, "gelu");
  const RooflineCost plain(node(), {});
  const auto more = [&](const char* of, const char* with_operand) {
    const Stack stack{.name = "s", .ops = {{"gelu", {{of, with_operand, 2, 3.5}}}}};
    return with(stack).op_ns(graph, gelu) - plain.op_ns(graph, gelu);
  };
  const double bytes = static_cast<double>(graph.bytes(graph.op(gelu).outputs[0]));
  const auto passes = static_cast<Nanoseconds>(std::ceil(3.5 * bytes / 100));  // 100 bytes a ns
  CHECK(more("y", "") == 2 * kLaunch + passes);
  CHECK(more("y", "x") == 2 * kLaunch + passes);
  CHECK(more("recv_begin", "") == 0);
  CHECK(more("y", "recv_begin") == 0);
}

TEST_CASE("casts to fp8 run where the op multiplies in that type, and not for the head") {
  const Graph graph = step();
  const auto casts = [&](OpId op, const char* dtype) {
    const RooflineCost cost(node(), {}, {}, {}, "", {dtype, 1e12});
    const Stack stack{.name = "s", .ops = {{"linear", {{"x", "", 2, 0, "fp8_block"}}}}};
    return StackCost(cost, stack).op_ns(graph, op) - cost.op_ns(graph, op);
  };
  const OpId linear = first(graph, "linear");
  CHECK(casts(linear, "fp8_block") == 2 * kLaunch);
  CHECK(casts(linear, "fp8") == 0);
  CHECK(casts(linear, "") == 0);
  CHECK(casts(graph.find_op("head"), "fp8_block") == 0);
}

TEST_CASE("the host launches each kernel of an op, but not those of recorded graphs") {
  const Graph graph = step();
  const OpId gelu = first(graph, "gelu"), norm = first(graph, "layernorm");
  const auto ns = [&](OpId op, Stack::Graphs graphs) {
    Stack stack{.name = "s", .host_launch_ns = 10, .host_op_ns = 7, .graphs = graphs};
    stack.ops["gelu"] = {{"y", "", 2, 0}};
    return with(stack).host_ns(graph, op);
  };
  CHECK(ns(gelu, Stack::Graphs::kNone) == 3 * 10 + 7);
  CHECK(ns(norm, Stack::Graphs::kNone) == 10 + 7);
  CHECK(ns(first(graph, "all_to_all"), Stack::Graphs::kLayer) == 10 + 7);
  CHECK(ns(gelu, Stack::Graphs::kAttention) == 3 * 10 + 7);
  CHECK(ns(norm, Stack::Graphs::kAttention) == 0);
  CHECK(ns(gelu, Stack::Graphs::kLayer) == 0);
  CHECK(ns(first(graph, "cross_entropy"), Stack::Graphs::kLayer) == 10 + 7);
  CHECK(!with({.name = "s"}).has_host());
}

TEST_CASE("with masks, dispatch and combine are products of slots, tokens and width") {
  const Graph graph = step();
  const auto rows = [&](TensorId id) {
    return static_cast<double>(num_elements(graph.tensor(id).shape)) / kHidden;
  };
  const OpId dispatch = first(graph, "dispatch");
  const double slots = rows(graph.op(dispatch).outputs[0]);
  const double mask = 4 * slots * kTokens, flops = 2 * slots * kTokens * kHidden;
  for (const char* kind : {"dispatch", "dispatch_dx", "combine", "combine_dx", "combine_dweight"}) {
    CAPTURE(kind);
    const Stack stack{.name = "s", .ops = {{kind, {{"masks", "", 3, 7.5}}}}};
    // The product takes longer than its bytes: 1000 flops a ns, 100 bytes a ns.
    const double ns = std::ceil(flops / 1000) + std::ceil(7.5 * mask / 100);
    CHECK(with(stack).op_ns(graph, first(graph, kind)) ==
          static_cast<Nanoseconds>(ns) + 4 * kLaunch);
  }
}

}  // namespace
}  // namespace moe
