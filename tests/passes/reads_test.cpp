// What a pass declares that it reads of the cost model is what it asks.
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/passes/pipeline.h"
#include "engine/placement/policy.h"
#include "tests/passes/fixture.h"

using namespace moe;
using namespace moe::test;

namespace {

/// Whether a plan with this pass asks how long an op takes.
bool asks(const PassDef& pass, const Options& options) {
  std::vector<Stage> stages = {stage(pass.name, options)};
  if (pass.name == std::string_view("prophet_schedule")) stages.push_back(stage("swap"));
  PlanSpec spec = small_spec(std::move(stages), 4);
  spec.cluster.nodes = spec.cluster.devices_per_node = 2;
  spec.inference = pass.inference_only;
  spec.cost = std::make_shared<NoTimes>(spec.cluster);
  try {
    make_plan(std::move(spec));
  } catch (const InternalError&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a pass asks how long ops take if it declares that it reads times, and only then") {
  for (const PassDef& pass : builtin_passes()) {
    CAPTURE(pass.name);
    // The first takes no placement of its own, the second no system lists.
    if (pass.inference_only || pass.runs != nullptr) continue;
    CHECK(asks(pass, {}) == (pass.reads == Reads::kTimes));
    for (const OptionSpec& option : pass.options) {
      if (option.reads == Reads::kNothing) continue;
      CAPTURE(option.name);
      const bool flag = std::holds_alternative<bool>(option.default_value);
      const Options on = {{option.name, flag ? OptionValue(true) : OptionValue(1.0)},
                          {"shadows", 1.0}};
      CHECK(asks(pass, on) == (std::max(pass.reads, option.reads) == Reads::kTimes));
    }
  }
}

TEST_CASE("a policy that declares no rates plans without any; with such an option it refuses to") {
  const ExpertCounts loads = [] {
    ExpertCounts all(2, 4);
    for (int64_t e = 0; e < 4; ++e) all.at(0, e) = all.at(1, e) = e == 0 ? 30 : 1;
    return all;
  }();
  for (const PlacementPolicy& policy : builtin_policies()) {
    const Placement now({.experts = 4,
                         .devices = 2,
                         .residents = policy.moves_residents ? 3 : 2,
                         .shadows = 2,
                         .weighted = policy.defaults.weighted});
    const auto refuses = [&](const PolicyOptions& given) {
      try {
        policy.place({.loads = loads, .now = now, .rates = {}}, resolved(policy, given));
      } catch (const UserError&) {
        return true;
      }
      return false;
    };
    CAPTURE(policy.name);
    if (policy.reads == Reads::kNothing) CHECK_FALSE(refuses({}));
    for (const OptionSpec& option : policy.options) {
      if (option.reads == Reads::kRates) CHECK(refuses({{option.name, 10}}));
    }
  }
}
