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
  if (pass.kind == StageKind::kPipeline) {  // with a forward beside a backward
    const auto model = std::make_shared<Model>(*spec.model);
    model->micro_batches = 2;
    spec.model = model;
    using pipeline::Work;
    spec.pipeline = {{.micro_batches = 2},
                     {{{Work::kF, 0}, {Work::kF, 1, 0, true}, {Work::kB, 0}, {Work::kB, 1}}},
                     {}};
  }
  try {
    make_plan(std::move(spec));
  } catch (const InternalError&) {
    return true;
  }
  return false;
}

/// What the pass reads with these options.
Reads reads(const PassDef& pass, const Options& options) {
  Reads most = pass.reads;
  for (const OptionSpec& option : pass.options) {
    const auto given = options.find(option.name);
    const OptionValue& value = given == options.end() ? option.default_value : given->second;
    const bool* const flag = std::get_if<bool>(&value);
    const double* const number = std::get_if<double>(&value);
    const bool on = flag != nullptr ? *flag : number == nullptr || *number != 0;
    if (on) most = std::max(most, option.reads);
  }
  return most;
}

}  // namespace

TEST_CASE("a pass asks how long ops take if it declares that it reads times, and only then") {
  for (const PassDef& pass : builtin_passes()) {
    CAPTURE(pass.name);
    // The first takes no placement of its own, the second no system lists.
    if (pass.inference_only || pass.runs != nullptr) continue;
    CHECK(asks(pass, {}) == (reads(pass, {}) == Reads::kTimes));
    for (const OptionSpec& option : pass.options) {
      if (option.reads == Reads::kNothing) continue;
      CAPTURE(option.name);
      const bool flag = std::holds_alternative<bool>(option.default_value);
      for (const bool on : {true, false}) {
        Options options = {{option.name, flag ? OptionValue(on) : OptionValue(on ? 1.0 : 0.0)}};
        if (pass.kind == StageKind::kPlacement) options["shadows"] = 1.0;
        CHECK(asks(pass, options) == (reads(pass, options) == Reads::kTimes));
      }
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
