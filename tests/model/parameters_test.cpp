#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/model/model.h"
#include "tests/base/message_of.h"
#include "tests/model/gpt2.h"

namespace moe::test {
namespace {

using Catch::Contains;

/// The model of golden_tiny.json.
Gpt2 reference_model() {
  Gpt2 model;
  model.vocab = 512;
  model.layers = 4;
  model.hidden = 128;
  model.heads = 4;
  model.seq = 64;
  model.batch_per_device = 8;
  model.experts = 4;
  return model;
}

std::string refusal(const std::function<void(Gpt2&)>& edit, int64_t ranks = 2) {
  Gpt2 model;
  edit(model);
  return message_of<UserError>([&] {
    check(model, ranks);
    build_model(model, gate_spec(model), ranks);
  });
}

}  // namespace

TEST_CASE("parameters have the reference's numbers, sizes and first values") {
  std::ifstream file(MOE_SOURCE_DIR "/tests/data/golden_tiny.json");
  const nlohmann::json checks = nlohmann::json::parse(file)["checks"];
  const std::vector<ParamInfo> params = parameters(reference_model());
  REQUIRE(params.size() == checks["tensor_numbers"].size());
  int64_t total = 0;
  for (size_t p = 0; p < params.size(); ++p) {
    const std::string& name = params[p].name;
    INFO(name);
    const int64_t n = num_elements(params[p].shape);
    total += n;
    CHECK(checks["tensor_numbers"][name] == p);
    CHECK((params[p].init == ParamInfo::Init::kUniform) == checks["init_l2"].contains(name));
    if (params[p].init != ParamInfo::Init::kUniform) continue;
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double value = reference_init(static_cast<uint64_t>(i), p);
      squares += value * value;
      if (i < 4) CHECK(value == checks["init_first4"][name][static_cast<size_t>(i)].get<double>());
    }
    CHECK(std::sqrt(squares) == Approx(checks["init_l2"][name].get<double>()).epsilon(1e-12));
  }
  CHECK(total == checks["parameter_count"].get<int64_t>());
}

TEST_CASE("LayerNorm weights begin as one, biases as zero") {
  for (const ParamInfo& param : parameters(reference_model())) {
    const bool norm = param.name.find("ln") != std::string::npos;
    const bool bias = param.name.ends_with(".b");
    INFO(param.name);
    CHECK((param.init == ParamInfo::Init::kOne) == (norm && !bias));
    CHECK((param.init == ParamInfo::Init::kZero) == bias);
  }
}

TEST_CASE("a model that makes no sense is refused with its field, value and what is allowed") {
  CHECK(refusal([](Gpt2&) {}) == "");
  CHECK_THAT(refusal([](Gpt2& m) { m.vocab = 0; }), Contains("model.vocab = 0: must be from 2 to"));
  CHECK_THAT(refusal([](Gpt2& m) { m.heads = 7; }),
             Contains("model.heads = 7 does not divide model.hidden = 768"));
  CHECK_THAT(refusal([](Gpt2& m) { m.seq = 0; }), Contains("model.seq = 0: must be from 1 to"));
  CHECK_THAT(refusal([](Gpt2& m) { m.batch_per_device = 0; }),
             Contains("model.batch_per_device = 0: must be from 1 to"));
  CHECK_THAT(refusal([](Gpt2& m) { m.k = 5; }), Contains("model.k = 5, allowed: 1 to 4"));
  CHECK_THAT(refusal([](Gpt2&) {}, 3),
             Contains("model.experts = 4 cannot be divided evenly over 3 ranks"));
  CHECK_THAT(refusal([](Gpt2& m) { m.capacity_factor = std::numeric_limits<double>::quiet_NaN(); }),
             Contains("model.capacity_factor = nan: must be from 0 to"));
  CHECK_THAT(refusal([](Gpt2& m) { m.dtype = DType::kI32; }),
             Contains("model.dtype = i32, allowed: f16, bf16, f32, f64"));
  CHECK_THAT(refusal([](Gpt2& m) {
               m.batch_per_device = 1 << 22;
               m.seq = 1 << 22;
             }),
             Contains("tokens per rank is too many"));
}

TEST_CASE("a gate's spec follows from the gate, the model and its capacity factor") {
  Gpt2 model = reference_model();
  const GateSpec one = gate_spec(model);
  CHECK(one.k == 1);
  CHECK(one.columns == 1);
  CHECK(one.capacity == 160);
  CHECK(one.weight == "prob");
  CHECK_FALSE(one.batch_scope);
  model.gate = "top2";
  const GateSpec two = gate_spec(model);
  CHECK(two.k == 2);
  CHECK(two.columns == 2);
  CHECK(two.capacity == 320);
  CHECK(two.weight == "renorm");
  model.gate = "expert_choice";
  CHECK(gate_spec(model).columns == 4);
  CHECK(gate_spec(model).batch_scope);
  model.gate = "hash";
  CHECK(gate_spec(model).weight == "one");
  model.gate = "top2";
  model.experts = 1;
  CHECK_THROWS_WITH(gate_spec(model), Contains("model.gate = 'top2' chooses 2 experts per token"));
  model.gate = "swich";
  CHECK_THROWS_WITH(gate_spec(model), Contains("Did you mean 'switch'?"));
}

}  // namespace moe::test
