// Full recomputation of blocks: what the graph of a step keeps for its backward and what it makes
// again. That training is the same in bits is in tests/exec/mixes/recompute_test.cpp.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <set>

#include "engine/analysis/step_summary.h"
#include "engine/base/errors.h"
#include "engine/graph/text.h"
#include "engine/ops/ops.h"
#include "engine/timeline/metrics.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::change_model;
using test::small_spec;
using test::stage;

constexpr const char* kSuffix = ".again";

enum class Recompute : uint8_t { kNone, kBlocks };

std::shared_ptr<const Plan> plan_of(PlanSpec spec, Recompute recompute) {
  if (recompute == Recompute::kBlocks) spec.system.stages.push_back(stage("recompute"));
  return make_plan(std::move(spec));
}

/// Mixes of passes that cut, count, place and exchange in every way.
std::vector<PlanSpec> mixes() {
  const auto degree = stage("capacity_pipeline", {{"degree", 2.0}});
  const auto parts = stage("partition", {{"parts", 2.0}});
  const std::vector<std::vector<Stage>> all = {
      {},
      {stage("irregular_a2a")},
      {stage("irregular_a2a"), stage("used_rows"), parts, stage("dw_schedule")},
      {degree, stage("micro_ops", {{"bytes", 1500.0}})},
      {stage("irregular_a2a"), degree},
      {parts, degree},
      {stage("fastermoe_pipeline", {{"groups", 2.0}})},
      {stage("prophet"), stage("prophet_schedule")},
      {stage("eplb"), degree},
      {stage("fastermoe_shadowing")},
      {stage("swap"), parts},
      {stage("hierarchical_a2a")}};
  std::vector<PlanSpec> specs;
  for (const std::vector<Stage>& stages : all) {
    for (const double capacity_factor : {1.25, 0.0}) {
      specs.push_back(small_spec(stages, 4));
      specs.back().cluster.nodes = specs.back().cluster.devices_per_node = 2;
      change_model(specs.back(), [&](test::Gpt2& m) { m.capacity_factor = capacity_factor; });
    }
  }
  return specs;
}

std::string names_of(const PlanSpec& spec) {
  std::string names;
  for (const Stage& s : spec.system.stages) names += s.name + " ";
  return names + (spec.model->capacity_factor > 0 ? "with capacity" : "without capacity");
}

bool runs_again(const Op& op) {
  return op.phase == Phase::kRecompute;
}

/// The op of which this one is the clone.
const Op& first_run(const Graph& graph, const Op& clone) {
  REQUIRE(clone.name.ends_with(kSuffix));
  const OpId id = graph.find_op(clone.name.substr(0, clone.name.size() - std::strlen(kSuffix)));
  REQUIRE(id.valid());
  return graph.op(id);
}

/// The bytes that a block's forward leaves for later phases, without integers.
std::map<int32_t, Bytes> kept_bytes(const Graph& graph) {
  const std::vector<OpId> producer = graph.producers();
  std::map<int32_t, std::set<TensorId>> kept;
  for (const Op& op : graph.ops()) {
    if (op.phase == Phase::kForward) continue;
    for (const TensorId t : op.inputs) {
      const OpId made = t.valid() ? producer[t.index()] : OpId();
      if (!made.valid() || graph.op(made).phase != Phase::kForward) continue;
      if (graph.tensor(t).dtype != DType::kI32) kept[graph.op(made).layer].insert(t);
    }
  }
  std::map<int32_t, Bytes> bytes;
  for (const auto& [layer, tensors] : kept) {
    for (const TensorId t : tensors) bytes[layer] += graph.bytes(t);
  }
  return bytes;
}

TEST_CASE("an op that runs again is the op of the forward, on inputs that are kept or made again") {
  for (const PlanSpec& spec : mixes()) {
    CAPTURE(names_of(spec));
    const auto plan = plan_of(spec, Recompute::kBlocks);
    const Graph& graph = plan->graph;
    double flops = 0, first_flops = 0;
    for (const Op& op : graph.ops()) {
      if (!runs_again(op)) continue;
      CAPTURE(op.name);
      const Op& first = first_run(graph, op);
      CHECK((op.kind == first.kind && op.attrs == first.attrs && op.rows == first.rows &&
             op.layer == first.layer));
      CHECK((op.segment == first.segment && op.part == first.part));
      REQUIRE(op.inputs.size() == first.inputs.size());
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (op.inputs[i] == first.inputs[i]) continue;
        CHECK(graph.tensor(op.inputs[i]).name == graph.tensor(first.inputs[i]).name + kSuffix);
      }
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        const Tensor &made = graph.tensor(op.outputs[i]), &was = graph.tensor(first.outputs[i]);
        CHECK(made.name == was.name + kSuffix);
        CHECK((made.shape == was.shape && made.stored_rows == was.stored_rows));
        CHECK((made.dtype == was.dtype && made.kind == TensorKind::kActivation));
        CHECK(made.dtype != DType::kI32);
      }
      flops += graph.def(op).work(graph, op, {}).flops;
      first_flops += graph.def(first).work(graph, first, {}).flops;
    }
    CHECK(flops > 0);
    CHECK(flops == first_flops);
    CHECK(print(parse_graph(print(graph), op_table())) == print(graph));
  }
}

TEST_CASE("the backward of a block reads nothing of its forward but what must stay") {
  for (const PlanSpec& spec : mixes()) {
    CAPTURE(names_of(spec));
    const auto plan = plan_of(spec, Recompute::kBlocks);
    const Graph& graph = plan->graph;
    const std::vector<OpId> producer = graph.producers();
    std::set<TensorId> crosses;  // tensors that go from one block to another
    for (const Op& op : graph.ops()) {
      for (const TensorId t : op.inputs) {
        if (!t.valid() || !producer[t.index()].valid()) continue;
        if (graph.op(producer[t.index()]).layer != op.layer) crosses.insert(t);
      }
    }
    for (const Op& op : graph.ops()) {
      if (op.phase != Phase::kBackward && !runs_again(op)) continue;
      for (const TensorId t : op.inputs) {
        const OpId id = t.valid() ? producer[t.index()] : OpId();
        if (!id.valid() || graph.op(id).layer != op.layer || op.layer < 0) continue;
        if (graph.op(id).phase != Phase::kForward || crosses.contains(t)) continue;
        CAPTURE(op.name, graph.tensor(t).name);
        const auto& outputs = graph.op(id).outputs;
        const bool chooses = std::any_of(outputs.begin(), outputs.end(), [&](TensorId o) {
          return graph.tensor(o).dtype == DType::kI32;
        });
        const OpDef& def = graph.def(id);
        const bool copies = def.payload == Payload::kShadows || is_view(graph, graph.op(id));
        CHECK((chooses || copies || def.loss != Loss::kNone));
      }
    }
  }
}

TEST_CASE("a block keeps its input, and the memory of a deep model falls by what it dropped") {
  const auto memory_of = [](int64_t layers, Recompute recompute, std::vector<Stage> stages) {
    PlanSpec spec = small_spec(std::move(stages));
    change_model(spec, [&](test::Gpt2& m) { m.layers = layers, m.seq = 64; });
    return plan_of(spec, recompute);
  };
  const std::vector<std::vector<Stage>> systems = {
      {}, {stage("irregular_a2a"), stage("used_rows"), stage("partition", {{"parts", 2.0}})}};
  for (const std::vector<Stage>& stages : systems) {
    const auto kept = memory_of(12, Recompute::kNone, stages);
    const auto again = memory_of(12, Recompute::kBlocks, stages);
    const Model& model = *kept->spec.model;
    const Bytes input = model.tokens_per_rank() * 16 * 4;
    // The gate's scores and weights stay, since it runs once.
    const Bytes gate = model.tokens_per_rank() * (model.experts + 1) * 4;
    Bytes dropped = 0;
    const std::map<int32_t, Bytes> all = kept_bytes(kept->graph), left = kept_bytes(again->graph);
    for (const auto& [layer, bytes] : left) {
      if (layer < 0) continue;
      CAPTURE(layer);
      // A block's output is the next one's input. Where a range of ops is cut, it crosses in parts
      // and as a whole, which share their storage.
      CHECK(bytes >= input);
      CHECK(bytes <= (stages.empty() ? 1 : 2) * input + gate);
      dropped += all.at(layer) - bytes;
    }
    const Bytes saved = kept->memory.arena_bytes - again->memory.arena_bytes;
    CAPTURE(dropped, saved, kept->memory.arena_bytes);
    CHECK(saved > kept->memory.arena_bytes / 2);
    CHECK(saved < dropped);
  }
}

TEST_CASE("parts along the rows in use share the memory of the whole, and drop as much") {
  const auto arena = [](Recompute recompute, std::vector<Stage> stages) {
    stages.insert(stages.begin(), {stage("irregular_a2a"), stage("used_rows")});
    PlanSpec spec = small_spec(std::move(stages));
    change_model(spec, [](test::Gpt2& m) { m.layers = 12, m.seq = 64, m.capacity_factor = 0; });
    return static_cast<double>(plan_of(spec, recompute)->memory.arena_bytes);
  };
  const double whole = arena(Recompute::kNone, {});
  const double saved = whole - arena(Recompute::kBlocks, {});
  for (const Stage& cut : {stage("capacity_pipeline", {{"degree", 2.0}}),
                           stage("fastermoe_pipeline", {{"groups", 2.0}})}) {
    CAPTURE(cut.name);
    const double kept = arena(Recompute::kNone, {cut});
    // A part does not take the memory of its input, in which the other parts still are.
    CHECK(kept <= 4 * whole / 3);
    CHECK(kept - arena(Recompute::kBlocks, {cut}) >= 0.9 * saved);
  }
}

TEST_CASE("blocks run again right before their backward, from the last to the first") {
  for (const bool losses : {false, true}) {
    PlanSpec spec = small_spec({stage("serial")});
    // Gradients of two losses of a router are summed at the begin of the whole backward.
    if (losses) change_model(spec, [](test::Gpt2& m) { m.balance_loss = {0.1}, m.z_loss = 0.1; });
    const auto plan = plan_of(spec, Recompute::kBlocks);
    const Graph& graph = plan->graph;
    std::vector<int32_t> order;  // of the blocks, as they run again
    std::set<int32_t> backward;  // blocks whose backward has begun
    for (const Op& op : graph.ops()) {
      if (runs_again(op)) {
        if (order.empty() || order.back() != op.layer) order.push_back(op.layer);
        CHECK(!backward.contains(op.layer));
        CHECK((op.layer == 3 || backward.contains(op.layer + 1)));
      }
      const bool sums_losses = losses && op.name.find("_loss.sum.") != std::string::npos;
      if (op.phase == Phase::kBackward && !sums_losses) backward.insert(op.layer);
    }
    CHECK(order == std::vector<int32_t>{3, 2, 1, 0});
  }
}

TEST_CASE("exchanges of rows run again and take their time; counts are exchanged once") {
  const PlanSpec spec = small_spec({stage("irregular_a2a"), stage("serial")});
  const auto kept = plan_of(spec, Recompute::kNone), again = plan_of(spec, Recompute::kBlocks);
  // Per layer two exchanges in the forward, two in the backward, and two again.
  const auto exchanges = [](const Plan& plan) {
    return test::ops_of(plan.graph, "all_to_all").size();
  };
  CHECK(exchanges(*kept) == 8);
  CHECK(exchanges(*again) == 12);
  CHECK(test::ops_of(again->graph, "exchange_counts").size() == 2);
  const auto count =
      std::count_if(again->graph.ops().begin(), again->graph.ops().end(), runs_again);
  CHECK(test::makespan(*again) == test::makespan(*kept) + 10 * count);
}

TEST_CASE(
    "forward and backward of MoE layers take the times that they have without recomputation") {
  for (const char* order : {"serial", "blocking_a2a"}) {
    const PlanSpec spec = small_spec({stage(order)});
    const auto kept = plan_of(spec, Recompute::kNone), again = plan_of(spec, Recompute::kBlocks);
    const Metrics a = metrics(kept->graph, test::simulate(*kept));
    const Metrics b = metrics(again->graph, test::simulate(*again));
    CHECK(a.forward.layer_ns == b.forward.layer_ns);
    CHECK(a.forward.a2a_ns == b.forward.a2a_ns);
    CHECK(a.backward.layer_ns == b.backward.layer_ns);
    CHECK(a.backward.window_ns == b.backward.window_ns);
    CHECK(b.expert_ns > a.expert_ns);
    const auto before = ops_alone(kept->graph, *spec.cost);
    auto sums = ops_alone(again->graph, *spec.cost);
    Nanoseconds compute = 0;
    for (const Op& op : again->graph.ops()) {
      if (runs_again(op) && again->graph.def(op).lane == LaneKind::kCompute) compute += 10;
    }
    CHECK(compute > 0);
    CHECK(sums.at("recompute").ms() == Approx(static_cast<double>(compute) / 1e6));
    CHECK(sums.at("expert").ms() == before.at("expert").ms());
    CHECK(sums.at("all_to_all").ms() == Approx(1.5 * before.at("all_to_all").ms()));
    CHECK(!before.contains("recompute"));
  }
}

TEST_CASE("all-reduces between pairs of all-to-alls also keep clear of those that run again") {
  PlanSpec spec = small_spec({stage("fixed")});
  spec.system.sync.lane = ReduceLane::kOwn;
  const auto plan = plan_of(spec, Recompute::kBlocks);
  const Timeline timeline = test::simulate(*plan);
  size_t reduces = 0;
  for (const Span& sum : timeline.spans) {
    if (plan->graph.def(sum.op).collective != Collective::kAllReduce) continue;
    ++reduces;
    for (const Span& a2a : timeline.spans) {
      if (plan->graph.def(a2a.op).payload != Payload::kRows) continue;
      CHECK((sum.end <= a2a.begin || a2a.end <= sum.begin));
    }
  }
  CHECK(reduces > 0);
}

TEST_CASE("without the option nothing changes, and inference refuses it") {
  const PlanSpec spec = small_spec({stage("serial")});
  CHECK(make_plan(spec)->hash == plan_of(spec, Recompute::kNone)->hash);
  CHECK(make_plan(spec)->hash != plan_of(spec, Recompute::kBlocks)->hash);
  PlanSpec inference = spec;
  inference.inference = true;
  CHECK_THAT(test::message_of<UserError>([&] { plan_of(inference, Recompute::kBlocks); }),
             Contains("stage 'recompute'") && Contains("inference has a forward pass only"));
}

}  // namespace
}  // namespace moe
