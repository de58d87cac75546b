#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/results/machine_state.h"
#include "engine/graph/text.h"
#include "engine/model/model.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/ops.h"
#include "engine/profile/indices.h"
#include "engine/profile/operands.h"
#include "engine/profile/profiler.h"
#include "kernels/kernels.h"
#include "tests/exec/support.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

constexpr ProfileOptions kQuick = {.ranks_beside = 2, .min_time_s = 0, .min_samples = 3};

/// A training step of a model so small that profiling all of it takes a moment.
Graph step_graph(const std::string& gate, int64_t num_ranks) {
  test::Gpt2 model;
  model.vocab = 64, model.layers = 2, model.hidden = 16, model.heads = 2, model.seq = 8;
  model.batch_per_device = 4, model.experts = 4, model.gate = gate;
  model.fused_attention = gate == "switch";
  Graph graph = test::build_forward(model, gate_spec(model), num_ranks);
  add_backward_and_update(graph, {}, {.bucket_bytes = 4096});
  return graph;
}

OpId op_of_kind(const Graph& graph, std::string_view kind) {
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.def(id).name == kind) return id;
  }
  throw std::runtime_error("no op of kind " + std::string(kind));
}

TEST_CASE("every op of a training step can be timed, collectives included") {
  const Graph graph = step_graph(GENERATE("switch", "top2"), 2);
  std::set<std::string> kinds;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (!kinds.insert(graph.def(id).name).second) continue;
    INFO(graph.op(id).name);
    const std::vector<Nanoseconds> samples = profile_op(graph, id, kQuick).ns;
    CHECK(samples.size() >= 3);
    CHECK(*std::min_element(samples.begin(), samples.end()) > 0);
  }
  CHECK(kinds.count("all_to_all") + kinds.count("all_reduce") + kinds.count("gate") == 3);
}

TEST_CASE(
    "the maps of a timed op are those of an even routing, in which each slot finds its choice") {
  const Graph graph = step_graph("top2", 2);
  const OpId combine = op_of_kind(graph, "combine"), combine_dx = op_of_kind(graph, "combine_dx");
  const Shape slots = graph.tensor(graph.op(combine).inputs[0]).shape;  // [E,C,d]
  const std::vector<int32_t> choice_slot = index_values(graph, combine, 2, {});
  const std::vector<int32_t> slot_choice = index_values(graph, combine_dx, 2, {});
  REQUIRE(choice_slot.size() == 4 * 8 * 2);
  REQUIRE(static_cast<int64_t>(slot_choice.size()) == slots[0] * slots[1]);
  std::vector<int64_t> used(index(slots[0]));
  for (size_t choice = 0; choice < choice_slot.size(); ++choice) {
    const int32_t slot = choice_slot[choice];
    REQUIRE(slot >= 0);  // even: nothing is dropped
    CHECK(slot_choice[index(slot)] == static_cast<int32_t>(choice));
    ++used[index(slot / slots[1])];
  }
  CHECK(used == std::vector<int64_t>(4, 16));
  CHECK(std::count(slot_choice.begin(), slot_choice.end(), -1) == slots[0] * slots[1] - 64);
}

TEST_CASE("made-up indices fill their tensors, also of packed rows that have no numbers yet") {
  test::Gpt2 model = test::small_model("top_k", 2);
  model.k = 2;
  model.capacity_factor = 0;
  PlanSpec spec = test::spec_of(model, 2);
  int64_t packed = 0;
  const auto check_all = [&](Graph graph, const PassContext&) {
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const Op& op = graph.ops()[i];
      for (size_t j = 0; j < op.inputs.size(); ++j) {
        if (!op.inputs[j].valid()) continue;
        const Tensor& tensor = graph.tensor(op.inputs[j]);
        if (tensor.stored_rows > 0) ++packed;
        if (tensor.dtype != DType::kI32) continue;
        const auto values = index_values(graph, OpId(static_cast<int64_t>(i)), j, {});
        INFO(op.name << " input " << j);
        CHECK(static_cast<int64_t>(values.size()) == stored_elements(tensor));
      }
    }
    return graph;
  };
  spec.system.stages = {test::pass("irregular_a2a"),
                        test::pass("used_rows"),
                        {.name = "check", .kind = StageKind::kStep, .transform = check_all}};
  const StepSpec step;
  check_all(make_plan(spec)->graph, {*spec.model, spec.cluster, *spec.cost, step, {}, "", nullptr});
  CHECK(packed > 10);
}

TEST_CASE("the operands of a timed op follow the slot occupancy, and both maps tell the same") {
  const Graph graph = step_graph("switch", 2);
  const OpId combine = op_of_kind(graph, "combine"), dispatch = op_of_kind(graph, "dispatch");
  const Shape slots = graph.tensor(graph.op(dispatch).outputs[0]).shape;  // [E,C,d]
  const double slot_occupancy = GENERATE(0.25, 0.5, 0.75);
  INFO("slot occupancy " << slot_occupancy << " of " << slots[1] << " places");
  const WorkContext context = {.slot_occupancy = slot_occupancy};
  const std::vector<int32_t> choice_slot = index_values(graph, combine, 2, context);
  const std::vector<int32_t> slot_choice = index_values(graph, dispatch, 1, context);
  const int64_t used = slots[0] * std::llround(slot_occupancy * static_cast<double>(slots[1]));
  REQUIRE(used > 0);
  CHECK(std::count_if(choice_slot.begin(), choice_slot.end(), [](int s) { return s >= 0; }) ==
        used);
  CHECK(std::count_if(slot_choice.begin(), slot_choice.end(), [](int c) { return c >= 0; }) ==
        used);
  for (size_t slot = 0; slot < slot_choice.size(); ++slot) {
    if (slot_choice[slot] < 0) continue;
    CHECK(choice_slot[index(slot_choice[slot])] == static_cast<int32_t>(slot));
  }
  const OpId exchange = op_of_kind(graph, "all_to_all");
  for (const int32_t rows : index_values(graph, exchange, 1, context)) {
    CHECK(rows == std::llround(slot_occupancy * static_cast<double>(slots[1])));
  }
}

TEST_CASE(
    "what a step's ops do with slots follows the occupancy, what they do with tokens does not") {
  const Graph graph = step_graph("switch", 2);
  for (const char* kind : {"dispatch", "combine", "dispatch_dx", "combine_dx", "combine_dweight"}) {
    CHECK(work_follows_occupancy(graph, op_of_kind(graph, kind)));
  }
  for (const char* kind : {"all_to_all", "expert_linear", "linear", "gate", "sgd", "all_reduce"}) {
    CHECK_FALSE(work_follows_occupancy(graph, op_of_kind(graph, kind)));
  }
  Graph irregular = graph;
  irregular.op(op_of_kind(graph, "all_to_all")).rows.irregular = true;
  irregular.op(op_of_kind(graph, "expert_linear")).attrs["rows"] = "used";
  CHECK(work_follows_occupancy(irregular, op_of_kind(graph, "all_to_all")));
  CHECK(work_follows_occupancy(irregular, op_of_kind(graph, "expert_linear")));
}

TEST_CASE("token ids are rows of the table that they index") {
  const Graph graph = step_graph("switch", 1);
  for (const auto& [kind, input] : {std::pair("embedding", 0), std::pair("cross_entropy", 1)}) {
    const std::vector<int32_t> ids = index_values(graph, op_of_kind(graph, kind), index(input), {});
    REQUIRE(ids.size() == 32);
    CHECK(*std::min_element(ids.begin(), ids.end()) >= 0);
    CHECK(*std::max_element(ids.begin(), ids.end()) < 64);
    CHECK(std::set<int32_t>(ids.begin(), ids.end()).size() > 8);
  }
}

TEST_CASE("what was just written is near, parameters and kept outputs are a step away") {
  const Graph graph = parse_graph(R"(graph g ranks=1
%0 input f32 [256,512] x
%1 param f32 [512,512] w1
%2 param f32 [512,512] w2
%3 = linear(%0, %1) a forward mlp layer=0
%4 = linear(%3, %2) b forward mlp layer=0
%5 = add(%4, %3) c forward mlp layer=0
)",
                                  op_table());
  const std::vector<int64_t> b = operand_copies(graph, graph.find_op("b"));
  REQUIRE(b.size() == 3);
  CHECK(b[0] == 1);
  CHECK(b[1] > 1);
  CHECK(b[2] == b[1]);
  // %3 was last read by b, right before c.
  CHECK(operand_copies(graph, graph.find_op("c"))[1] == 1);
}

TEST_CASE("copies lie apart, are taken in turn, and hold neither zeros nor denormals") {
  const Graph graph = step_graph("switch", 1);
  const OpId op = graph.find_op("b0.attn.qkv");
  REQUIRE(op.valid());
  const std::vector<int64_t> counts = operand_copies(graph, op);
  ProfileOperands operands(graph, op, {});
  std::set<void*> weights, outputs;
  for (int64_t call = 0; call < 2 * counts[1]; ++call) {
    operands.next();
    weights.insert(operands.inputs()[1]);
    outputs.insert(operands.outputs()[0]);
    const auto* w = static_cast<const float*>(operands.inputs()[1]);
    const int64_t n = num_elements(graph.tensor(graph.op(op).inputs[1]).shape);
    CHECK(std::all_of(w, w + n,
                      [](float v) { return std::abs(v) >= 0.25f && std::abs(v) <= 0.75f; }));
  }
  CHECK(static_cast<int64_t>(weights.size()) == counts[1]);
  CHECK(static_cast<int64_t>(outputs.size()) == counts.back());
  const Bytes bytes = graph.bytes(graph.op(op).inputs[1]);
  void* previous = nullptr;
  for (void* const p : weights) {
    if (previous != nullptr) CHECK(static_cast<char*>(p) - static_cast<char*>(previous) >= bytes);
    previous = p;
  }
}

TEST_CASE("an op that may work in place does, and finds its input as it was before each call") {
  const Graph graph = step_graph("switch", 1);
  const OpId op = op_of_kind(graph, "gelu_dx");
  REQUIRE(dying_aliases(graph, op) == std::vector<std::pair<int, int>>{{0, 0}});
  ProfileOperands operands(graph, op, {});
  operands.next();
  REQUIRE(operands.outputs()[0] == operands.inputs()[0]);
  auto* const data = static_cast<float*>(operands.outputs()[0]);
  const float before = data[5];
  data[5] = 0;
  operands.next();
  CHECK(static_cast<float*>(operands.inputs()[0])[5] == before);
}

// --- ops of the tests' own
// ---------------------------------------------------------------------------

std::mutex seen_mutex;
std::set<std::thread::id> seen_threads;

void run_recorded(const KernelCall<float>&) {
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::lock_guard lock(seen_mutex);
  seen_threads.insert(std::this_thread::get_id());
}

std::vector<TensorSpec> infer_same(const Graph& g, const Op& op) {
  return {{g.tensor(op.inputs[0]).shape, DType::kF32}};
}

const OpDef kRecorded = {.name = "recorded",
                         .inputs = {{"x", Role::kAny}},
                         .outputs = {{"y"}},
                         .infer = infer_same,
                         .run = {run_recorded}};
const OpDef kSimulatedOnly = {.name = "simulated_only",
                              .inputs = {{"x", Role::kAny}},
                              .outputs = {{"y"}},
                              .infer = infer_same};

OpTable own_table() {
  return OpTable({&kRecorded, &kSimulatedOnly});
}

TEST_CASE("a sample is one call, and so many threads as asked for run the op") {
  const OpTable table = own_table();
  Graph graph(table);
  const TensorId x = graph.add_tensor({"x", {4}, DType::kF32, TensorKind::kInput});
  const OpId op = graph.add_op("recorded", "r", {x});
  seen_threads.clear();
  const auto samples =
      profile_op(graph, op, {.ranks_beside = 3, .min_time_s = 0.02, .min_samples = 5}).ns;
  CHECK(seen_threads.size() == 3);
  CHECK(samples.size() >= 5);
  // The samples of rank 0, scaled so that their median is the mean of the ranks' medians.
  CHECK(median(samples) >= 2'000'000);
  const auto alone =
      profile_op(graph, op, {.ranks_beside = 1, .min_time_s = 0.02, .min_samples = 5}).ns;
  CHECK(*std::min_element(alone.begin(), alone.end()) >= 2'000'000);
}

TEST_CASE("collectives in groups are timed with all groups at once, and all ranks stop together") {
  Graph graph(op_table());
  graph.num_ranks = 4;
  const TensorId x = graph.add_tensor({"x", {4, 8, 16}, DType::kF32, TensorKind::kInput});
  const Attrs across = {{"group", int64_t{2}}, {"stride", int64_t{2}}};
  Attrs to_expert = across;
  to_expert["to"] = std::string("expert");
  graph.add_op("all_reduce", "r", {x}, across);
  graph.add_op("all_to_all", "a", {x}, to_expert);
  for (const OpId op : {OpId(0), OpId(1)}) {
    for (int run = 0; run < 5; ++run) {
      const auto samples =
          profile_op(graph, op, {.ranks_beside = 4, .min_time_s = 0.001, .min_samples = 5}).ns;
      CHECK(samples.size() >= 5);
    }
  }
}

TEST_CASE("collectives of a pipeline rank are timed on all pipeline ranks, which stop together") {
  Graph graph(op_table());
  graph.num_ranks = 2;
  const TensorId x = graph.add_tensor({"x", {2, 8, 16}, DType::kF32, TensorKind::kInput});
  graph.add_op("all_reduce", "r", {x});
  graph.add_op("all_to_all", "a", {x}, {{"to", std::string("expert")}});
  graph.add_op("gather_rows", "g", {x}, {{"axis", int64_t{0}}});
  for (int id = 0; id < 3; ++id) {
    for (int run = 0; run < 5; ++run) {
      const ProfileOptions options = {.ranks_beside = 4, .min_time_s = 0.001, .min_samples = 5};
      CHECK(profile_op(graph, OpId(id), options).ns.size() >= 5);
    }
  }
}

TEST_CASE("an op that is only simulated cannot be timed, and is named") {
  const OpTable table = own_table();
  Graph graph(table);
  const TensorId x = graph.add_tensor({"x", {4}, DType::kF32, TensorKind::kInput});
  const OpId op = graph.add_op("simulated_only", "b0.magic", {x});
  CHECK_THROWS_AS(profile_op(graph, op, kQuick), UserError);
  CHECK_THROWS_WITH(profile_op(graph, op, kQuick), Contains("op 'b0.magic'"));
}

TEST_CASE("a profile's key tells the kernels and the company apart") {
  CHECK_THAT(profile_key({.ranks_beside = 2}), Contains(kernels::kernel_set()));
  CHECK(profile_key({.ranks_beside = 2}) != profile_key({.ranks_beside = 1}));
}

TEST_CASE("calls of a part take turns at the rows of all parts, which never leave the capacity") {
  Graph graph(op_table());
  const auto rows = [&](const char* name, Shape shape, DType dtype, TensorKind kind) {
    return graph.add_tensor({name, std::move(shape), dtype, kind});
  };
  const TensorId x = rows("x", {2, 2, 40, 8}, DType::kF32, TensorKind::kInput);
  const TensorId w = rows("w", {2, 16, 8}, DType::kF32, TensorKind::kParam);
  const TensorId end = rows("end", {2, 2}, DType::kI32, TensorKind::kInput);
  const TensorId begin = rows("begin", {2, 2}, DType::kI32, TensorKind::kInput);
  const OpId part = graph.add_op("expert_linear", "part", {x, w, TensorId(), end, begin},
                                 {{"rows", std::string("used")}, {"share", 0.25}});
  ProfileOperands operands(graph, part, {.slot_occupancy = 0.8});
  std::set<std::pair<int32_t, int32_t>> seen;
  for (int call = 0; call < 1000; ++call) {
    operands.next();
    const auto* from = static_cast<const int32_t*>(operands.inputs()[4]);
    const auto* to = static_cast<const int32_t*>(operands.inputs()[3]);
    for (int i = 1; i < 4; ++i) {
      REQUIRE(from[i] == from[0]);
      REQUIRE(to[i] == to[0]);
    }
    seen.insert({from[0], to[0]});
  }
  using Rows = std::set<std::pair<int32_t, int32_t>>;
  CHECK(seen == Rows{{0, 8}, {8, 16}, {16, 24}, {24, 32}});
}

TEST_CASE("where packed rows have room for one full slot only, all parts leave the others empty") {
  Graph graph(op_table());
  const auto add = [&](Tensor tensor) { return graph.add_tensor(std::move(tensor)); };
  const TensorId x = add({"x", {2, 2, 40, 8}, DType::kF32, TensorKind::kInput});
  graph.tensor(x).stored_rows = 80;
  const TensorId w = add({"w", {2, 16, 8}, DType::kF32, TensorKind::kParam});
  const TensorId end = add({"end", {2, 2}, DType::kI32, TensorKind::kInput});
  const TensorId begin = add({"begin", {2, 2}, DType::kI32, TensorKind::kInput});
  const OpId part = graph.add_op("expert_linear", "part", {x, w, TensorId(), end, begin},
                                 {{"rows", std::string("used")}, {"share", 0.25}});
  ProfileOperands operands(graph, part, {.slot_occupancy = 1});
  std::set<std::vector<int32_t>> seen;
  for (int call = 0; call < 1000; ++call) {
    operands.next();
    const auto* from = static_cast<const int32_t*>(operands.inputs()[4]);
    const auto* to = static_cast<const int32_t*>(operands.inputs()[3]);
    seen.insert({from[0], to[0], from[1], to[1], to[2] - from[2], to[3] - from[3]});
  }
  CHECK(seen == std::set<std::vector<int32_t>>{{0, 10, 0, 10, 0, 0},
                                               {10, 20, 10, 20, 0, 0},
                                               {20, 30, 20, 30, 0, 0},
                                               {30, 40, 30, 40, 0, 0}});
}

TEST_CASE("waking a lane is sampled in both directions and takes some time") {
  std::vector<Nanoseconds> samples = profile_handoff(2).ns;
  CHECK(samples.size() == 180);
  std::sort(samples.begin(), samples.end());
  CHECK(samples.front() >= 0);
  CHECK(samples[90] > 100);  // a look at a variable costs as much
}

TEST_CASE("samples at reference speed are the mean of the ranks, each by its own core's speed") {
  // The second core is half as fast as the first, and both are slower than the reference.
  const auto at = [](int64_t first, int64_t second) {
    return at_reference_speed(
        {{{{900, 1000, 1100}, 0.25, true}, first}, {{{2100, 2000, 1900}}, second}});
  };
  const Samples samples = at(2 * kReferenceNs, 4 * kReferenceNs);
  CHECK(samples == Samples{{450, 500, 550}, 0.25, true});
  CHECK(at(kReferenceNs, kReferenceNs).ns == std::vector<Nanoseconds>{1350, 1500, 1650});
  CHECK(at_reference_speed({{{{7, 8, 9}}, kReferenceNs}, {{}, kReferenceNs}}).ns ==
        std::vector<Nanoseconds>{7, 8, 9});
}

}  // namespace
}  // namespace moe
