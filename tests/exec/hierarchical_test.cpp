// The hierarchical all-to-all, executed on nodes x devices ranks: the bits of the plain one.
#include <catch2/catch.hpp>

#include "engine/graph/op_def.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

struct Place {
  int64_t nodes, per_node, ep, experts;
};

std::shared_ptr<const Plan> plan_on(const Place& place, std::vector<Stage> stages,
                                    Precision precision) {
  const int64_t ranks = place.nodes * place.per_node;
  Gpt2 model = small_model("switch", 2);
  model.capacity_factor = 1.5;
  model.experts = place.experts;
  model.ep = place.ep;
  PlanSpec spec = spec_of(model, ranks, precision);
  spec.cluster.nodes = place.nodes;
  spec.cluster.devices_per_node = place.per_node;
  spec.cost = std::make_shared<RooflineCost>(spec.cluster, spec.work);
  spec.system.stages = std::move(stages);
  return make_plan(std::move(spec));
}

Bytes bytes_of_transfers(const Plan& plan, const RunResult& result) {
  Bytes bytes = 0;
  for (const Span& span : result.timelines[0].spans) {
    if (plan.graph.def(span.op).name == std::string_view("all_to_all")) bytes += span.bytes;
  }
  return bytes;
}

TEST_CASE("in two steps a model trains to the bits of the plain all-to-all") {
  const std::vector<std::vector<Stage>> before = {{},
                                                  {pass("capacity_pipeline", {{"degree", 2.0}})},
                                                  {pass("irregular_a2a")},
                                                  {pass("irregular_a2a"), pass("used_rows")}};
  auto precision = Precision::kF32;
  for (const Place& place : {Place{2, 2, 0, 4}, Place{2, 2, 0, 8}, Place{3, 2, 0, 6},
                             Place{2, 3, 0, 12}, Place{4, 2, 4, 4}}) {
    for (const std::vector<Stage>& stages : before) {
      CAPTURE(place.nodes, place.per_node, place.ep, place.experts, stages.size());
      precision = precision == Precision::kF32 ? Precision::kF64 : Precision::kF32;
      const auto plain = plan_on(place, stages, precision);
      std::vector<Stage> more = stages;
      more.push_back(pass("hierarchical_a2a"));
      const auto steps = plan_on(place, more, precision);
      const RunResult expected = run_cpu(*plain, options_of(*plain, 2));
      RunOptions options = options_of(*steps, 2);
      options.test.poison = true;
      const RunResult result = run_cpu(*steps, options);
      CHECK(same_run(expected, result));
      // A row that goes to another place of another node goes twice.
      CHECK(bytes_of_transfers(*steps, result) > bytes_of_transfers(*plain, expected));
    }
  }
}

TEST_CASE("the steps run on the emulated link of their nodes") {
  const auto plan = plan_on({2, 2, 0, 4}, {pass("hierarchical_a2a")}, Precision::kF32);
  RunOptions options = options_of(*plan, 1);
  const RunResult free = run_cpu(*plan, options);
  options.emulate_link = true;
  const RunResult result = run_cpu(*plan, options);
  CHECK(same_run(free, result));
  for (const Span& span : result.timelines[0].spans) {
    if (plan->graph.def(span.op).name != std::string_view("all_to_all")) continue;
    CHECK(span.end - span.begin >= plan->spec.cost->op_ns(plan->graph, span.op));
  }
}

}  // namespace
}  // namespace moe::test
