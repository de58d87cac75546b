#include "engine/profile/predict.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/errors.h"
#include "engine/exec/device/executor.h"
#include "engine/graph/op_def.h"
#include "tests/exec/support.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

constexpr auto kSlow = std::chrono::milliseconds(5);  // far longer than any op of the small model

PlanSpec target(std::vector<Stage> stages = {}) {
  PlanSpec spec = test::spec_of(test::small_model(), 2);
  spec.system.stages = std::move(stages);
  return spec;
}

PredictOptions unkept() {
  PredictOptions options;
  options.cache = ":memory:";
  return options;
}

/// A path for a cache, which is removed with what may lie beside it.
struct CacheFile {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("moe-predict-" + std::to_string(getpid()) + ".sqlite"))
                               .string();
  ~CacheFile() {
    for (const char* end : {"", "-wal", "-shm", ".lock", ".corrupt-1"}) {
      std::filesystem::remove(path + end);
    }
  }
};

/// By kind: the longest op of the spec's plan as predicted.
std::map<std::string, Nanoseconds> predicted(PlanSpec spec, const PredictOptions& options) {
  spec.cost = predicted_cost(spec, options).cost;
  const auto plan = make_plan(spec);
  std::map<std::string, Nanoseconds> longest;
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    Nanoseconds& ns = longest[plan->graph.def(op).name];
    ns = std::max(ns, spec.cost->op_ns(plan->graph, op));
  }
  return longest;
}

TEST_CASE("a gate of the recipe's is predicted with the time of its own calls, no other op is") {
  PredictOptions options = unkept();
  options.gate = [](int64_t) {
    Gate gate = builtin_gate("switch");
    gate.route = [route = gate.route](const GateInput& in, RoutingBuilder& out) {
      std::this_thread::sleep_for(kSlow);
      route(in, out);
    };
    return gate;
  };
  const auto longest = predicted(target(), options);
  CHECK(longest.at("gate") >= std::chrono::nanoseconds(kSlow).count());
  CHECK(longest.at("layernorm") < std::chrono::nanoseconds(kSlow).count());
  options.gate = nullptr;
  CHECK(predicted(target(), options).at("gate") < std::chrono::nanoseconds(kSlow).count());
}

TEST_CASE("a placement policy of the recipe's is predicted with its own calls, by its name alone") {
  PredictOptions options = unkept();
  options.place = [](int64_t, const std::string& policy) -> PlacementFunction {
    if (policy != "top_k") return nullptr;
    return [](const PlaceInput& in) {
      std::this_thread::sleep_for(kSlow);
      return in.now;
    };
  };
  const auto place_ns = [&](const std::string& pass) {
    return predicted(target({test::pass(pass, {{"shadows", 1.0}})}), options).at("place");
  };
  CHECK(place_ns("top_k") >= std::chrono::nanoseconds(kSlow).count());
  CHECK(place_ns("prophet") < std::chrono::nanoseconds(kSlow).count());
}

TEST_CASE("runs on one target share a rehearsal, those on other targets do not") {
  Rehearsals rehearsals;
  const CacheFile file;  // so that an op is measured once
  PredictOptions options = unkept();
  options.cache = file.path;
  options.rehearse = 1;
  options.rehearsals = &rehearsals;
  const auto of = [&](const PlanSpec& spec) { return predicted_cost(spec, options).rehearsal; };
  const auto first = of(target());
  CHECK(of(target({test::pass("dw_schedule")})) == first);
  PlanSpec larger = target();
  test::change_model(larger, [](test::Gpt2& m) { m.hidden *= 2; });
  CHECK(of(larger) != first);
  options.check_finite = false;
  CHECK(of(target()) != first);
  options.check_finite = true;
  options.tokens_from = "other tokens";
  CHECK(of(target()) != first);
  options.rehearse = 2;
  CHECK(of(target()) != first);
  CHECK(rehearsals.size() == 5);
  options.rehearsals = nullptr;
  CHECK(of(target()) != of(target()));
}

TEST_CASE("rehearsed steps are part of a prediction, and are not before the rehearsal") {
  PredictOptions options = unkept();
  PlanSpec spec = target();
  CHECK_FALSE(predicted_cost(spec, options).cost->in_step());
  options.rehearse = 2;
  const auto cost = predicted_cost(spec, options).cost;
  REQUIRE(cost->in_step());
  spec.cost = cost;
  const auto plan = make_plan(spec);
  const Plan before = with_in_step(*plan, *cost, std::nullopt);
  const auto& alone = dynamic_cast<const ProfileCost&>(*before.spec.cost);
  CHECK_FALSE(alone.in_step());
  CHECK(cost->in_step());
  CHECK(before.hash == plan->hash);
  CHECK(alone.num_measured() == cost->num_measured());
}

TEST_CASE("a run with a pace is predicted from ops with a thread a core beside, without wake-ups") {
  PredictOptions options = unkept();
  options.emulated = true;
  options.rehearse = 1;
  options.pace = 2;
  test::Gpt2 model = test::small_model("switch", 1);
  model.experts = 16;
  PlanSpec spec = test::spec_of(model, 16);
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  const auto cost = predicted_cost(spec, options).cost;
  CHECK(cost->handoff_ns() == 0);
  const std::string beside = fmt::format("beside={} checked paced", std::min(16u, cores));
  CHECK_THAT(cost->describe(), Contains("pace 2") && Contains(beside));
  spec.cost = cost;
  const auto plan = make_plan(spec);
  const Plan alone = with_in_step(*plan, *cost, std::nullopt);
  for (size_t i = 0; i < plan->graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (plan->graph.def(op).collective == Collective::kNone) continue;
    CHECK(alone.spec.cost->op_ns(plan->graph, op) ==
          collective_ns(spec.cluster, plan->graph, op, {spec.work}));
  }
}

TEST_CASE("a cache that cannot be read is said, and the prediction is made anew") {
  const CacheFile file;
  std::ofstream(file.path) << "this is no cache";
  PredictOptions options = unkept();
  CHECK(predicted_cost(target(), options).warning.empty());
  options.cache = file.path;
  const Prediction prediction = predicted_cost(target(), options);
  CHECK_THAT(prediction.warning, Contains(file.path));
  CHECK(prediction.cost != nullptr);
}

TEST_CASE("nothing is predicted for a device that is not one, or is not here") {
  PredictOptions options = unkept();
  options.device = "tpu";
  CHECK_THROWS_WITH(predicted_cost(target(), options), Contains("'tpu' is not allowed"));
  options.device = "cuda";
  options.rehearse = 4;
  const std::string missing = cuda_missing();
  CHECK_THROWS_WITH(predicted_cost(target(), options),
                    Contains(missing.empty() ? "can be rehearsed on cpu only" : missing));
}

}  // namespace
}  // namespace moe
