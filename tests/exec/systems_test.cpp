// Systems x gates x precisions x executors: whatever a system does with transfers, rows, experts
// and order, however it saves memory and wherever it runs, it trains the plain program's model.
#include <catch2/catch.hpp>
#include <map>

#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Stages = std::vector<Stage>;

struct System {
  const char* name;
  Stages stages;
  int64_t least_ranks = 1;
  bool cuts_gate = false;      // by tokens, so that tokens must choose
  bool moves_experts = false;  // then all ranks hold them together, and tokens choose
  bool among_all = false;      // exchanges rows among all ranks
};

const std::vector<System>& systems() {
  const Stage irregular = pass("irregular_a2a"), rows = pass("used_rows");
  const Stage cut = pass("capacity_pipeline", {{"degree", 2.0}});
  const Stage dw = pass("dw_schedule", {{"if_slower", std::string("keep")}});
  const auto parts = [](double n, double before, double after) {
    return pass("partition", {{"parts", n}, {"before", before}, {"after", after}});
  };
  const Options lines = {
      {"alpha_a", 1e-9}, {"beta_a", 1e-6}, {"alpha_e", 1e-9}, {"beta_e", 1e-6}, {"degrees", "3"}};
  const Options now = {{"shadows", 2.0}, {"use", std::string("now")}};
  static const std::vector<System> all = {
      {"serial", {pass("serial")}},
      {"dw_schedule", {pass("dw_schedule")}},
      {"irregular_a2a", {irregular, pass("serial")}},
      {"used_rows alone", {rows}},
      {"used_rows", {irregular, rows, dw}},
      {"cut, blocking", {cut, pass("blocking_a2a")}},
      {"cut, used_rows", {irregular, rows, cut, dw}},
      {"pipemoe", {pass("pipemoe", lines)}},
      {"rounds", {pass("fastermoe_pipeline", {{"groups", 2.0}})}, 2},
      {"rounds of single ranks",
       {pass("fastermoe_pipeline", {{"groups", 4.0}})},
       4,
       false,
       false,
       true},
      {"micro_ops",
       {pass("priority"), pass("chunked", {{"bytes", 700.0}}),
        pass("micro_ops", {{"bytes", 1500.0}})}},
      {"fixed", {pass("fixed")}},
      {"in two steps", {irregular, rows, cut, pass("hierarchical_a2a")}, 4, false, false, true},
      {"padded parts", {pass("partition", {{"parts", 3.0}}), dw}, 1, true},
      {"parts of the layer", {irregular, rows, parts(2, 0, 0)}},
      {"parts from the gate on", {irregular, rows, parts(2, 1, 1)}, 1, true},
      {"parts from the attention on", {irregular, rows, parts(2, 6, 1), dw}, 1, true},
      {"placed", {pass("placed", {{"shadows", 0.0}})}, 2, false, true},
      {"prophet", {pass("prophet", {{"shadows", 2.0}}), pass("prophet_schedule")}, 2, false, true},
      {"prophet now", {pass("prophet", now)}, 2, false, true},
      {"prophet in parts",
       {pass("prophet"), parts(2, 6, 1), pass("prophet_schedule")},
       2,
       true,
       true},
      {"shadowing", {pass("fastermoe_shadowing", {{"shadows", 2.0}})}, 2, false, true},
      {"top_k", {pass("top_k", {{"shadows", 2.0}, {"k", 2.0}})}, 2, false, true},
      {"eplb", {pass("eplb", {{"every", 1.0}}), pass("serial")}, 2, false, true},
      {"swap", {pass("swap", {{"every", 1.0}})}, 2, false, true}};
  return all;
}

struct Training {
  const char* gate;
  int64_t ranks;
  int64_t layers;
  double capacity_factor;  // 0: rows in use are packed
  GradientSync sync = {};
  bool adamw = false;
};

const std::vector<Training>& trainings() {
  static const std::vector<Training> all = {
      {"switch", 4, 2, 1, {.place = ReducePlace::kReady, .lane = ReduceLane::kOwn}},
      {"switch", 4, 2, 0, {.bucket_bytes = 4096, .lane = ReduceLane::kOwn}, true},
      {"switch", 2, 4, 1, {.bucket_bytes = 4096}},
      {"top2", 2, 2, 1, {.place = ReducePlace::kReady}},
      {"bpr", 2, 2, 0},
      {"expert_choice", 2, 2, 1, {.bucket_bytes = 4096, .place = ReducePlace::kReady}},
      {"hash", 1, 2, 1}};
  return all;
}

PlanSpec spec_for(const Training& training, Precision precision) {
  Gpt2 model = small_model(training.gate, 3);
  model.layers = training.layers;
  model.experts = 8;
  model.capacity_factor = training.capacity_factor;
  PlanSpec spec = spec_of(model, training.ranks, precision);
  if (training.ranks == 4) spec.cluster.nodes = spec.cluster.devices_per_node = 2;
  if (training.adamw) spec.optimizer = Adamw{.lr = 0.01};
  spec.system.sync = training.sync;
  return spec;
}

bool can_train(const System& system, const Training& training) {
  const bool by_token =
      training.gate == std::string("switch") || training.gate == std::string("hash");
  const bool expert_choice = training.gate == std::string("expert_choice");
  return training.ranks >= system.least_ranks && (by_token || !system.cuts_gate) &&
         (!expert_choice || !system.moves_experts);
}

/// A way to run a system. It is compared with the plain program in double, or with the system as it
/// is: in float32 on CPU ranks, in bfloat16 on a device.
struct Way {
  const char* name;
  Precision precision;
  bool device = false;  // else on CPU ranks
  void (*change)(PlanSpec&) = nullptr;
  Tolerance tolerance = {};
};

void in_groups_of_two(PlanSpec& spec) {
  change_model(spec, [](Gpt2& m) { m.ep = 2; });
}
void in_groups_of_one(PlanSpec& spec) {
  change_model(spec, [](Gpt2& m) { m.ep = 1; });
}
void sharded(PlanSpec& spec) {
  spec.system.stages.push_back(pass("zero"));
}
void again(PlanSpec& spec) {
  spec.system.stages.push_back(pass("recompute"));
}
void edited(PlanSpec& spec) {
  const bool rounds = gpt2_of(spec).dtype == DType::kBF16;
  spec.lowering = {.fuse_gelu = !rounds, .round_once = rounds};
}
void again_edited(PlanSpec& spec) {
  again(spec);
  edited(spec);
}

constexpr Tolerance kSumsInAnotherOrder = {.losses = 1e-12, .norms = 1e-9};
constexpr Tolerance kNormsInAnotherOrder = {.losses = 0, .norms = 1e-12};

const std::vector<Way>& ways() {
  constexpr auto kF64 = Precision::kF64, kF32 = Precision::kF32, kBF16 = Precision::kBF16;
  static const std::vector<Way> all = {
      {"plain", kF64, false, nullptr, kSumsInAnotherOrder},
      {"groups of two", kF64, false, in_groups_of_two, kSumsInAnotherOrder},
      {"groups of one", kF64, false, in_groups_of_one, kSumsInAnotherOrder},
      {"sharded", kF32, false, sharded, kNormsInAnotherOrder},
      {"blocks again", kF32, false, again},
      {"edited", kF32, false, edited},
      {"device", kF32, true},
      {"device, blocks again, edited", kF32, true, again_edited},
      {"device, bf16", kBF16, true},
      {"device, bf16, edited", kBF16, true, edited},
      {"device, bf16, blocks again, edited", kBF16, true, again_edited}};
  return all;
}

/// Few ranks are enough for what is rounded, and for what is edited, on a device.
bool can_run(const Way& way, const System& system, const Training& training) {
  if (training.ranks == 4 && way.device && way.change != nullptr) return false;
  if (training.ranks == 4 && way.precision == Precision::kBF16) return false;
  if (way.precision == Precision::kF64 && training.adamw) return false;  // it scales roundings up
  if (way.change == sharded) return training.ranks > 1;
  if (way.change != in_groups_of_two && way.change != in_groups_of_one) return true;
  if (way.change == in_groups_of_two) return !system.among_all && training.ranks > 2;
  return !system.moves_experts && !system.among_all && training.ranks > 1;
}

/// Packed rows that are cut in parts are added up in another order when they are rounded once.
Tolerance tolerance_of(const Way& way, const Training& training) {
  const bool packed = training.capacity_factor == 0;
  if (packed && way.precision == Precision::kBF16) return {.losses = 1e-8, .norms = 1e-6};
  return way.tolerance;
}

RunResult run(const Plan& plan, const Way& way, uint64_t seed) {
  RunOptions options = options_of(plan, 3);
  options.precision = way.precision;
  options.train.keep_grad_norms = true;
  options.test.poison = !way.device || seed % 3 > 0;
  if (way.device) return run_lazy(plan, options, static_cast<LazyOrder>(seed / 2 % 4), seed);
  const RunResult result = run_cpu(plan, options);
  CHECK(result.peak_bytes == plan.memory.peak_bytes());
  return result;
}

struct Trained {
  std::shared_ptr<const Plan> plan;
  RunResult result;
};

Trained train(const Training& training, const Stages& stages, const Way& way, uint64_t seed) {
  PlanSpec spec = spec_for(training, way.precision);
  spec.system.stages = stages;
  if (way.change != nullptr) way.change(spec);
  const auto plan = make_plan(std::move(spec));
  return {plan, run(*plan, way, seed)};
}

/// Losses in fewer digits are near the others, and not the same.
void check_rounded(const RunResult& rounded, const RunResult& exact, double tolerance) {
  CHECK(rounded.losses != exact.losses);
  for (size_t step = 0; step < exact.losses.size(); ++step) {
    CHECK(rounded.losses.at(step) == Approx(exact.losses[step]).epsilon(tolerance));
  }
}

/// In double all ways, else every third one: others in the next trainings.
bool has_turn(size_t training, size_t system, size_t way) {
  return ways()[way].precision == Precision::kF64 || (training + system + way) % 3 == 0;
}

void check_ways(size_t t, size_t s, const Trained& plain) {
  const Training& training = trainings()[t];
  const System& system = systems()[s];
  CAPTURE(training.gate, training.ranks, training.capacity_factor, system.name);
  std::map<Precision, Trained> as_it_is = {{Precision::kF64, plain}};
  const Trained& single = as_it_is[Precision::kF32] =
      train(training, system.stages, {"in float32", Precision::kF32}, 0);
  check_rounded(single.result, plain.result, 2e-6);
  if (training.ranks < 4) {
    const Trained& narrow = as_it_is[Precision::kBF16] =
        train(training, system.stages, {"in bfloat16", Precision::kBF16, true}, 0);
    check_rounded(narrow.result, single.result, 1e-2);
  }
  for (size_t w = 0; w < ways().size(); ++w) {
    const Way& way = ways()[w];
    if (!has_turn(t, s, w) || !can_run(way, system, training)) continue;
    CAPTURE(way.name);
    const Trained& same = as_it_is.at(way.precision);
    const Trained other = train(training, system.stages, way, t + s + w);
    CHECK(same_run(same.result, other.result, tolerance_of(way, training)));
    CHECK((way.change == nullptr || other.plan->hash != same.plan->hash));
  }
}

/// Each system in every so many trainings.
void check_systems(size_t every) {
  for (size_t t = 0; t < trainings().size(); ++t) {
    const Trained plain = train(trainings()[t], {}, {"plain", Precision::kF64}, 0);
    for (size_t s = t % every; s < systems().size(); s += every) {
      if (can_train(systems()[s], trainings()[t])) check_ways(t, s, plain);
    }
  }
}

TEST_CASE("systems train the plain program's model, however and wherever they run") {
  check_systems(2);
}

TEST_CASE("systems train the plain program's model in all trainings", "[slow]") {
  check_systems(1);
}

TEST_CASE("every system leaves a deep model's blocks that run again less memory") {
  for (const double capacity_factor : {1.0, 0.0}) {
    for (const System& system : systems()) {
      CAPTURE(capacity_factor, system.name);
      PlanSpec spec = spec_for({"switch", 4, 6, capacity_factor}, Precision::kF32);
      change_model(spec, [](Gpt2& m) { m.seq = 32; });
      spec.system.stages = system.stages;
      const auto kept = make_plan(spec);
      again(spec);
      CHECK(make_plan(spec)->memory.peak_bytes() < kept->memory.peak_bytes());
    }
  }
}

}  // namespace
}  // namespace moe::test
