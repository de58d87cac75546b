// The whole step against an independent float64 implementation of the reference model.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/exec/support.h"

namespace moe::test {
namespace {

using nlohmann::json;

struct Case {
  const char* key;
  const char* gate;
  int64_t num_ranks;
  Precision precision;
  bool fused_attention = true;
};

json golden(const std::string& key) {
  std::ifstream in(std::string(MOE_SOURCE_DIR) + "/tests/data/golden_tiny.json");
  return json::parse(in)["gates"][key]["fp64"];
}

RunResult run_case(const Case& c) {
  Gpt2 model = reference_model(c.gate, c.num_ranks);
  model.fused_attention = c.fused_attention;
  const auto plan = plan_of(spec_of(model, c.num_ranks, c.precision));
  RunOptions options = options_of(*plan, 5);
  options.train.keep_grad_norms = true;
  return run_cpu(*plan, options);
}

void check_losses(const RunResult& result, const json& expected, double tolerance) {
  REQUIRE(result.losses.size() == expected["losses"].size());
  for (size_t s = 0; s < result.losses.size(); ++s) {
    INFO("step " << s);
    CHECK(std::abs(result.losses[s] - expected["losses"][s].get<double>()) < tolerance);
  }
}

int64_t dropped_of(const json& layer) {
  if (layer.contains("dropped_tokens")) return layer["dropped_tokens"];
  return layer["dropped_first_choices"].get<int64_t>() +
         layer["dropped_second_choices"].get<int64_t>();
}

/// A decision closer than this may fall otherwise in another order of summation.
constexpr double kTooClose = 1e-6;

void check_routing(const RunResult& result, const json& expected) {
  for (size_t s = 0; s < result.moe.size(); ++s) {
    REQUIRE(result.moe[s].size() == expected["moe"][s].size());
    for (size_t l = 0; l < result.moe[s].size(); ++l) {
      const MoeStats& stats = result.moe[s][l];
      const json& layer = expected["moe"][s][l];
      INFO("step " << s << ", MoE layer " << l);
      CHECK(stats.capacity == layer["capacity"].get<int64_t>());
      const std::string checksum = fmt::format("{:016x}", stats.checksum);
      const double margin = layer["min_argmax_margin"];
      if (margin < kTooClose && checksum != layer["checksum"]) {
        WARN("step " << s << ", MoE layer " << l << ": a token with a margin of " << margin
                     << " went the other way");
        CHECK(std::abs(stats.dropped - dropped_of(layer)) <= 2);
        continue;
      }
      CHECK(checksum == layer["checksum"]);
      CHECK(stats.dropped == dropped_of(layer));
    }
  }
}

void check_named(const std::map<std::string, double>& got, const json& expected, const json& scale,
                 double tolerance) {
  if (expected.is_null()) return;  // the reference keeps these for some cases only
  REQUIRE(got.size() == expected.size());
  for (const auto& [name, value] : got) {
    INFO(name << ": " << value << ", expected " << expected[name]);
    CHECK(std::abs(value - expected[name].get<double>()) < tolerance * scale[name].get<double>());
  }
}

void check_against_reference(const Case& c, double loss_tolerance, double relative) {
  INFO(c.key << (c.precision == Precision::kF64 ? " in double" : " in float"));
  const json expected = golden(c.key);
  const RunResult result = run_case(c);
  check_losses(result, expected, loss_tolerance);
  check_routing(result, expected);
  const json grad = expected.value("first_step_grad_l2", json());
  const json param = expected.value("after_5_steps_param_l2", json());
  check_named(result.grad_l2, grad, grad, relative);
  check_named(result.param_l2, param, param, relative);
  // A projection is a sum with signs: its error is measured against the norm.
  check_named(result.grad_projection, expected.value("first_step_grad_projection", json()), grad,
              10 * relative);
  check_named(result.param_projection, expected.value("after_5_steps_param_projection", json()),
              param, 10 * relative);
}

TEST_CASE("five steps in float give the reference's losses, routing, gradients and parameters") {
  check_against_reference({"switch", "switch", 1, Precision::kF32}, 2e-6, 1e-4);
  check_against_reference({"switch_ranks2", "switch", 2, Precision::kF32}, 2e-6, 1e-4);
  check_against_reference({"top2", "top2", 1, Precision::kF32}, 2e-6, 1e-4);
}

TEST_CASE("five steps in double give the reference's numbers to nine digits") {
  check_against_reference({"switch_ranks2", "switch", 2, Precision::kF64}, 1e-9, 1e-9);
  check_against_reference({"top2", "top2", 1, Precision::kF64, false}, 1e-9, 1e-9);
}

}  // namespace
}  // namespace moe::test
