// Plans whose graphs are edited for a device: what is rounded once, and GELU that is made with its
// product, leave the numbers that the plain plan has.
#include <catch2/catch.hpp>

#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Stages = std::vector<Stage>;

Stages lancet(double parts, double before, double after) {
  return {pass("irregular_a2a"), pass("used_rows"),
          pass("partition", {{"parts", parts}, {"before", before}, {"after", after}}),
          pass("dw_schedule")};
}

/// Of all kinds; those from the sixth on want gates that are cut by tokens.
const std::vector<Stages>& systems() {
  static const std::vector<Stages> all = {
      {},
      {pass("serial"), pass("irregular_a2a"), pass("used_rows")},
      {pass("capacity_pipeline", {{"degree", 2.0}}), pass("blocking_a2a")},
      {pass("priority"), pass("micro_ops", {{"bytes", 512.0}})},
      {pass("prophet", {{"shadows", 2.0}}), pass("prophet_schedule")},
      {pass("eplb")},
      lancet(2, 6, 1),
      lancet(3, 1, 0),
  };
  return all;
}

struct Pair {
  std::shared_ptr<const Plan> plain, edited;
};

Pair both(PlanSpec spec, const Stages& stages, DeviceLowering lowering) {
  spec.system.stages = stages;
  const auto plain = make_plan(spec);
  spec.lowering = lowering;
  return {plain, make_plan(spec)};
}

RunOptions options_for(const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.test.poison = true;
  if (plan.spec.inference) {
    options.infer.keep_predictions = true;
  } else {
    options.train.keep_grad_norms = true;
  }
  return options;
}

void check_same_edited(const RunResult& edited, const RunResult& plain) {
  CHECK(edited.losses == plain.losses);
  CHECK(edited.digest == plain.digest);
  CHECK(edited.predictions == plain.predictions);
  CHECK(edited.param_projection == plain.param_projection);
  CHECK(edited.grad_projection == plain.grad_projection);
  REQUIRE(edited.moe.size() == plain.moe.size());
  for (size_t step = 0; step < plain.moe.size(); ++step) {
    for (size_t layer = 0; layer < plain.moe[step].size(); ++layer) {
      CHECK(edited.moe[step][layer].checksum == plain.moe[step][layer].checksum);
    }
  }
}

TEST_CASE("a step with GELU in its products has the bits of one with GELU apart, on CPU ranks") {
  const std::string gate = GENERATE("switch", "top2", "expert_choice", "hash");
  const Precision precision = GENERATE(Precision::kF32, Precision::kF64);
  for (size_t i = 0; i < systems().size(); ++i) {
    if (i >= 6 && gate != "switch" && gate != "hash") continue;
    CAPTURE(gate, static_cast<int>(precision), i);
    const Pair plans =
        both(spec_of(small_model(gate, 4), 2, precision), systems()[i], {.fuse_gelu = true});
    REQUIRE(plans.edited->hash != plans.plain->hash);
    RunOptions options = options_for(*plans.plain, 3);
    options.precision = precision;
    check_same_edited(run_cpu(*plans.edited, options), run_cpu(*plans.plain, options));
  }
}

TEST_CASE("wherever Lancet's ranges begin and end, GELU in its products changes no bit") {
  for (double before = 0; before <= 10; ++before) {
    for (double after = 0; after <= 1; ++after) {
      CAPTURE(before, after);
      const Pair plans =
          both(spec_of(small_model("switch", 4), 2), lancet(2, before, after), {.fuse_gelu = true});
      const RunOptions options = options_for(*plans.plain, 2);
      check_same_edited(run_cpu(*plans.edited, options), run_cpu(*plans.plain, options));
    }
  }
}

TEST_CASE("a device makes GELU with its products as CPU ranks do, in any order of its streams") {
  for (size_t i = 0; i < systems().size(); ++i) {
    CAPTURE(i);
    const Pair plans =
        both(spec_of(small_model("switch", 4), 2), systems()[i], {.fuse_gelu = true});
    const RunOptions options = options_for(*plans.plain, 2);
    const RunResult expected = run_cpu(*plans.plain, options);
    for (const uint64_t seed : {1, 2}) {
      check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kRandom, seed), expected);
    }
  }
}

TEST_CASE("the reference model has its numbers with GELU in its products") {
  const Pair plans = both(spec_of(reference_model("switch", 2), 2), {}, {.fuse_gelu = true});
  const RunOptions options = options_for(*plans.plain, 1);
  check_same_edited(run_cpu(*plans.edited, options), run_cpu(*plans.plain, options));
}

TEST_CASE("operands that are rounded once give the bits of those rounded in every product") {
  const std::string gate = GENERATE("switch", "top2");
  for (size_t i = 0; i < systems().size(); ++i) {
    if (i >= 6 && gate != "switch") continue;
    CAPTURE(gate, i);
    const Pair plans = both(spec_of(small_model(gate, 4), 2, Precision::kBF16), systems()[i],
                            {.round_once = true});
    REQUIRE(plans.edited->hash != plans.plain->hash);
    const RunOptions options = options_for(*plans.plain, 3);
    const RunResult expected = run_lazy(*plans.plain, options, LazyOrder::kAsGiven, 1);
    check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kRandom, 1), expected);
    check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kLastFirst, 1), expected);
  }
}

TEST_CASE("blocks that run again on a device, edited for it, have the bits of activations kept") {
  for (size_t i = 0; i < systems().size(); ++i) {
    for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
      CAPTURE(i, static_cast<int>(precision));
      PlanSpec spec = spec_of(small_model("switch", 4), 2, precision);
      spec.system.stages = systems()[i];
      const auto kept = make_plan(spec);
      std::vector<Stage> again = systems()[i];
      again.push_back(pass("recompute"));
      const bool rounds = precision == Precision::kBF16;
      const Pair plans = both(spec, again, {.fuse_gelu = !rounds, .round_once = rounds});
      REQUIRE(plans.edited->hash != plans.plain->hash);
      const RunOptions options = options_for(*kept, 2);
      check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kRandom, 1),
                        run_lazy(*kept, options, LazyOrder::kAsGiven, 1));
    }
  }
}

TEST_CASE("all that a model may have is rounded once, and trains with the same bits") {
  Gpt2 model = small_model("top_k", 2);
  model.k = 2;
  model.balance_loss = {0.5, "choices", true};
  model.z_loss = 0.25;
  model.fused_attention = false;
  PlanSpec spec = spec_of(model, 2, Precision::kBF16);
  spec.optimizer = Adamw{.lr = 0.1};
  spec.system.sync.lane = ReduceLane::kOwn;
  const Pair plans = both(spec, {}, {.round_once = true});
  const RunOptions options = options_for(*plans.plain, 3);
  check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kRandom, 1),
                    run_lazy(*plans.plain, options, LazyOrder::kAsGiven, 1));
}

TEST_CASE(
    "inference, its experts swapped in or its rows in parts, rounds once with the same bits") {
  Gpt2 model = small_model("switch", 2);
  model.layers = 4;
  model.moe_every = 1;
  PlanSpec spec = spec_of(model, 2, Precision::kBF16);
  spec.inference = true;
  for (const Stages& stages :
       std::vector<Stages>{{pass("irregular_a2a"), pass("used_rows")},
                           {pass("capacity_pipeline", {{"degree", 2.0}})},
                           {pass("lina_inference", {{"path", 2.0}, {"estimation", false}})}}) {
    CAPTURE(stages[0].name);
    const Pair plans = both(spec, stages, {.round_once = true});
    const RunOptions options = options_for(*plans.plain, 2);
    check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kRandom, 1),
                      run_lazy(*plans.plain, options, LazyOrder::kAsGiven, 1));
  }
}

TEST_CASE("both edits together train in bfloat16 near float32, and alike in every order") {
  for (const size_t i : {0, 2, 4, 6}) {
    CAPTURE(i);
    const Pair plans = both(spec_of(small_model("switch", 4), 2, Precision::kBF16), systems()[i],
                            {.fuse_gelu = true, .round_once = true});
    const auto in_float = make_plan(spec_of(small_model("switch", 4), 2));
    const RunResult near = run_cpu(*in_float, options_of(*in_float, 2));
    const RunOptions options = options_for(*plans.edited, 2);
    const RunResult result = run_lazy(*plans.edited, options, LazyOrder::kAsGiven, 1);
    REQUIRE(result.losses.size() == near.losses.size());
    for (size_t step = 0; step < near.losses.size(); ++step) {
      CHECK(result.losses[step] == Approx(near.losses[step]).epsilon(1e-2));
    }
    check_same_edited(run_lazy(*plans.edited, options, LazyOrder::kRandom, 2), result);
  }
}

}  // namespace
}  // namespace moe::test
