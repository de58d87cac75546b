// Small plans whose routing is given by hand.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/rng.h"
#include "engine/passes/placement/place_experts.h"
#include "engine/sim/routed_step.h"
#include "engine/sim/simulator.h"
#include "tests/passes/fixture.h"

namespace moe::test {

using CountsOf = std::function<ExpertCounts(const RoutingQuery&)>;

inline std::shared_ptr<const RoutingModel> routing_of(CountsOf loads) {
  return std::make_shared<const RoutingModel>(
      RoutingModel{.name = "given", .route = nullptr, .loads = std::move(loads)});
}

/// One device per node, all links alike.
inline Cluster flat_cluster(int64_t ranks) {
  return {.name = "flat",
          .nodes = ranks,
          .devices_per_node = 1,
          .device = {.gemm_flops_per_s = 1e9,
                     .vector_flops_per_s = 1e9,
                     .memory_bytes_per_s = 1e9,
                     .launch_ns = 100},
          .intra = {1e9, 100},
          .nic = {1e8, 500}};
}

inline std::vector<Stage> counted(std::vector<Stage> more = {}) {
  std::vector<Stage> stages = {stage("irregular_a2a"), stage("used_rows")};
  stages.insert(stages.end(), more.begin(), more.end());
  return stages;
}

/// A stage after which each device has a slot for a copy of an expert. Copies compute `static_rows`
/// rows, or with 0 those that they get.
inline Stage copies(int64_t static_rows = 0) {
  Stage made{.name = "test", .kind = StageKind::kPlacement};
  made.transform = [static_rows](Graph graph, const PassContext& context) {
    const PlacementStage how = {
        .policy = "test", .use = PlacementUse::kNow, .shadows = 1, .static_rows = static_rows};
    return place_experts(std::move(graph), how, context);
  };
  return made;
}

/// Four blocks, MoE in 1 and 3; 32 tokens per rank, 4 experts, 10 places per expert.
inline PlanSpec routed_spec(std::vector<Stage> stages, int64_t ranks, const Cluster& cluster,
                            double slot_occupancy = 0.8) {
  PlanSpec spec = small_spec(std::move(stages), ranks);
  spec.cluster = cluster;
  spec.work.slot_occupancy = slot_occupancy;
  spec.cost = std::make_shared<RooflineCost>(cluster, spec.work);
  return spec;
}

inline RunResult simulate_routing(PlanSpec spec, CountsOf loads, int64_t steps = 1,
                                  int64_t first_step = 0) {
  spec.routing = routing_of(std::move(loads));
  RunOptions options;
  options.steps = steps;
  options.first_step = first_step;
  return make_simulator()->run(*make_plan(std::move(spec)), options);
}

inline ExpertCounts random_loads(const RoutingQuery& q, uint64_t seed) {
  ExpertCounts loads(q.ranks, q.experts);
  Rng rng(seed + static_cast<uint64_t>(q.step * 100 + q.layer));
  for (int64_t s = 0; s < q.ranks; ++s) {
    for (int64_t t = 0; t < q.tokens * q.k; ++t) {
      ++loads.at(s, std::min(rng.below(q.experts), rng.below(q.experts)));
    }
  }
  return loads;
}

}  // namespace moe::test
