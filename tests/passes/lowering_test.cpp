// Edits of a plan's graph for a device: operands rounded once, GELU with its product.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/ops/ops.h"
#include "engine/passes/device/fuse_gelu.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::kind;
using test::ops_of;
using test::small_spec;
using test::stage;

const std::vector<std::vector<Stage>>& systems() {
  static const std::vector<std::vector<Stage>> all = {
      {},
      {stage("serial"), stage("irregular_a2a"), stage("used_rows")},
      {stage("capacity_pipeline", {{"degree", 2.0}})},
      {stage("fastermoe_pipeline", {{"groups", 2.0}})},
      {stage("irregular_a2a"), stage("used_rows"), stage("dw_schedule"),
       stage("partition", {{"parts", 2.0}, {"before", 6.0}, {"after", 1.0}})},
      {stage("prophet"), stage("prophet_schedule")},
      {stage("eplb"), stage("dw_schedule")},
  };
  return all;
}

PlanSpec mixed_spec(std::vector<Stage> stages = {}) {
  PlanSpec spec = small_spec(std::move(stages));
  test::change_model(spec, [&](test::Gpt2& m) { m.dtype = DType::kBF16; });
  return spec;
}

/// Operands of f32 that an op would round.
std::vector<TensorId> rounded_anew(const Graph& graph, OpId op) {
  std::vector<TensorId> operands;
  if (!stores_bf16(graph, graph.op(op))) return operands;
  for (const int i : graph.def(op).rounds) {
    const TensorId t = graph.op(op).inputs[static_cast<size_t>(i)];
    if (graph.tensor(t).dtype == DType::kF32) operands.push_back(t);
  }
  return operands;
}

std::map<TensorId, int> times_rounded(const Graph& graph) {
  std::map<TensorId, int> times;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    for (const TensorId t : rounded_anew(graph, OpId(static_cast<int64_t>(i)))) ++times[t];
  }
  return times;
}

std::vector<OpId> readers(const Graph& graph, TensorId t) {
  std::vector<OpId> found;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const std::vector<TensorId>& inputs = graph.ops()[i].inputs;
    if (std::find(inputs.begin(), inputs.end(), t) != inputs.end()) {
      found.emplace_back(static_cast<int64_t>(i));
    }
  }
  return found;
}

TEST_CASE("what several products of a step in bfloat16 round is rounded once, and first of all") {
  for (const auto& stages : systems()) {
    CAPTURE(stages.size(), stages.empty() ? "" : stages[0].name);
    PlanSpec spec = mixed_spec(stages);
    const auto before = make_plan(spec);
    spec.lowering.round_once = true;
    const auto plan = make_plan(spec);
    const Graph& graph = plan->graph;
    size_t shared = 0;
    for (const auto& [t, times] : times_rounded(before->graph)) shared += times > 1;
    CHECK(shared >= 12);  // 4 blocks' attention, FFN or experts, the tied head
    for (const auto& [t, times] : times_rounded(graph)) CHECK(times == 1);
    const std::vector<OpId> rounds = ops_of(graph, "round");
    CHECK(rounds.size() == shared);
    for (const OpId id : rounds) {
      const Op& op = graph.op(id);
      CAPTURE(op.name);
      const std::vector<OpId> products = readers(graph, op.outputs[0]);
      REQUIRE(products.size() >= 2);
      const Op& first = graph.op(products[0]);
      CHECK(op.phase == first.phase);
      CHECK(op.segment == first.segment);
      CHECK(op.layer == first.layer);
      CHECK(op.part == -1);
      for (size_t i = id.index() + 1; i < products[0].index(); ++i) {
        CHECK(kind(graph, OpId(static_cast<int64_t>(i))) == "round");  // of the same reader
      }
    }
    CHECK(graph.num_ops() == before->graph.num_ops() + shared);
    CHECK(print(parse_graph(print(graph), op_table())) == print(graph));
  }
}

TEST_CASE("a rounded parameter is updated after it was read, and may be before the backward is") {
  PlanSpec spec = mixed_spec();
  spec.lowering.round_once = true;
  const Graph graph = make_plan(spec)->graph;
  const Dependencies deps = dependencies(graph);
  const Reachability reach(graph, deps);
  size_t seen = 0;
  for (const OpId id : ops_of(graph, "round")) {
    for (const OpId update : ops_of(graph, "sgd")) {
      if (graph.op(update).inputs[0] != graph.op(id).inputs[0]) continue;
      ++seen;
      CHECK(reach.reaches(id, update));
    }
  }
  CHECK(seen >= 12);
}

TEST_CASE("rounded operands have room in the memory plan, and in float32 there are none") {
  PlanSpec spec = mixed_spec();
  const auto anew = make_plan(spec);
  spec.lowering.round_once = true;
  const auto once = make_plan(spec);
  Bytes least = 0;  // of those that live from the forward to the backward
  for (const OpId id : ops_of(once->graph, "round")) {
    if (once->graph.op(id).phase == Phase::kForward) {
      least += once->graph.bytes(once->graph.out(id));
    }
  }
  CHECK(once->memory.persistent_bytes == anew->memory.persistent_bytes);
  CHECK(once->memory.arena_bytes > anew->memory.arena_bytes + least / 2);
  PlanSpec in_float = small_spec();
  const auto plain = make_plan(in_float);
  in_float.lowering.round_once = true;
  CHECK(make_plan(in_float)->hash == plain->hash);
}

TEST_CASE("a forward alone rounds what its parts share, and nothing else apart") {
  PlanSpec spec = mixed_spec();
  spec.inference = true;
  const auto plain = make_plan(spec);
  spec.lowering.round_once = true;
  CHECK(make_plan(spec)->hash == plain->hash);
  spec.system.stages = {stage("capacity_pipeline", {{"degree", 2.0}})};
  const Graph graph = make_plan(spec)->graph;
  CHECK(ops_of(graph, "round").size() == 4);  // two matrices of two layers' experts
}

// --- padded logits

TEST_CASE("rows of logits of every system's step are padded, and parameters keep their shapes") {
  for (const auto& stages : systems()) {
    CAPTURE(stages.size(), stages.empty() ? "" : stages[0].name);
    PlanSpec spec = mixed_spec(stages);
    test::change_model(spec, [](test::Gpt2& m) { m.vocab = 33; });
    spec.lowering.pad_logits = true;
    const auto plan = make_plan(spec);
    const Graph& graph = plan->graph;
    const Op& loss = graph.op(ops_of(graph, "cross_entropy").at(0));
    CHECK(graph.tensor(loss.inputs[0]).shape.back() == 64);
    CHECK(graph.tensor(loss.outputs[1]).shape.back() == 64);
    CHECK(attr_int(loss, "cols") == 33);
    CHECK(graph.tensor(graph.find_tensor("wte")).shape[0] == 33);
    CHECK(print(parse_graph(print(graph), op_table())) == print(graph));
    CHECK(plan_of_program(spec, packed_program(*plan))->hash == plan->hash);
  }
}

// --- GELU with its product

size_t with_gelu(const Graph& graph, const std::string& name) {
  const std::vector<OpId> ops = ops_of(graph, name);
  return static_cast<size_t>(std::count_if(
      ops.begin(), ops.end(), [&](OpId op) { return attr_int(graph.op(op), "gelu") == 1; }));
}

TEST_CASE("every GELU of every system's step is made with its product, and so is its gradient") {
  for (const auto& stages : systems()) {
    CAPTURE(stages.size(), stages.empty() ? "" : stages[0].name);
    PlanSpec spec = small_spec(stages);
    const auto before = make_plan(spec);
    spec.lowering.fuse_gelu = true;
    const auto plan = make_plan(spec);
    const size_t gelus = ops_of(before->graph, "gelu").size();
    const size_t slopes = ops_of(before->graph, "gelu_dx").size();
    CHECK(gelus >= 4);
    CHECK(slopes >= 4);
    CHECK(ops_of(plan->graph, "gelu").empty());
    CHECK(ops_of(plan->graph, "gelu_dx").empty());
    CHECK(with_gelu(plan->graph, "linear") + with_gelu(plan->graph, "expert_linear") == gelus);
    CHECK(with_gelu(plan->graph, "linear_dx") + with_gelu(plan->graph, "expert_linear_dx") ==
          slopes);
    CHECK(plan->graph.num_ops() == before->graph.num_ops() - gelus - slopes);
    CHECK(print(parse_graph(print(plan->graph), op_table())) == print(plan->graph));
    CHECK(plan_of_program(spec, packed_program(*plan))->hash == plan->hash);
  }
}

TEST_CASE("a pair that Lancet's cut has come between stays as it is, on both ways") {
  size_t parted = 0, whole = 0;
  for (double before = 0; before <= 12; ++before) {
    for (double after = 0; after <= 8 && before + after <= 12; ++after) {
      CAPTURE(before, after);
      PlanSpec spec =
          small_spec({stage("irregular_a2a"), stage("used_rows"),
                      stage("partition", {{"parts", 2.0}, {"before", before}, {"after", after}})});
      spec.lowering.fuse_gelu = true;
      const Graph graph = make_plan(spec)->graph;
      const std::vector<OpId> producer = graph.producers();
      const size_t left = ops_of(graph, "gelu").size();
      for (const OpId id : ops_of(graph, "gelu")) {
        const OpId maker = producer[graph.op(id).inputs[0].index()];
        const std::string made_by = kind(graph, maker);
        // Cut on one side of the border only; or in one storage with one that is.
        CHECK((made_by == "split" || made_by == "concat"));
      }
      // Of a pair that stays the gradient adds the bias itself.
      CHECK((left == 0) == ops_of(graph, "gelu_dx").empty());
      for (const OpId id : ops_of(graph, "gelu_dx")) CHECK(graph.op(id).inputs.size() >= 3);
      (left > 0 ? parted : whole) += 1;
    }
  }
  CHECK(parted > 0);
  CHECK(whole > 0);
}

/// x -> fc1 -> GELU -> fc2 -> loss of small matrices, with `more` behind the GELU.
Graph mlp(const std::string& more, const std::string& gelu = "gelu(%5, %3) g forward mlp") {
  return parse_graph(R"(
graph mlp ranks=1
%0 input f32 [6,4] x
%1 input i32 [6] targets
%2 param f32 [8,4] w1
%3 param f32 [8] b1
%4 param f32 [5,8] w2
%5 = linear(%0, %2) fc1 forward mlp
%6 = )" + gelu + "\n" + more,
                     op_table());
}

const std::string kTail =
    "%7 = linear(%6, %4) fc2 forward mlp\n"
    "%8, %9 = cross_entropy(%7, %1) {scale=1.0} loss forward head\n";

Graph trained(Graph graph) {
  autodiff(graph, graph.find_tensor("loss"));
  return graph;
}

TEST_CASE("a sum that others read keeps GELU's bias out, so its GELU stays an op") {
  CHECK(with_gelu(fuse_gelu(trained(mlp(kTail))), "linear") == 1);
  const std::string residual =
      "%7 = linear(%6, %4) fc2 forward mlp\n"
      "%8 = linear(%5, %4) skip forward mlp\n"
      "%9 = add(%7, %8) both forward mlp\n"
      "%10, %11 = cross_entropy(%9, %1) {scale=1.0} loss forward head\n";
  const Graph shared = trained(mlp(residual));
  CHECK(print(fuse_gelu(shared)) == print(shared));
  // Without a bias the sum is the same for all; its gradient has two summands.
  const Graph plain = fuse_gelu(trained(mlp(residual, "gelu(%5) g forward mlp")));
  CHECK(with_gelu(plain, "linear") == 1);
  CHECK(ops_of(plain, "gelu").empty());
  verify(plain, "test");
}

TEST_CASE("a gradient that is summed or read elsewhere keeps its GELU's slope apart") {
  const std::string twice =
      "%7 = linear(%6, %4) fc2 forward mlp\n"
      "%8 = linear(%6, %4) other forward mlp\n"
      "%9 = add(%7, %8) both forward mlp\n"
      "%10, %11 = cross_entropy(%9, %1) {scale=1.0} loss forward head\n";
  const Graph summed = fuse_gelu(trained(mlp(twice)));
  CHECK(with_gelu(summed, "linear") == 1);
  CHECK(with_gelu(summed, "linear_dx") == 0);  // its accumulator is the other's
  CHECK(ops_of(summed, "gelu_dx").size() == 1);
  Graph watched = trained(mlp(kTail));
  const OpId dx = watched.find_op("fc2.dx");
  REQUIRE(dx.valid());
  watched.add_op("add", "watch", {watched.out(dx), watched.out(dx)}, {}, Phase::kBackward);
  const Graph fused = fuse_gelu(watched);
  CHECK(with_gelu(fused, "linear") == 1);
  CHECK(with_gelu(fused, "linear_dx") == 0);
}

TEST_CASE("a product that adds for itself, or whose rows are others, stays apart from its GELU") {
  const auto stays = [](const std::string& first, const std::string& gelu) {
    const Graph graph = parse_graph(R"(
graph rows ranks=1
%0 input f32 [2,1,6,4] x
%1 param f32 [2,8,4] w
%2 param f32 [2,8] b
%3 input i32 [2,1] counts
%4 input i32 [2,1] others
%5 param f32 [8] one
)" + first + "\n" + gelu + "\n",
                                    op_table());
    return print(fuse_gelu(graph)) == print(graph);
  };
  const std::string used = "{rows=\"used\"}", product = "%6 = expert_linear(%0, %1, _, %3) ";
  const auto with = [&](const std::string& attrs) { return product + attrs + " p forward expert"; };
  const auto gelu = [](const std::string& inputs, const std::string& attrs) {
    return "%7 = gelu(%6, " + inputs + ") " + attrs + " g forward expert";
  };
  CHECK_FALSE(stays(with(used), gelu("%2, %3", used)));
  CHECK_FALSE(stays("%6 = expert_linear(%0, %1) p forward expert", gelu("%2", "")));
  CHECK(stays("%6 = expert_linear(%0, %1, %2) p forward expert", gelu("_", "")));
  CHECK(stays(with(used), gelu("%2", "")));
  CHECK(stays("%6 = expert_linear(%0, %1) p forward expert", gelu("%2, %3", used)));
  CHECK(stays(with(used), gelu("%2, %4", used)));
  CHECK(stays(with(used), gelu("%2, %3", "{rows=\"used\", loose=1}")));
  CHECK(stays(with(used), gelu("%2, %3", "{rows=\"used\", occupancy=0.5}")));
  CHECK(stays(with("{rows=\"used\", share=0.5}"), gelu("%2, %3", used)));
  CHECK(stays("%6 = expert_linear(%0, %1) p forward expert", gelu("%5", "")));
  CHECK_FALSE(
      stays("%6 = expert_linear(%0, %1) {products=\"each\"} p forward expert", gelu("%2", "")));
}

TEST_CASE("the fused op costs the flops of both and the bytes without the passes saved") {
  for (const auto& stages :
       std::vector<std::vector<Stage>>{{}, {stage("irregular_a2a"), stage("used_rows")}}) {
    PlanSpec spec = small_spec(stages);
    const Graph apart = make_plan(spec)->graph;
    spec.lowering.fuse_gelu = true;
    const Graph fused = make_plan(spec)->graph;
    const WorkContext context = {.slot_occupancy = 0.5};
    const auto work = [&](const Graph& graph, const char* name) {
      const OpId op = graph.find_op(name);
      REQUIRE(op.valid());
      return graph.def(op).work(graph, graph.op(op), context);
    };
    for (const char* const layer : {"b0.mlp", "b1.moe"}) {
      const auto name = [&](const char* op) { return layer + std::string(op); };
      const Work product = work(apart, name(".fc1").c_str());
      const Work gelu = work(apart, name(".gelu").c_str());
      const Work both = work(fused, name(".fc1").c_str());
      const double share = std::string(layer) == "b1.moe" && !stages.empty() ? 0.5 : 1;
      const TensorId sum = apart.out(apart.find_op(name(".fc1")));
      const double rows = share * static_cast<double>(apart.bytes(sum));
      const Op& g = apart.op(apart.find_op(name(".gelu")));
      const auto bias = static_cast<double>(apart.bytes(g.inputs[1]));
      const double counts = share < 1 ? static_cast<double>(apart.bytes(g.inputs[2])) : 0;
      const double beside = share * (bias + counts);  // what GELU reads beside rows
      CAPTURE(layer, stages.size());
      CHECK(both.flops == product.flops + gelu.flops);
      CHECK(both.gemm());
      CHECK(both.bytes == Approx(product.bytes + gelu.bytes - rows - beside + bias));
      const Work dx = work(apart, name(".fc2.dx").c_str());
      const Work slope = work(apart, name(".gelu.dx").c_str());
      const Work at_once = work(fused, name(".fc2.dx").c_str());
      CHECK(at_once.flops == dx.flops + slope.flops);
      CHECK(at_once.bytes == Approx(dx.bytes + slope.bytes - 2 * rows - beside));
    }
  }
}

TEST_CASE("misuse of a product with GELU names the op and what is allowed") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"%5, %6 = linear(%0, %2) {gelu=2} l forward mlp",
       "op 'l': attribute 'gelu' = 2, allowed: 0 or 1"},
      {"%5, %6 = linear(%0, %2, %3, %9) {gelu=1} l forward mlp",
       "op 'l': input 3 is not allowed with attribute 'gelu' = 1"},
      {"%5 = linear_dx(%9, %2) {gelu=1} l backward mlp",
       "input 3, the sum before GELU, must be given with attribute 'gelu' = 1"},
      {"%5 = linear_dx(%9, %2, _, %0) l backward mlp",
       "input 3, the sum before GELU, must be given with attribute 'gelu' = 1"},
      {"%5 = linear_dx(%9, %2, %0, %0) {gelu=1} l backward mlp",
       "input 2 is not allowed with attribute 'gelu' = 1"},
      {"%5 = linear_dx(%9, %2, _, %9) {gelu=1} l backward mlp",
       "input 3 'y' is f32 [6,8], expected floating point [6,4]"},
      {"%5 = round(%1) r forward mlp", "op 'r' (round): input 0 'ids' is i32, expected f32"},
  };
  for (const auto& [op, part] : cases) {
    CAPTURE(op);
    CHECK_THROWS_WITH(parse_graph(R"(
graph g ranks=1
%0 input f32 [6,4] x
%1 input i32 [6] ids
%2 param f32 [8,4] w
%3 param f32 [8] b
%9 input f32 [6,8] y
)" + op,
                                  op_table()),
                      Contains(part));
  }
  Graph fused = mlp("%8, %9 = cross_entropy(%6, %1) {scale=1.0} loss forward head\n");
  fused = fuse_gelu(fused);
  CHECK_THROWS_WITH(
      trained(fused),
      Contains(
          "op 'fc1': attribute 'gelu' = 1 is not allowed in a graph that autodiff differentiates"));
}

}  // namespace
}  // namespace moe
