#include "engine/sim/inference.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

constexpr int64_t kRanks = 4;

Cluster four_devices() {
  return {.name = "four",
          .nodes = 2,
          .devices_per_node = 2,
          .device = {.gemm_flops_per_s = 5e13,
                     .vector_flops_per_s = 1e13,
                     .memory_bytes_per_s = 1e12,
                     .launch_ns = 1'000},
          .intra = {20e9, 1'000},
          .nic = {10e9, 2'500},
          .a2a_base_ns = 10'000};
}

ModelSpec small_model() {
  return {.vocab = 100,
          .layers = 6,
          .hidden = 128,
          .heads = 4,
          .seq = 64,
          .ffn = 512,
          .batch_per_device = 16,
          .experts = 4,
          .moe_every = 1};
}

/// Tokens have a class for good, skewed and different from step to step; in each layer they choose
/// their class's expert, or with probability `noise` any. From step `turn` on classes have other
/// experts.
RoutingLaw class_law(double noise, int64_t turn = 1 << 20) {
  const auto route = [=](const RoutingQuery& q, int64_t rank, std::span<int32_t> choices) {
    Rng classes(hash32(static_cast<uint64_t>(q.step), static_cast<uint64_t>(rank)));
    Rng draws(hash32(static_cast<uint64_t>(q.step * 1000 + q.layer), 77 + uint64_t(rank)));
    const int64_t most = q.step % q.experts;
    for (int32_t& choice : choices) {
      const double u = classes.uniform();
      int64_t c = (most + static_cast<int64_t>(u * u * u * double(q.experts))) % q.experts;
      if (draws.uniform() < noise) c = draws.below(q.experts);
      choice = static_cast<int32_t>((c * 3 + q.layer * (q.step >= turn ? 2 : 1)) % q.experts);
    }
  };
  const auto loads = [=](const RoutingQuery& q) {
    Loads all(q.ranks, q.experts);
    std::vector<int32_t> choices(static_cast<size_t>(q.tokens));
    for (int64_t rank = 0; rank < q.ranks; ++rank) {
      route(q, rank, choices);
      for (const int32_t e : choices) ++all.at(rank, e);
    }
    return all;
  };
  return {"classes", route, loads};
}

InferenceTrace trace_of(const RoutingLaw& law) {
  return trace_inference(law, {.first = {.ranks = kRanks, .tokens = 1024, .experts = 4},
                               .layers = 6,
                               .profile_batches = 8,
                               .batches = 8,
                               .path = 2});
}

InferenceSpec spec_of(InferenceSystem system) {
  return {.model = small_model(),
          .cluster = four_devices(),
          .system = system,
          .times = {.place_ns = 0, .resume_ns = 0, .rerun_ns = 0, .host_bytes_per_s = 1e18}};
}

InferenceResult run(InferenceSystem system, const RoutingLaw& law = class_law(0)) {
  return simulate_inference(trace_of(law), spec_of(system));
}

Nanoseconds sum(const std::vector<Nanoseconds>& v) {
  return std::accumulate(v.begin(), v.end(), Nanoseconds{0});
}

TEST_CASE("with a balanced gate a batch takes what its parts take alone") {
  const InferenceResult result = run(InferenceSystem::kIdeal);
  const InferenceCosts costs(small_model(), four_devices());
  const int64_t rows = 16 * 64;  // a rank's tokens, as many for each of four experts
  const Nanoseconds a2a = all_to_all_ns(four_devices(), double(rows / 4 * 128 * 4));
  Nanoseconds expected = costs.after_layers();
  for (const auto& layer : costs.layers()) {
    expected += layer.before + layer.gate + layer.dispatch + layer.combine + 2 * a2a;
    expected += costs.expert_ns(rows);
  }
  CHECK(costs.layers().size() == 6);
  for (const Nanoseconds ns : result.batch_ns) CHECK(ns == expected);
}

TEST_CASE("with one expert a device the most loaded device decides, by counting") {
  const RoutingLaw law = class_law(0.3);
  const InferenceResult result = run(InferenceSystem::kBaseline, law);
  const InferenceCosts costs(small_model(), four_devices());
  for (int64_t batch = 0; batch < 8; ++batch) {
    for (int64_t m = 0; m < 6; ++m) {
      const Loads loads =
          law.loads({.step = 8 + batch, .layer = m, .ranks = kRanks, .tokens = 1024, .experts = 4});
      std::vector<double> there(16), back(16);
      int64_t most = 0;
      for (int64_t e = 0; e < 4; ++e) {
        most = std::max(most, loads.of_expert(e));
        for (int64_t s = 0; s < 4; ++s) {
          there[size_t(s * 4 + e)] = back[size_t(e * 4 + s)] = double(loads.at(s, e)) * 512;
        }
      }
      const InferenceLayer& layer = result.layers[size_t(batch * 6 + m)];
      CHECK(layer.a2a_ns ==
            all_to_all_v_ns(four_devices(), there) + all_to_all_v_ns(four_devices(), back));
      CHECK(layer.expert_ns == costs.expert_ns(most));
      CHECK_FALSE(layer.estimated);
    }
  }
}

TEST_CASE("where paths say all, phase 1 is right and allocation brings a batch near the ideal") {
  const InferenceResult lina = run(InferenceSystem::kLina);
  for (size_t i = 0; i < lina.layers.size(); ++i) {
    CHECK(lina.layers[i].estimated == (i % 6 >= 2));
    CHECK(lina.layers[i].held == lina.layers[i].estimated);
    CHECK_FALSE(lina.layers[i].rerun);
  }
  const Nanoseconds ours = sum(lina.batch_ns), ideal = sum(run(InferenceSystem::kIdeal).batch_ns),
                    baseline = sum(run(InferenceSystem::kBaseline).batch_ns);
  CHECK(ideal < ours);
  CHECK(ours < baseline);
  CHECK(double(ours - ideal) < 0.7 * double(baseline - ideal));
  CHECK(run(InferenceSystem::kNoFineTuning).batch_ns == lina.batch_ns);
  CHECK(run(InferenceSystem::kLina).batch_ns == lina.batch_ns);
}

TEST_CASE("where the profile is wrong, phase 2 places by what the gate chose") {
  const RoutingLaw law = class_law(0, 8);
  const InferenceResult lina = run(InferenceSystem::kLina, law),
                        none = run(InferenceSystem::kNoEstimation, law);
  const InferenceResult left = run(InferenceSystem::kNoFineTuning, law);
  for (size_t i = 0; i < lina.layers.size(); ++i) {
    CHECK(none.layers[i].rerun);
    if (i % 6 < 2) continue;
    CHECK(lina.layers[i].rerun == !lina.layers[i].held);
    if (lina.layers[i].rerun) CHECK(lina.layers[i].layer_ns == none.layers[i].layer_ns);
    CHECK(left.layers[i].layer_ns >= none.layers[i].layer_ns);
  }
  CHECK(sum(left.batch_ns) > sum(lina.batch_ns));
}

TEST_CASE("phase 2 blocks: a held estimate costs resume, another one rerun") {
  InferenceSpec spec = spec_of(InferenceSystem::kLina);
  const InferenceTrace trace = trace_of(class_law(0.5));
  const InferenceResult free = simulate_inference(trace, spec);
  spec.times.resume_ns = 1'450'000, spec.times.rerun_ns = 6'200'000;
  const InferenceResult paid = simulate_inference(trace, spec);
  int64_t held = 0, rerun = 0;
  Nanoseconds more = 0;
  for (size_t i = 0; i < paid.layers.size(); ++i) {
    const InferenceLayer& layer = paid.layers[i];
    held += layer.held ? 1 : 0;
    rerun += layer.rerun ? 1 : 0;
    const Nanoseconds cost = !layer.estimated ? 0 : layer.held ? 1'450'000 : 6'200'000;
    CHECK(layer.phase2_ns == cost);
    CHECK(layer.layer_ns == free.layers[i].layer_ns + cost);
    more += cost;
  }
  CHECK(held > 0);
  CHECK(rerun > 0);
  CHECK(sum(paid.batch_ns) == sum(free.batch_ns) + more);
}

TEST_CASE("weights come under compute, and what outlasts it makes experts wait") {
  InferenceSpec spec = spec_of(InferenceSystem::kLina);
  const InferenceTrace trace = trace_of(class_law(0.2));
  const InferenceResult fast = simulate_inference(trace, spec);
  spec.times.host_bytes_per_s = 1e9;
  const InferenceResult slow = simulate_inference(trace, spec);
  const Nanoseconds copy = duration_ns(double((2 * 128 * 512 + 640) * 4), 1e9);
  int64_t swapped = 0;
  Nanoseconds waits = 0;
  for (size_t i = 0; i < slow.layers.size(); ++i) {
    CHECK(fast.layers[i].swap_wait_ns <= 10);
    CHECK(slow.layers[i].swapped == fast.layers[i].swapped);
    CHECK(slow.layers[i].swap_wait_ns <= 8 * copy);  // at most cap new ones by either phase
    if (slow.layers[i].swapped == 0) CHECK(slow.layers[i].swap_wait_ns == 0);
    swapped += slow.layers[i].swapped;
    waits += slow.layers[i].swap_wait_ns;
  }
  CHECK(swapped > 0);
  CHECK(waits > 0);
  CHECK(sum(slow.batch_ns) > sum(fast.batch_ns));
}

TEST_CASE("a mapping that comes too late is waited for") {
  InferenceSpec spec = spec_of(InferenceSystem::kNoFineTuning);
  const InferenceTrace trace = trace_of(class_law(0));
  const InferenceResult early = simulate_inference(trace, spec);
  spec.times.place_ns = 100'000'000;
  const InferenceResult late = simulate_inference(trace, spec);
  for (size_t i = 0; i < late.layers.size(); ++i) {
    CHECK(early.layers[i].mapping_wait_ns == 0);
    CHECK((late.layers[i].mapping_wait_ns > 90'000'000) == late.layers[i].estimated);
  }
}

TEST_CASE("scheduling by closed form takes the cluster's own start-ups") {
  const ScheduleTimes times = closed_form_times(four_devices(), 4, 50'000, 25e9);
  CHECK(times.resume_ns > 0);
  CHECK(times.rerun_ns >= times.resume_ns + 50'000);
}

TEST_CASE("percentiles are samples, by nearest rank") {
  std::vector<Nanoseconds> samples = {40, 10, 30, 20};
  CHECK(percentile(samples, 0.5) == 20);
  CHECK(percentile(samples, 0.75) == 30);
  CHECK(percentile(samples, 0.95) == 40);
  CHECK(percentile(samples, 0.01) == 10);
}

TEST_CASE("transitions of a law are counted between neighbouring layers") {
  const auto all = transitions(class_law(0), {.ranks = 2, .tokens = 100, .experts = 4}, 3, 4);
  REQUIRE(all.size() == 3);
  for (const Loads& next : all) {
    CHECK(next.total() == 600);
    CHECK(locality(next, 1) == 1);
  }
}

TEST_CASE("what cannot be simulated is refused by name") {
  const InferenceTrace trace = trace_of(class_law(0));
  InferenceSpec spec = spec_of(InferenceSystem::kLina);
  spec.times.host_bytes_per_s = 0;
  CHECK_THROWS_WITH(simulate_inference(trace, spec), Catch::Contains("host_bytes_per_s = 0"));
  spec = spec_of(InferenceSystem::kLina);
  spec.model.moe_every = 100;
  CHECK_THROWS_WITH(simulate_inference(trace, spec), Catch::Contains("has no MoE layer"));
  spec = spec_of(InferenceSystem::kLina);
  spec.model.seq = 32;
  CHECK_THROWS_WITH(simulate_inference(trace, spec),
                    Catch::Contains("trace.tokens = 1024, but the model on this cluster has 512"));
  CHECK_THROWS_WITH(trace_inference(class_law(0), {.batches = 0}),
                    Catch::Contains("inference.batches = 0"));
  CHECK_THROWS_WITH(inference_system("linna"), Catch::Contains("Did you mean 'lina'?"));
}

}  // namespace
}  // namespace moe
