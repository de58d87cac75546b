// The whole training in float64 on one rank against an independent implementation.
#include <catch2/catch.hpp>

#include "engine/model/model.h"
#include "engine/routing/gate.h"
#include "tests/model/reference.h"
#include "tests/ops/interpreter.h"

namespace moe::test {
namespace {

/// A training of the reference model with one gate, on one rank.
template <class T>
class Training {
 public:
  explicit Training(const Gpt2& model)
      : model_(model), graph_(make(model)), run_(graph_), gate_(builtin_gate(model.gate)) {
    run_.rank.gate = &gate_;
    const std::vector<ParamInfo> params = parameters(model);
    for (size_t p = 0; p < params.size(); ++p) {
      const TensorId w = run_.find(params[p].name);
      for (int64_t i = 0; i < run_.size(w); ++i) {
        run_.wide(w)[i] = params[p].init == ParamInfo::Init::kUniform
                              ? static_cast<W>(reference_init(static_cast<uint64_t>(i), p))
                              : (params[p].init == ParamInfo::Init::kOne ? 1 : 0);
      }
      const TensorId v = graph_.find_tensor(params[p].name + ".v");
      if (v.valid()) std::fill_n(run_.wide(v), run_.size(v), W(0));
    }
  }

  double step(int64_t step) {
    for (int64_t row = 0; row < model_.batch_per_device; ++row) {
      for (int64_t pos = 0; pos < model_.seq; ++pos) {
        const int64_t at = row * model_.seq + pos;
        run_.index("ids")[at] = reference_token(step, row, pos, model_);
        run_.index("targets")[at] = reference_token(step, row, pos + 1, model_);
      }
    }
    run_.rank.step = step;
    run_.run();
    return run_.scalar(loss_of(graph_));
  }

  RoutingMaps routing(const Op& gate) {
    const Shape& expert = graph_.tensor(gate.outputs[2]).shape;
    const Shape& slots = graph_.tensor(gate.outputs[4]).shape;
    return {.tokens = expert[0],
            .experts = slots[0],
            .columns = expert[1],
            .capacity = slots[1],
            .expert = run_.index(gate.outputs[2]),
            .choice_slot = run_.index(gate.outputs[3]),
            .slot_choice = run_.index(gate.outputs[4]),
            .counts = run_.index(gate.outputs[5])};
  }

  std::vector<std::string> checksums() {
    std::vector<std::string> sums;
    for (const Op& op : graph_.ops()) {
      if (graph_.def(op).name != std::string_view("gate")) continue;
      sums.push_back(
          fmt::format("{:016x}", assignment_checksum(kChecksumStart, routing(op), gate_.code)));
    }
    return sums;
  }

  /// The gradient that the update of this parameter reads.
  TensorId gradient(const std::string& param) const {
    return graph_.op(graph_.find_op(param + ".sgd")).inputs[2];
  }

  Interpreter<T>& memory() { return run_; }

 private:
  using W = kernels::Wide<T>;

  static Graph make(const Gpt2& model) {
    Graph graph = build_forward(model, gate_spec(model), 1);
    add_backward_and_update(graph, Sgd{.lr = 0.1, .momentum = 0.9}, {});
    return graph;
  }

  Gpt2 model_;
  Graph graph_;
  Interpreter<T> run_;
  const Gate& gate_;
};

void check_values(const nlohmann::json& expected, const std::function<double(std::string)>& value) {
  for (const auto& [name, want] : expected.items()) {
    INFO(name);
    CHECK(value(name) == Approx(want.get<double>()).epsilon(1e-8).margin(1e-11));
  }
}

}  // namespace

TEST_CASE("five float64 steps give the reference's losses, routing, gradients and parameters",
          "[slow]") {
  const auto gate = GENERATE(std::string("switch"), std::string("top2"));
  const bool fused = GENERATE(true, false);
  INFO(gate << (fused ? ", fused attention" : ", unfused attention"));
  const nlohmann::json reference = golden()["gates"][gate]["fp64"];
  Gpt2 model = reference_model(gate);
  model.fused_attention = fused;
  Training<double> training(model);
  Interpreter<double>& memory = training.memory();
  const int64_t steps = fused ? 5 : 1;
  for (int64_t step = 0; step < steps; ++step) {
    INFO("step " << step);
    const double loss = training.step(step);
    CHECK(std::abs(loss - reference["losses"][static_cast<size_t>(step)].get<double>()) < 1e-9);
    const std::vector<std::string> sums = training.checksums();
    const nlohmann::json& layers = reference["moe"][static_cast<size_t>(step)];
    REQUIRE(sums.size() == layers.size());
    for (size_t layer = 0; layer < sums.size(); ++layer) {
      INFO("MoE layer " << layer << ", closest decision " << layers[layer]["min_argmax_margin"]);
      CHECK(sums[layer] == layers[layer]["checksum"].get<std::string>());
    }
    if (step > 0) continue;
    check_values(reference["first_step_grad_l2"], [&](const std::string& name) {
      const TensorId g = training.gradient(name);
      return l2(memory.real(g), memory.size(g));
    });
    check_values(reference["first_step_grad_projection"], [&](const std::string& name) {
      const TensorId g = training.gradient(name);
      return projection(memory.real(g), memory.size(g));
    });
  }
  if (!fused) return;
  check_values(reference["after_5_steps_param_l2"], [&](const std::string& name) {
    return l2(memory.real(name), memory.size(memory.find(name)));
  });
  check_values(reference["after_5_steps_param_projection"], [&](const std::string& name) {
    return projection(memory.real(name), memory.size(memory.find(name)));
  });
}

TEST_CASE("three steps with activations in bfloat16 stay near the reference's in float64",
          "[slow]") {
  const auto gate = GENERATE(std::string("switch"), std::string("top2"));
  INFO(gate);
  const nlohmann::json reference = golden()["gates"][gate]["fp64"];
  Gpt2 model = reference_model(gate);
  model.dtype = DType::kBF16;
  Training<kernels::Bf16> training(model);
  for (int64_t step = 0; step < 3; ++step) {
    INFO("step " << step);
    const double want = reference["losses"][static_cast<size_t>(step)].get<double>();
    const double error = std::abs(training.step(step) / want - 1);
    CHECK(error < 1e-2);
    CHECK(error > 1e-9);  // it is not the reference's arithmetic
    if (step > 0) continue;
    for (const auto& [name, norm] : reference["first_step_grad_l2"].items()) {
      INFO(name);
      const TensorId g = training.gradient(name);
      CHECK(l2(training.memory().wide(g), training.memory().size(g)) ==
            Approx(norm.get<double>()).epsilon(5e-2));
    }
  }
}

}  // namespace moe::test
