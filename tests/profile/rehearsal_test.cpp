#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/profile/rehearsal.h"
#include "tests/exec/support.h"

namespace moe {
namespace {

constexpr Nanoseconds kAlone = 1000;

/// Every op takes 1 us alone, also where its bytes go over a link.
class EvenCost : public CostModel {
 public:
  Nanoseconds op_ns(const Graph& graph, OpId op) const override {
    return is_view(graph, graph.op(op)) ? 0 : kAlone;
  }
  std::string describe() const override { return "1 us per op"; }
};

PlanSpec tiny_target(bool emulated, int64_t num_ranks = 2) {
  PlanSpec spec = rehearsal_spec(test::spec_of(test::small_model(), num_ranks), emulated);
  spec.cost = std::make_shared<EvenCost>();
  return spec;
}

/// A cache in a file of its own, gone at the end.
struct CacheFile {
  std::string path = (std::filesystem::temp_directory_path() /
                      ("moe-rehearsal-" + std::to_string(std::rand()) + ".sqlite"))
                         .string();
  CacheFile() = default;
  ~CacheFile() {
    for (const char* end : {"", "-wal", "-shm", ".lock"}) std::filesystem::remove(path + end);
  }
  CacheFile(const CacheFile&) = delete;
  CacheFile& operator=(const CacheFile&) = delete;
};

TEST_CASE("a rehearsal gives every kind of op of the plain program a finite figure") {
  const bool emulated = GENERATE(false, true);
  const auto plan = make_plan(tiny_target(emulated));
  const StepSamples samples = rehearse(*plan, {.steps = 3, .emulated = emulated});
  for (const auto& [group, ns] : samples) {
    INFO(group);
    CHECK((group.find("core") == 0 ? ns.size() > 3 : ns.size() == 3));
  }
  const InStep result = in_step(*plan, samples);
  CHECK(result.factors.size() + result.late.size() + (emulated ? 3 : 1) == samples.size());
  CHECK((result.core_ns > 0) == emulated);
  CHECK(result.core_late_ns >= 0);
  CHECK(result.factors.count("linear forward") + result.factors.count("sgd update") == 2);
  CHECK(result.late.size() == 2);
  for (const auto& [group, factor] : result.factors) {
    INFO(group);
    CHECK((std::isfinite(factor) && factor > 0));
  }
  CHECK((std::isfinite(result.overall) && result.overall > 0));
  CHECK((std::isfinite(result.peers) && result.peers >= 1));
}

TEST_CASE("with a pace a rehearsal finds no core time, and collectives end as the link says") {
  PlanSpec spec = tiny_target(true, 4);
  const auto plan = make_plan(spec);
  const StepSamples samples = rehearse(*plan, {.steps = 2, .emulated = true, .pace = 3});
  CHECK(samples.count("core") == 0);
  const InStep result = in_step(*plan, samples);
  CHECK(result.core_ns == 0);
  CHECK(result.core_late_ns == 0);
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (plan->graph.def(op).collective == Collective::kNone) continue;
    const auto& ns = samples.at(step_group(plan->graph, op));
    CHECK(*std::min_element(ns.begin(), ns.end()) >=
          collective_ns(spec.cluster, plan->graph, op, {}) - 1);
  }
}

TEST_CASE("over an emulated link a collective is never over before the link model says") {
  PlanSpec spec = tiny_target(true);
  const auto plan = make_plan(spec);
  const StepSamples samples = rehearse(*plan, {.steps = 3, .emulated = true});
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (plan->graph.def(op).collective == Collective::kNone) continue;
    const auto& ns = samples.at(step_group(plan->graph, op));
    CHECK(*std::min_element(ns.begin(), ns.end()) >=
          collective_ns(spec.cluster, plan->graph, op, {}));
  }
}

TEST_CASE("factors are medians of the steps over the time alone, lateness a collective's share") {
  const auto plan = make_plan(tiny_target(false));
  std::map<std::string, int64_t> ops;
  int64_t compute = 0;
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (is_view(plan->graph, plan->graph.op(op))) continue;
    ++ops[step_group(plan->graph, op)];
    compute += plan->graph.def(op).collective == Collective::kNone ? 1 : 0;
  }
  StepSamples samples;
  for (const auto& [group, n] : ops) samples[group] = {9 * n * kAlone, n * kAlone, 2 * n * kAlone};
  const int64_t linear = ops.at("linear forward");
  samples["linear forward"] = {3 * linear * kAlone};
  samples["peers"] = {0, 100 * (compute * 2 + linear), 1'000'000'000};

  const InStep result = in_step(*plan, samples);
  CHECK(result.factors.at("linear forward") == 3);
  CHECK(result.factors.at("sgd update") == 2);
  CHECK(result.late.at("all_to_all") == kAlone);
  CHECK(result.overall == Approx(2 + static_cast<double>(linear) / static_cast<double>(compute)));
  CHECK(result.peers == Approx(1.1));
  CHECK(result.core_ns == 0);
  for (const auto& [group, ns] : samples) {
    INFO(group);
    StepSamples fewer = samples;
    fewer.erase(group);
    CHECK_THROWS_WITH(in_step(*plan, fewer), Catch::Contains("no samples of the group '" + group));
  }
}

TEST_CASE("a rehearsal is executed once a cache, and anew for another target or number of steps") {
  const CacheFile file;
  const auto again = [&](const PlanSpec& spec, RehearsalOptions options,
                         const std::string& prefix = "cpu") {
    ProfileCache cache(file.path);
    return rehearsed(spec, options, cache, prefix);
  };
  const InStep first = again(tiny_target(true), {.steps = 2, .emulated = true});
  CHECK(first.took_ns > 0);
  CHECK_THAT(first.source, Catch::Contains("2 rehearsed steps") && Catch::Contains("0.5 GB/s"));
  const InStep second = again(tiny_target(true), {.steps = 2, .emulated = true});
  CHECK(second.took_ns == 0);
  CHECK(second.factors == first.factors);
  CHECK(second.late == first.late);
  CHECK((second.overall == first.overall && second.peers == first.peers));

  CHECK(again(tiny_target(true), {.steps = 3, .emulated = true}).took_ns > 0);
  CHECK(again(tiny_target(false), {.steps = 2}).took_ns > 0);
  CHECK(again(tiny_target(true), {.steps = 2, .emulated = true}, "other kernels").took_ns > 0);
  const InStep paced = again(tiny_target(true), {.steps = 2, .emulated = true, .pace = 2});
  CHECK(paced.took_ns > 0);
  CHECK_THAT(paced.source, Catch::Contains("pace 2"));
  CHECK(again(tiny_target(true), {.steps = 2, .emulated = true, .pace = 2}).took_ns == 0);
  CHECK(again(tiny_target(true), {.steps = 2, .emulated = true, .pace = 3}).took_ns > 0);
  PlanSpec larger = tiny_target(true);
  test::change_model(larger, [&](test::Gpt2& m) { m.hidden *= 2; });
  CHECK(again(larger, {.steps = 2, .emulated = true}).took_ns > 0);
  CHECK(again(tiny_target(false, 1), {.steps = 2}).took_ns > 0);
}

TEST_CASE("ops that steps run faster than the profile says are timed again, once a signature") {
  ProfileCache cache("");
  std::set<std::string> kinds, signatures;
  size_t calls = 0;
  RehearsalOptions options = {.steps = 1};
  options.time_again = [&](const Graph& graph, OpId op) {
    kinds.insert(graph.def(op).name);
    signatures.insert(op_signature(graph, op));
    ++calls;
  };
  /// Linear ops take a second alone, others nothing.
  class Disturbed : public EvenCost {
    Nanoseconds op_ns(const Graph& graph, OpId op) const override {
      return graph.def(op).name == std::string_view("linear") ? 1'000'000'000 : 0;
    }
  };
  PlanSpec spec = tiny_target(false);
  spec.cost = std::make_shared<Disturbed>();
  rehearsed(spec, options, cache, "cpu");
  CHECK(kinds == std::set<std::string>{"linear"});
  CHECK(calls == signatures.size());
  rehearsed(spec, options, cache, "cpu");  // known by now
  CHECK(calls == signatures.size());
}

TEST_CASE("a rehearsal sees neither the target's link, nor its system, fill or learning rate") {
  PlanSpec target = test::spec_of(test::small_model(), 2);
  target.cost = std::make_shared<EvenCost>();
  PlanSpec other = target;
  other.cluster.intra.bytes_per_s = other.cluster.nic.bytes_per_s = 1e3;
  other.system = {.name = "other", .sync = {.lane = ReduceLane::kOwn}};
  other.work.slot_occupancy = 0.5;
  CHECK(make_plan(rehearsal_spec(other, true))->hash ==
        make_plan(rehearsal_spec(target, true))->hash);
  CHECK(rehearsal_spec(other, true).cluster.nic.bytes_per_s ==
        rehearsal_spec(target, true).cluster.nic.bytes_per_s);

  PlanSpec diverging = tiny_target(false);
  diverging.optimizer = Sgd{.lr = 1e38};
  CHECK_NOTHROW(rehearse(*make_plan(diverging), {.steps = 3}));
}

}  // namespace
}  // namespace moe
