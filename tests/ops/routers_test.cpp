// Choices and weights of the router ops against those of the routers in transformers 5.24.0 with
// PyTorch 2.9.1: classes DeepseekV3TopkRouter, DeepseekV2TopkRouter (group_limited_greedy) and
// GptOssTopKRouter, 3 of 8 experts, 2 of 4 groups, with an identity matrix for the weight.
#include <catch2/catch.hpp>

#include <map>

#include "engine/graph/text.h"
#include "engine/routing/gate.h"
#include "tests/ops/interpreter.h"

namespace moe::test {
namespace {

constexpr int64_t kTokens = 5, kExperts = 8, kChoices = 3;

const std::vector<double> kX = {-1.41, 1.89,  -0.28, 0.23,  0.16,  -0.42, -3.9,  0.94, -1.3, -0.31,
                                0.6,   1.0,   -0.08, 0.07,  -2.65, -3.18, 2.28,  -1.0, 0.0,  -0.23,
                                1.71,  -0.35, 1.78,  1.15,  -1.06, 3.02,  1.37,  0.42, 0.31, 3.35,
                                2.57,  -0.59, 1.91,  -0.28, 3.26,  -0.86, -1.21, 0.43, 0.01, -1.02};
const std::vector<double> kBias = {0.15, 0.27, 0.04, 0.2, -0.21, 0.18, -0.29, 0.2};

struct Router {
  const char* name;
  const char* logits_bias;  // operands of gate_logits and gate
  const char* gate_bias;
  const char* attrs;
  std::vector<int> expert;  // in ascending order, with their weights
  std::vector<double> weight;
};

const std::vector<Router> kRouters = {
    {"DeepSeek-V3",
     "",
     ", _, %3",
     "scores=\"sigmoid\", weight=\"renorm\", scale=2.5, groups=4, top_groups=2, "
     "group_score=\"top2\"",
     {1, 2, 3, 1, 2, 3, 0, 6, 7, 1, 2, 3, 0, 1, 2},
     {1.169911, 0.579671, 0.750418, 0.587715, 0.89683, 1.015455, 0.899145, 0.848093, 0.752762,
      1.012462, 0.846716, 0.640822, 0.961601, 0.475219, 1.063181}},
    {"DeepSeek-V2",
     "",
     "",
     "scores=\"softmax\", weight=\"prob\", scale=16.0, groups=4, top_groups=2, "
     "group_score=\"max\"",
     {0, 1, 7, 2, 3, 5, 0, 6, 7, 1, 4, 5, 0, 1, 2},
     {0.293956, 7.969935, 3.082301, 3.808856, 5.682145, 2.241911, 5.738163, 3.480372, 1.853618,
      4.698399, 0.312616, 6.535322, 2.905517, 0.325176, 11.207815}},
    // A softmax over the chosen logits is the renormalised softmax over all.
    {"gpt-oss",
     ", %3",
     "",
     "scores=\"softmax\", weight=\"renorm\"",
     {1, 3, 7, 2, 3, 5, 0, 4, 6, 1, 5, 6, 0, 2, 5},
     {0.650246, 0.115278, 0.234475, 0.291738, 0.510738, 0.197523, 0.560167, 0.221016, 0.218817,
      0.379439, 0.482362, 0.138199, 0.213211, 0.736776, 0.050013}}};

template <class T>
void check_router(const Router& router) {
  const Graph graph = parse_graph(fmt::format(R"(
graph router ranks=1
%0 input i32 [5] ids
%1 param f64 [5,8] x
%2 param f64 [8,8] wg
%3 param f64 [8] bias
%4 = gate_logits(%1, %2{}) logits forward gate
%5, %6, %7, %8, %9, %10 = gate(%4, %0{}) {{k=3, capacity=5, {}}} gate forward gate
)",
                                              router.logits_bias, router.gate_bias, router.attrs),
                                  op_table());
  Interpreter<T> run(graph);
  run.rank.gate = &builtin_gate("top_k");
  std::copy(kX.begin(), kX.end(), run.real("x"));
  for (int64_t i = 0; i < kExperts * kExperts; ++i) run.real("wg")[i] = i % (kExperts + 1) == 0;
  std::copy(kBias.begin(), kBias.end(), run.real("bias"));
  std::fill_n(run.index("ids"), kTokens, 0);
  run.run();
  for (int64_t t = 0; t < kTokens; ++t) {
    std::map<int, double> weights;
    for (int64_t i = t * kChoices; i < (t + 1) * kChoices; ++i) {
      weights[run.index("gate:2")[i]] = run.real("gate:1")[i];
    }
    auto at = static_cast<size_t>(t * kChoices);
    for (const auto& [expert, weight] : weights) {
      CHECK(expert == router.expert[at]);
      CHECK(weight == Approx(router.weight[at++]).margin(2e-6));
    }
  }
}

}  // namespace

TEST_CASE("routers choose the experts of transformers' routers, with their weights") {
  for (const Router& router : kRouters) {
    INFO(router.name);
    check_router<float>(router);
    check_router<double>(router);
  }
}

}  // namespace moe::test
