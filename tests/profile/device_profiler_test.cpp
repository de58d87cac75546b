// Ops timed alone on the lazy device: each can be, what is queued for it is what streams and events
// allow, and nothing of it stays. What a sample says of a GPU only a GPU can tell.
#include "engine/profile/device_profiler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "engine/base/errors.h"
#include "engine/cost/profile_cache.h"
#include "engine/ops/kernel_call.h"
#include "engine/profile/operands.h"
#include "tests/exec/device/lazy_device.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

ProfileOptions quick_profile(int64_t ranks) {
  return {.ranks_beside = ranks, .min_time_s = 0, .min_samples = 5};
}

std::vector<Nanoseconds> profile_lazy(const Graph& graph, OpId op, const ProfileOptions& options,
                                      const kernels::DeviceTable& device = lazy_device(),
                                      LazyOrder order = LazyOrder::kRandom) {
  lazy_start(order, 3);
  std::vector<Nanoseconds> samples = profile_op_on_device(graph, op, options, device).ns;
  CHECK(lazy_stats().handles == 0);
  CHECK(std::string(lazy_device().take_error()) == "");
  return samples;
}

OpId op_of_kind(const Graph& graph, std::string_view kind) {
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.op(id).kind.valid() && graph.def(id).name == kind) return id;
  }
  throw std::runtime_error("no op of kind " + std::string(kind));
}

/// Every kind of op of the plan, parts of a batch and products with GELU apart; experts' movements
/// take no time of their own. Returns the kinds.
std::set<std::string> check_all_kinds(const PlanSpec& spec) {
  const auto plan = make_plan(spec);
  const Graph& graph = plan->graph;
  std::set<std::string> kinds;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const Op& op = graph.op(id);
    if (is_view(graph, op)) continue;
    std::string kind = graph.def(id).name;
    if (op.attrs.contains("gelu")) kind += " with gelu";
    if (!kinds.insert(kind + (op.rows.share ? " part" : "")).second) continue;
    CAPTURE(op.name, kind);
    ProfileOptions options = quick_profile(graph.num_ranks);
    options.work = spec.work;
    const std::vector<Nanoseconds> samples = profile_lazy(graph, id, options);
    CHECK(samples.size() >= 5);
    if (graph.def(id).collective == Collective::kExperts) continue;
    CHECK(*std::min_element(samples.begin(), samples.end()) > 0);
  }
  return kinds;
}

PlanSpec with(PlanSpec spec, std::vector<Stage> stages) {
  spec.system.stages = std::move(stages);
  return spec;
}

TEST_CASE("every op of a step can be timed on a device, whoever routes and whoever updates") {
  const std::string gate = GENERATE("switch", "top2", "expert_choice");
  PlanSpec spec = spec_of(small_model(gate), 2);
  change_model(spec, [&](Gpt2& m) { m.fused_attention = gate == "switch"; });
  if (gate == "top2") {
    spec.optimizer = Adamw{.lr = 0.01};
  }
  CAPTURE(gate);
  const std::set<std::string> kinds = check_all_kinds(spec);
  for (const char* kind : {"gate", "all_to_all", "all_reduce", "cross_entropy", "linear"}) {
    CHECK(kinds.count(kind) == 1);
  }
  CHECK(kinds.count(gate == "top2" ? "adamw" : "sgd") == 1);
}

TEST_CASE("every op of a step that sends and multiplies used rows alone can be timed on a device") {
  PlanSpec spec = spec_of(small_model("switch", 4), 2);
  spec.work.slot_occupancy = 0.8;
  const auto partition = [](double parts, double before, double after) {
    return pass("partition", {{"parts", parts}, {"before", before}, {"after", after}});
  };
  CHECK(check_all_kinds(with(spec, {pass("irregular_a2a")})).count("exchange_counts") == 1);
  check_all_kinds(with(spec, {pass("irregular_a2a"), pass("used_rows")}));
  const std::set<std::string> kinds =
      check_all_kinds(with(spec, {pass("irregular_a2a"), pass("used_rows"), partition(2, 1, 0)}));
  for (const char* kind : {"gate part", "dispatch part", "all_to_all part", "expert_linear part"}) {
    CHECK(kinds.count(kind) == 1);
  }
  check_all_kinds(with(spec_of(small_model("switch", 4), 2, Precision::kBF16),
                       {pass("irregular_a2a"), pass("used_rows"), partition(2, 1, 0)}));
  check_all_kinds(with(spec_of(small_model("hash", 4), 2),
                       {pass("irregular_a2a"), pass("used_rows"), partition(3, 6, 1)}));
}

TEST_CASE("every op of a plan that is edited for a device can be timed on it") {
  PlanSpec spec = spec_of(small_model("switch", 4), 2, Precision::kBF16);
  spec.lowering = {.fuse_gelu = true, .round_once = true};
  const Options cut = {{"parts", 2.0}, {"before", 1.0}, {"after", 0.0}};
  for (const auto& stages : std::vector<std::vector<Stage>>{
           {}, {pass("irregular_a2a"), pass("used_rows"), pass("partition", cut)}}) {
    const std::set<std::string> kinds = check_all_kinds(with(spec, stages));
    CHECK(kinds.count("round") == 1);
    CHECK(kinds.count("gelu") + kinds.count("gelu_dx") == 0);
    for (const char* kind : {"linear", "linear_dx", "expert_linear_dx"}) {
      CHECK(kinds.count(kind + std::string(" with gelu")) == 1);
    }
    CHECK(kinds.count(stages.empty() ? "expert_linear with gelu" : "expert_linear with gelu part"));
  }
}

TEST_CASE("both kinds of kernels of attention are timed on a device, as ops of their own") {
  PlanSpec spec = spec_of(small_model("switch"), 2, Precision::kBF16);
  std::multiset<std::string> timed;
  const auto measure = [&](const Graph& graph, OpId op, const WorkContext&) {
    timed.insert(op_signature(graph, op));
    return Samples{profile_lazy(graph, op, quick_profile(2))};
  };
  const ProfileCost cost(std::make_shared<ProfileCache>(":memory:"), "lazy", measure, nullptr,
                         spec.work);
  for (const bool own : {false, true}) {
    spec.lowering.own_attention = own;
    const Graph graph = make_plan(spec)->graph;
    for (const char* kind : {"attend", "attend_dx"}) {
      const OpId op = op_of_kind(graph, kind);
      for (int round = 0; round < 2; ++round) CHECK(cost.op_ns(graph, op) > 0);
    }
  }
  CHECK(cost.num_measured() == 4);
  CHECK(std::set<std::string>(timed.begin(), timed.end()).size() == 4);
  CHECK(timed.size() == 4);
}

// --- what a call finds, as the look after it sees it

std::vector<std::vector<float>> looked_at;

/// The lazy device; each look for numbers that are not finite keeps all that it looks at.
const kernels::DeviceTable& watched_device() {
  static const kernels::DeviceTable device = [] {
    kernels::DeviceTable d = lazy_device();
    d.note_nonfinite = [](int64_t*, kernels::EitherIn x, int64_t n, kernels::Stream stream) {
      looked_at.emplace_back(static_cast<size_t>(n));
      lazy_device().copy(looked_at.back().data(), x.data, n * int64_t{sizeof(float)}, stream);
    };
    return d;
  }();
  return device;
}

TEST_CASE("an operand that a call writes over is put back, so that all calls make the same") {
  PlanSpec spec = spec_of(small_model("switch"), 2);
  spec.optimizer = Adamw{.lr = 0.5};  // a second step would show
  const Graph graph = make_plan(spec)->graph;
  // In place of its input, of parameters and their states, and of what all ranks sum.
  const std::string kind = GENERATE("gelu_dx", "adamw", "all_reduce");
  const LazyOrder order = GENERATE(LazyOrder::kFirstFirst, LazyOrder::kLastFirst);
  CAPTURE(kind);
  const OpId op = op_of_kind(graph, kind);
  looked_at.clear();
  const auto samples = profile_lazy(graph, op, quick_profile(2), watched_device(), order);
  std::set<size_t> sizes;
  std::set<std::vector<float>> values;
  for (const std::vector<float>& x : looked_at) {
    sizes.insert(x.size());
    values.insert(x);
  }
  CHECK(looked_at.size() >= 2 * samples.size());  // of both ranks
  CHECK(values.size() == sizes.size());
}

TEST_CASE("an op on a device computes what the CPU does from the same operands") {
  const Graph graph = make_plan(spec_of(small_model("switch"), 1))->graph;
  const OpId op = op_of_kind(graph, "linear");
  looked_at.clear();
  profile_lazy(graph, op, quick_profile(1), watched_device());
  ProfileOperands operands(graph, op, {});
  operands.next();
  graph.def(op).run.f32({graph,
                         graph.op(op),
                         operands.inputs(),
                         operands.outputs(),
                         operands.scratch(),
                         kernels::fast_table(),
                         {}});
  REQUIRE_FALSE(looked_at.empty());
  for (const std::vector<float>& x : looked_at) {
    REQUIRE(std::memcmp(x.data(), operands.outputs()[0], x.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a sample is a call's time on the device, not what the device sleeps before a batch") {
  const Graph graph = make_plan(spec_of(small_model("switch"), 1))->graph;
  // On the lazy device a task is a microsecond: the kernel, and the look at its output.
  for (const Nanoseconds ns : profile_lazy(graph, op_of_kind(graph, "gelu"), quick_profile(1))) {
    CHECK(ns == 2000);
  }
}

TEST_CASE("a profile's key on a device names it, its host's kernels and its company") {
  const std::string key = device_profile_key({.ranks_beside = 2}, lazy_device());
  CHECK_THAT(key, Contains("lazy") && Contains(kernels::kernel_set()));
  CHECK(key != device_profile_key({.ranks_beside = 1}, lazy_device()));
  CHECK(key != profile_key({.ranks_beside = 2}));
}

// --- ops of the tests' own

std::vector<TensorSpec> infer_same(const Graph& g, const Op& op) {
  return {{g.tensor(op.inputs[0]).shape, DType::kF32}};
}

void run_wrong(const KernelCall<float>& c) {
  // Of the host's memory, which no kernel of a device may be given.
  static float on_host[4] = {};
  c.k.add(c.out(0), on_host, c.in(0), 4, c.stream);
}

const OpDef kWrong = {.name = "wrong",
                      .inputs = {{"x", Role::kAny}},
                      .outputs = {{"y"}},
                      .infer = infer_same,
                      .run = {run_wrong}};
const OpDef kSimulatedOnly = {.name = "simulated_only",
                              .inputs = {{"x", Role::kAny}},
                              .outputs = {{"y"}},
                              .infer = infer_same};

TEST_CASE("what the device says of an op ends its timing, and names the op") {
  const OpTable table({&kWrong, &kSimulatedOnly});
  Graph graph(table);
  const TensorId x = graph.add_tensor({"x", {4}, DType::kF32, TensorKind::kInput});
  const OpId wrong = graph.add_op("wrong", "b0.wrong", {x});
  const OpId none = graph.add_op("simulated_only", "b0.magic", {x});
  const auto profile = [&](OpId op) {
    lazy_start(LazyOrder::kAsGiven);
    return profile_op_on_device(graph, op, quick_profile(2), lazy_device());
  };
  CHECK_THROWS_AS(profile(wrong), RunError);
  CHECK(lazy_stats().handles == 0);
  CHECK_THROWS_WITH(profile(wrong), Contains("op b0.wrong") && Contains("not the device's"));
  CHECK_THROWS_AS(profile(none), UserError);
  CHECK_THROWS_WITH(profile(none), Contains("op 'b0.magic'") && Contains("no kernel"));
}

TEST_CASE("every op of a placed step can be timed on a device") {
  for (const char* policy : {"eplb", "prophet"}) {
    PlanSpec spec = spec_of(small_model("switch"), 2);
    spec.system.stages = {{.name = policy}};
    const std::set<std::string> kinds = check_all_kinds(spec);
    for (const char* kind : {"place", "slot_rows", "gather_loads", "all_to_all"}) {
      CAPTURE(policy, kind);
      CHECK(kinds.contains(kind));
    }
  }
}

}  // namespace
}  // namespace moe::test
