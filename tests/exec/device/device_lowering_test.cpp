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

TEST_CASE("wherever Lancet's ranges begin and end, GELU in its products changes no bit") {
  for (int before = 0; before <= 10; ++before) {
    const double after = before % 2;
    CAPTURE(before, after);
    const Pair plans =
        both(spec_of(small_model("switch", 4), 2), lancet(2, before, after), {.fuse_gelu = true});
    const RunOptions options = options_for(*plans.plain, 2);
    CHECK(same_run(run_cpu(*plans.plain, options), run_cpu(*plans.edited, options)));
  }
}

TEST_CASE("all that a model may have is rounded once, and trains with the same bits") {
  Gpt2 model = small_model("top_k", 2);
  model.k = 2;
  model.balance_loss = {.coefficient = 0.5, .over = BalanceLossSpec::Over::kAll};
  model.z_loss = 0.25;
  model.fused_attention = false;
  PlanSpec spec = spec_of(model, 2, Precision::kBF16);
  spec.optimizer = Adamw{.lr = 0.1};
  spec.system.sync.lane = ReduceLane::kOwn;
  const Pair plans = both(spec, {}, {.round_once = true});
  const RunOptions options = options_for(*plans.plain, 3);
  CHECK(same_run(run_lazy(*plans.plain, options, LazyOrder::kAsGiven, 1),
                 run_lazy(*plans.edited, options, LazyOrder::kRandom, 1)));
}

TEST_CASE("logits whose rows are padded train and predict with the same numbers") {
  Gpt2 model = small_model("switch", 2);
  model.vocab = 33;
  PlanSpec spec = spec_of(model, 2, Precision::kBF16);
  spec.optimizer = Adamw{.lr = 0.1};
  for (const bool inference : {false, true}) {
    for (const bool rounds : {false, true}) {
      spec.inference = inference;
      const Pair plans = both(spec, {}, {.round_once = rounds, .pad_logits = true});
      const RunOptions options = options_for(*plans.plain, 3);
      CHECK(same_run(run_lazy(*plans.plain, options, LazyOrder::kAsGiven, 1),
                     run_lazy(*plans.edited, options, LazyOrder::kRandom, 1),
                     {.losses = 1e-6, .norms = 1e-5}));
    }
  }
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
    CHECK(same_run(run_lazy(*plans.plain, options, LazyOrder::kAsGiven, 1),
                   run_lazy(*plans.edited, options, LazyOrder::kRandom, 1)));
  }
}

}  // namespace
}  // namespace moe::test
