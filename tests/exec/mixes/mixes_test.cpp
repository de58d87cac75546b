// Mixes of techniques, executed: which passes a system has, and in which order it lists them, is no
// part of the model. Against the plain program in double, on skewed routing, with experts that get
// no tokens, and with every use of a buffer outside its tensor's life made to show.
#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/rng.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Passes = std::vector<Stage>;
struct Technique {
  const char* name;
  Passes passes;
  bool same_bits = true;  // splits or reorders no sum
};
/// Each entry of the list is a choice; a mix has one technique of each.
using Choices = std::vector<std::vector<Technique>>;

const Choices& choices() {
  static const Choices all = {
      {{"padded", {}},
       {"irregular_a2a", {pass("irregular_a2a")}},
       {"used_rows", {pass("irregular_a2a"), pass("used_rows")}, false}},
      {{"whole", {}},
       {"capacity_pipeline", {pass("capacity_pipeline", {{"degree", 3.0}})}, false},
       {"micro_ops", {pass("micro_ops", {{"bytes", 1500.0}})}, false},
       {"two cuts",
        {pass("capacity_pipeline", {{"degree", 2.0}}), pass("micro_ops", {{"bytes", 1500.0}})},
        false},
       {"fastermoe_pipeline", {pass("fastermoe_pipeline", {{"groups", 2.0}})}, false},
       {"partition", {pass("partition", {{"parts", 2.0}})}},
       {"partition and cut",
        {pass("partition", {{"parts", 2.0}}), pass("capacity_pipeline", {{"degree", 2.0}})},
        false}},
      {{"unplaced", {}},
       {"prophet", {pass("prophet", {{"shadows", 2.0}}), pass("prophet_schedule")}, false},
       {"fastermoe_shadowing", {pass("fastermoe_shadowing")}, false},
       {"top_k", {pass("top_k", {{"k", 2.0}})}, false},
       {"eplb", {pass("eplb", {{"every", 1.0}})}, false},
       {"swap", {pass("swap", {{"every", 1.0}})}, false}},
      {{"in order", {}},
       {"dw_schedule", {pass("dw_schedule", {{"if_slower", std::string("keep")}})}}},
      {{"no discipline", {}},
       {"priority", {pass("priority", {{"hold", false}})}},
       {"chunked", {pass("priority", {{"hold", false}}), pass("chunked", {{"bytes", 700.0}})}},
       {"fixed", {pass("fixed")}},
       {"blocking_a2a", {pass("blocking_a2a")}}},
      {{"one step", {}}, {"hierarchical_a2a", {pass("hierarchical_a2a")}}},
      {{"kept", {}}, {"made again", {pass("recompute")}}}};
  return all;
}

/// More than half of the tokens go to expert 0; the last three of eight experts get none.
Gate skewed() {
  Gate gate = builtin_gate("switch");
  gate.route = [](const GateInput& input, RoutingBuilder& builder) {
    for (int64_t t = 0; t < input.tokens; ++t) {
      const int64_t token = input.first_token + t + 3 * input.step + input.layer;
      builder.take(t, token % 2 == 0 ? 0 : token * 7 % (input.experts - 3));
    }
  };
  return gate;
}

PlanSpec skewed_spec(int64_t ranks) {
  Gpt2 model = small_model("switch", 3);
  model.layers = 4;
  model.experts = 8;
  model.capacity_factor = 0;
  PlanSpec spec = spec_of(model, ranks, Precision::kF64);
  if (ranks == 4) spec.cluster.nodes = spec.cluster.devices_per_node = 2;
  spec.system.sync = {.place = ReducePlace::kReady, .lane = ReduceLane::kOwn};
  return spec;
}

RunResult run(const Plan& plan) {
  RunOptions options = options_of(plan, 3);
  options.precision = Precision::kF64;
  options.test.poison = true;
  options.train.keep_grad_norms = true;
  options.policies.gate = [](int64_t) { return skewed(); };
  return run_cpu(plan, options);
}

/// A technique of each choice, by its number.
using Mix = std::vector<size_t>;

bool can_be(const Mix& mix, int64_t ranks) {
  const auto is = [&](size_t choice, const char* name) {
    return choices()[choice][mix[choice]].name == std::string_view(name);
  };
  const bool steps = is(5, "hierarchical_a2a");
  return !(steps && (ranks == 2 || is(1, "fastermoe_pipeline")));
}

/// Lets a partition's range begin at the gate, where all that follows can be cut: real rows travel,
/// and if the experts are placed, then by an earlier step's loads. Returns whether it is so.
bool cut_with_gate(Passes& stages) {
  const auto has = [&](const char* name) {
    return std::any_of(stages.begin(), stages.end(),
                       [&](const Stage& s) { return s.name == name; });
  };
  const bool next = has("prophet") || has("eplb") || has("swap");
  const bool now = has("fastermoe_shadowing") || has("top_k");
  if (!has("partition") || now || !(next || has("used_rows"))) return false;
  for (Stage& stage : stages) {
    if (stage.name == "partition") {
      stage.options.insert({{"before", next ? 3.0 : 2.0}, {"after", 0.0}});
    }
  }
  return true;
}

bool changed_by(const Plan& plan, const std::string& pass) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [&](const StageReport& report) {
    return report.name == pass && report.changed;
  });
}

void check(const Mix& mix, int64_t ranks, Rng& rng, const RunResult& plain) {
  PlanSpec spec = skewed_spec(ranks);
  bool same_bits = true;
  std::string name;
  for (size_t c = 0; c < mix.size(); ++c) {
    const Technique& technique = choices()[c][mix[c]];
    spec.system.stages.insert(spec.system.stages.end(), technique.passes.begin(),
                              technique.passes.end());
    same_bits = same_bits && technique.same_bits;
    name += std::string(technique.name) + ", ";
  }
  CAPTURE(ranks, name);
  const bool cut = cut_with_gate(spec.system.stages);
  std::string hash;
  for (int order = 0; order < 3; ++order) {
    const auto plan = make_plan(spec);
    if (order == 0) {
      hash = plan->hash;
      const RunResult mixed = run(*plan);
      CHECK(mixed.peak_bytes == plan->memory.peak_bytes());
      if (cut) CHECK(changed_by(*plan, "partition"));
      CHECK(mixed.losses.at(0) == plain.losses.at(0));
      const Tolerance sums = {.losses = 1e-9, .norms = 1e-9};
      CHECK(same_run(plain, mixed, same_bits ? Tolerance{} : sums));
    }
    CHECK(plan->hash == hash);
    Passes& stages = spec.system.stages;
    for (size_t i = stages.size(); i > 1; --i) {
      std::swap(stages[i - 1], stages[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
    }
  }
}

/// Returns mixes in which, beside the first technique of each choice, every pair of techniques
/// occurs.
std::vector<Mix> pairs() {
  std::vector<Mix> mixes;
  const size_t n = choices().size();
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      for (size_t i = 1; i < choices()[a].size(); ++i) {
        for (size_t j = 1; j < choices()[b].size(); ++j) {
          Mix mix(n);
          mix[a] = i, mix[b] = j;
          mixes.push_back(mix);
        }
      }
    }
  }
  return mixes;
}

Mix random_mix(Rng& rng) {
  Mix mix;
  for (const auto& choice : choices()) {
    mix.push_back(static_cast<size_t>(rng.below(static_cast<int64_t>(choice.size()))));
  }
  return mix;
}

void check_mixes(const std::vector<Mix>& mixes) {
  Rng rng(20);
  for (const int64_t ranks : {2, 4}) {
    const RunResult plain = run(*make_plan(skewed_spec(ranks)));
    for (const Mix& mix : mixes) {
      if (can_be(mix, ranks)) check(mix, ranks, rng, plain);
    }
  }
}

std::vector<Mix> random_mixes(size_t n) {
  Rng rng(7);
  std::vector<Mix> mixes;
  while (mixes.size() < n) {
    mixes.push_back(random_mix(rng));
    if (!can_be(mixes.back(), 4)) mixes.pop_back();
  }
  return mixes;
}

TEST_CASE(
    "mixes of techniques train the plain program's model, in whatever order they are listed") {
  check_mixes(random_mixes(12));
}

TEST_CASE("200 mixes, and all pairs, train the plain program's model", "[slow]") {
  check_mixes(random_mixes(200));
  check_mixes(pairs());
}

}  // namespace
}  // namespace moe::test
