// A gate's record is taken from tensors wherever they can be read.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string_view>

#include "engine/base/rng.h"
#include "engine/exec/results/gate_stats.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

OpId gate_of(const Graph& graph) {
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (graph.def(op).name == std::string_view("gate")) return op;
  }
  return OpId();
}

/// The smallest gap between a row's two best scores, found by sorting.
double margin_of(const std::vector<float>& scores, const std::vector<float>& bias) {
  std::vector<double> gaps;
  for (size_t row = 0; row < scores.size(); row += bias.size()) {
    std::vector<float> sums;
    for (size_t e = 0; e < bias.size(); ++e) sums.push_back(scores[row + e] + bias[e]);
    std::sort(sums.rbegin(), sums.rend());
    gaps.push_back(static_cast<double>(sums[0] - sums[1]));
  }
  return *std::min_element(gaps.begin(), gaps.end());
}

TEST_CASE("a gate's record is what its tensors hold, biases added for the margin") {
  for (const bool biased : {true, false}) {
    Gpt2 model = small_model();
    if (biased) model.bias_balance.rate = 0.01;
    const Graph graph = step_graph(spec_of(model, 2));
    const OpId op = gate_of(graph);
    Rng random(biased);
    std::map<TensorId, std::vector<float>> floats;
    std::map<TensorId, std::vector<int32_t>> indices;
    const auto fill = [&](TensorId t) {
      const auto n = static_cast<size_t>(num_elements(graph.tensor(t).shape));
      for (size_t i = 0; i < n; ++i) {
        floats[t].push_back(static_cast<float>(random.uniform()));
        indices[t].push_back(static_cast<int32_t>(random.below(100)));
      }
    };
    const TensorId probs = graph.out(op, 0), bias = biased ? graph.op(op).inputs[3] : TensorId();
    fill(probs);
    if (biased) fill(bias);
    const std::vector<TensorId> kept = {graph.out(op, 2), graph.out(op, 3), graph.out(op, 5)};
    for (const TensorId t : kept) fill(t);

    GateRecord record(graph, op, AssignmentCode());
    record.capture<float>(graph, op, [&](TensorId t) -> const void* {
      const bool is_index = std::find(kept.begin(), kept.end(), t) != kept.end();
      return is_index ? static_cast<const void*>(indices.at(t).data()) : floats.at(t).data();
    });
    CHECK(record.expert == indices.at(kept[0]));
    CHECK(record.choice_slot == indices.at(kept[1]));
    CHECK(record.counts == indices.at(kept[2]));
    const auto experts = static_cast<size_t>(model.experts);
    CHECK(record.margin ==
          margin_of(floats.at(probs), biased ? floats.at(bias) : std::vector<float>(experts)));
  }
}

}  // namespace
}  // namespace moe::test
