// Expert-parallel groups: how many ranks hold the experts together is no part of the model.
#include <catch2/catch.hpp>
#include <cstdio>

#include "engine/exec/parameters.h"
#include "engine/graph/op_def.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

PlanSpec spec_with(const std::string& gate, int64_t ep, int64_t ranks,
                   Precision precision = Precision::kF64) {
  Gpt2 model = small_model(gate, 2);
  model.ep = ep;
  return spec_of(model, ranks, precision);
}

TEST_CASE("groups of one rank exchange no rows, groups of two half as many as groups of four") {
  const auto bytes = [](int64_t ep) {
    const auto plan = plan_with(spec_with("switch", ep, 4), {});
    const RunResult result = run_cpu(*plan, options_of(*plan, 1));
    Bytes moved = 0, reduced = 0;
    for (const Span& span : result.timelines[0].spans) {
      const Collective kind = plan->graph.def(span.op).collective;
      if (kind == Collective::kAllToAll) moved += span.bytes;
      if (kind == Collective::kAllReduce) reduced += span.bytes;
    }
    return std::pair(moved, reduced);
  };
  const auto four = bytes(4), two = bytes(2), one = bytes(1);
  CHECK(one.first == 0);
  CHECK(3 * two.first == 2 * four.first);  // of a rank's slots 1/2 and 3/4 travel
  CHECK(four.second < two.second);
  CHECK(two.second < one.second);
}

TEST_CASE("a run goes on from a checkpoint of groups of another size") {
  const std::string path = "expert_groups_checkpoint_test";
  const auto two = plan_with(spec_with("switch", 2, 4), {});
  RunOptions options = options_of(*two, 2);
  options.train.checkpoints.write_to = path;
  const RunResult written = run_cpu(*two, options);
  for (const int64_t ep : {1, 2, 4}) {
    const auto plan = plan_with(spec_with("switch", ep, 4), {});
    RunOptions resumed = options_of(*plan, 0);
    resumed.train.checkpoints.resume_from = path;
    CHECK(run_cpu(*plan, resumed).digest == written.digest);
    resumed.steps = 1;
    RunOptions straight = options_of(*two, 3);
    CHECK(run_cpu(*plan, resumed).losses[0] ==
          Approx(run_cpu(*two, straight).losses[2]).epsilon(1e-9));
  }
  std::remove(path.c_str());
}

TEST_CASE("copies of a parameter that differ are found, with its name and the ranks") {
  for (const bool of_expert : {true, false}) {
    const auto plan = plan_with(spec_with("switch", 2, 4), {});
    const PersistentTensors all = persistent_tensors(*plan);
    std::vector<std::unique_ptr<RankBuffers>> own;
    AllBuffers ranks;
    for (int64_t r = 0; r < 4; ++r) {
      own.push_back(std::make_unique<RankBuffers>(*plan, 8));
      ranks.push_back(own.back().get());
      initialise<double>(*plan, all, *own.back(), r, {});
    }
    RunResult result;
    measure_parameters<double>(all, ranks, result);
    const std::string name = of_expert ? "b1.ex.fc2.w" : "wpe";
    static_cast<double*>(ranks[3]->at(plan->graph.find_tensor(name)))[5] += 1e-12;
    CHECK_THROWS_WITH(measure_parameters<double>(all, ranks, result),
                      Catch::Contains("parameter or state " + name) &&
                          Catch::Contains(of_expert ? "ranks 1 and 3" : "ranks 2 and 3"));
  }
}

}  // namespace
}  // namespace moe::test
