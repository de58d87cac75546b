// Lina's inference, simulated from its plan: what batches take, by hand and by comparison.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "engine/analysis/served_batch.h"
#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/network/closed_form.h"
#include "engine/sim/routed_batch.h"
#include "tests/sim/routing.h"

namespace moe::test {
namespace {

constexpr int64_t kRanks = 4, kLayers = 6, kBatches = 8, kExperts = 4, kTokens = 1024;

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

/// Tokens have a class for good, skewed and different from step to step; in each layer they choose
/// their class's expert, or with probability `noise` any. From step `turn` on classes have other
/// experts.
std::shared_ptr<const RoutingModel> class_routing(double noise, int64_t turn = 1 << 20) {
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
    ExpertCounts all(q.ranks, q.experts);
    std::vector<int32_t> choices(static_cast<size_t>(q.tokens));
    for (int64_t rank = 0; rank < q.ranks; ++rank) {
      route(q, rank, choices);
      for (const int32_t e : choices) ++all.at(rank, e);
    }
    return all;
  };
  return std::make_shared<const RoutingModel>(RoutingModel{"classes", route, loads});
}

/// Of the eight batches before those that are served.
std::shared_ptr<const PathProfile> profile_of(const RoutingModel& routing, int64_t path = 2) {
  const RoutingQuery sizes = {.ranks = kRanks, .tokens = kTokens, .experts = kExperts};
  return std::make_shared<const PathProfile>(
      profile_paths(routing, {.first = sizes, .layers = kLayers, .batches = 8, .path = path}));
}

/// Without a cost that is not the network's or the experts'.
constexpr OffloadTimes kFree = {
    .place_ns = 0, .resume_ns = 0, .rerun_ns = 0, .host_bytes_per_s = 1e18};

/// routing: null: a balanced gate. lina: null: one expert per device.
std::shared_ptr<const Plan> plan_for(std::shared_ptr<const RoutingModel> routing,
                                     const Options* lina, const OffloadTimes& times = kFree,
                                     const Cluster& cluster = four_devices()) {
  PlanSpec spec;
  spec.num_ranks = kRanks;
  change_model(spec, [](Gpt2& m) {
    m.vocab = 100;
    m.layers = kLayers;
    m.hidden = 128;
    m.heads = 4;
    m.seq = 64;
    m.ffn = 512;
    m.batch_per_device = 16;
    m.experts = kExperts;
    m.moe_every = 1;
    m.capacity_factor = 4;  // all tokens find a place
  });
  spec.cluster = cluster;
  spec.work.slot_occupancy = 0.25;
  spec.inference = true;
  spec.routing = std::move(routing);
  spec.system.name = "test";
  spec.system.stages = counted();
  if (lina != nullptr) {
    Options options = *lina;
    options["path"] = 2.0;
    spec.system.stages.insert(spec.system.stages.begin(), stage("lina_inference", options));
  }
  spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work,
                                             std::map<Collective, InterpolatedTable>{}, times);
  return make_plan(std::move(spec));
}

struct Served {
  std::shared_ptr<const Plan> plan;
  RunResult result;
  std::vector<ServedBatch> batches;

  const ServedTimes& layer(size_t batch, size_t m) const { return batches[batch].layers[m]; }
  /// Null for a layer that is not placed.
  const OffloadRecord* offload(size_t batch, size_t m) const {
    for (const OffloadRecord& record : result.offloads[batch]) {
      if (record.layer == static_cast<int64_t>(m)) return &record;
    }
    return nullptr;
  }
  Nanoseconds all() const {
    Nanoseconds sum = 0;
    for (const ServedBatch& batch : batches) sum += batch.answer_ns;
    return sum;
  }
};

Served serve(std::shared_ptr<const Plan> plan, std::shared_ptr<const PathProfile> popularity) {
  RunOptions options;
  options.steps = options.first_step = kBatches;
  options.infer.popularity = std::move(popularity);
  Served served = {plan, make_simulator()->run(*plan, options), {}};
  for (const Timeline& timeline : served.result.timelines) {
    served.batches.push_back(served_batch(*plan, timeline));
  }
  return served;
}

Served serve(std::shared_ptr<const RoutingModel> routing, const Options& lina,
             const OffloadTimes& times = kFree) {
  return serve(plan_for(routing, &lina, times), profile_of(*routing));
}

const Options kLina, kNoEstimation = {{"estimation", false}},
                     kNoFineTuning = {{"fine_tuning", false}};

TEST_CASE("with one expert per device the most loaded device decides, by counting") {
  const auto routing = class_routing(0.3);
  const Served served = serve(plan_for(routing, nullptr), nullptr);
  const CostModel& cost = *served.plan->spec.cost;
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t m = 0; m < kLayers; ++m) {
      const ExpertCounts loads = routing->loads({.step = kBatches + static_cast<int64_t>(batch),
                                                 .layer = static_cast<int64_t>(m),
                                                 .ranks = kRanks,
                                                 .tokens = kTokens,
                                                 .experts = kExperts});
      std::vector<double> there(16), back(16);
      int64_t most = 0;
      for (int64_t e = 0; e < kExperts; ++e) {
        most = std::max(most, loads.of_expert(e));
        for (int64_t s = 0; s < kRanks; ++s) {
          there[size_t(s * 4 + e)] = back[size_t(e * 4 + s)] = double(loads.at(s, e)) * 512;
        }
      }
      Nanoseconds experts = 0;
      for (size_t i = 0; i < served.plan->graph.num_ops(); ++i) {
        const OpId id(static_cast<int64_t>(i));
        const Op& op = served.plan->graph.op(id);
        if (op.segment != Segment::kExpert || op.layer != static_cast<int32_t>(m)) continue;
        const double slot_occupancy = double(most) / double(kExperts * kTokens);
        experts +=
            cost.routed_ns(served.plan->graph, id, {.work = {.slot_occupancy = slot_occupancy}});
      }
      CHECK(served.layer(batch, m).a2a_ns ==
            all_to_all_v_ns(four_devices(), there) + all_to_all_v_ns(four_devices(), back));
      CHECK(served.layer(batch, m).expert_ns == experts);
      CHECK(served.layer(batch, m).phase2_ns == 0);
      CHECK(served.layer(batch, m).swap_wait_ns == 0);
    }
  }
}

TEST_CASE("where paths say all, phase 1 is right and allocation brings a batch near the ideal") {
  const auto routing = class_routing(0);
  const Served lina = serve(routing, kLina), left = serve(routing, kNoFineTuning);
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t m = 0; m < kLayers; ++m) {
      const OffloadRecord* const offload = lina.offload(batch, m);
      CHECK((offload != nullptr) == (m >= 2));
      if (offload == nullptr) continue;
      CHECK_FALSE(offload->again);
      CHECK(offload->in_force == left.offload(batch, m)->in_force);
    }
  }
  Cluster wide = four_devices();  // the exchange of estimates takes no time
  wide.intra.latency_ns = wide.nic.latency_ns = wide.a2a_base_ns = 0;
  const auto all = [&](std::shared_ptr<const RoutingModel> of, const Options* options) {
    return serve(plan_for(of, options, kFree, wide), options ? profile_of(*of) : nullptr).all();
  };
  const Nanoseconds ours = all(routing, &kLina), ideal = all(nullptr, nullptr) * kBatches,
                    baseline = all(routing, nullptr);
  CHECK(ideal < ours);
  CHECK(ours < baseline);
  CHECK(double(ours - ideal) < 0.7 * double(baseline - ideal));
}

TEST_CASE("where the profile is wrong, phase 2 places by what the gate chose") {
  const auto routing = class_routing(0, kBatches);
  const Served lina = serve(routing, kLina), none = serve(routing, kNoEstimation);
  bool again = false;
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t m = 2; m < kLayers; ++m) {
      CHECK(none.offload(batch, m)->again);
      if (!lina.offload(batch, m)->again) continue;
      again = true;
      CHECK(lina.offload(batch, m)->in_force == none.offload(batch, m)->in_force);
    }
  }
  CHECK(again);
  CHECK(serve(routing, kNoFineTuning).all() > lina.all());
}

TEST_CASE("phase 2 blocks: a held estimate costs resume, another one rerun") {
  const auto routing = class_routing(0.5);
  OffloadTimes times = kFree;
  const Served free = serve(routing, kLina, times);
  times.resume_ns = 1'450'000, times.rerun_ns = 6'200'000;
  const Served paid = serve(routing, kLina, times);
  int64_t held = 0, rerun = 0;
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t m = 0; m < kLayers; ++m) {
      const ServedTimes &with = paid.layer(batch, m), &without = free.layer(batch, m);
      if (m < 2) {
        CHECK(with.phase2_ns == 0);
        continue;
      }
      held += with.phase2_ns == 1'450'000 ? 1 : 0;
      rerun += with.phase2_ns == 6'200'000 ? 1 : 0;
      if (paid.offload(batch, m)->again) CHECK(with.phase2_ns == 6'200'000);
      CHECK(with.layer_ns - without.layer_ns == with.phase2_ns - without.phase2_ns);
    }
  }
  CHECK(held > 0);
  CHECK(rerun > 0);
  CHECK(held + rerun == kBatches * (kLayers - 2));
}

TEST_CASE("placing and weights come beside compute, and experts wait for what outlasts it") {
  const auto routing = class_routing(0.2);
  OffloadTimes times = kFree;
  const Served fast = serve(routing, kLina, times);
  times.host_bytes_per_s = 1e9;
  const Served slow = serve(routing, kLina, times);
  const Nanoseconds copy = duration_ns(double((2 * 128 * 512 + 640) * 4), 1e9);
  Nanoseconds waits = 0;
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t m = 0; m < kLayers; ++m) {
      CHECK(fast.layer(batch, m).swap_wait_ns <= 10);
      CHECK(slow.layer(batch, m).swap_wait_ns <= 8 * copy);  // at most cap new ones by either phase
      if (m < 2) CHECK(slow.layer(batch, m).swap_wait_ns == 0);
      waits += slow.layer(batch, m).swap_wait_ns;
    }
    // What a host does is neither compute nor communication.
    CHECK(slow.result.metrics[batch].compute_ns == fast.result.metrics[batch].compute_ns);
    CHECK(slow.result.metrics[batch].comm_ns == fast.result.metrics[batch].comm_ns);
  }
  CHECK(waits > 0);
  CHECK(slow.all() > fast.all());
  // While a device computes, its host copies.
  Nanoseconds beside = 0;
  const Timeline& timeline = slow.result.timelines[0];
  for (const Span& a : timeline.spans) {
    if (slow.plan->graph.def(a.op).moe != MoeOp::kSwapIn) continue;
    CHECK(slow.plan->schedule.lanes[a.lane.index()].name == "host");
    for (const Span& b : timeline.spans) {
      if (b.rank != a.rank || slow.plan->graph.def(b.op).lane != LaneKind::kCompute) continue;
      beside += std::max<Nanoseconds>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
    }
  }
  CHECK(beside > 0);
}

TEST_CASE("a mapping that comes too late is waited for") {
  const auto routing = class_routing(0);
  OffloadTimes times = kFree;
  const Served early = serve(routing, kNoFineTuning, times);
  times.place_ns = 100'000'000;
  const Served late = serve(routing, kNoFineTuning, times);
  for (size_t batch = 0; batch < kBatches; ++batch) {
    for (size_t m = 0; m < kLayers; ++m) {
      CHECK(early.layer(batch, m).mapping_wait_ns == 0);
      CHECK((late.layer(batch, m).mapping_wait_ns > 90'000'000) == (m >= 2));
    }
  }
}

TEST_CASE("what cannot be simulated is refused by name") {
  const auto routing = class_routing(0);
  OffloadTimes times = kFree;
  times.host_bytes_per_s = 0;
  CHECK_THROWS_WITH(plan_for(routing, &kLina, times), Catch::Contains("host_bytes_per_s = 0"));
  CHECK_THROWS_WITH(
      serve(plan_for(routing, &kLina), profile_of(*routing, 3)),
      Catch::Contains("popularity.path: the popularity profile has 3, but the plan has 2"));
}

}  // namespace
}  // namespace moe::test
