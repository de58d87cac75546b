#include "tests/kernels/gate_bodies.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("cross entropy and its gradient agree with the reference, also for huge logits") {
  for (const auto [tokens, vocab] : kMatrices)
    for (const double range : {1.0, 1000.0})
      for (const bool gradient : {false, true})
        agree(2e-6, [&, tokens = tokens, vocab = vocab](const auto& k, auto zero) {
          using T = decltype(zero);
          auto logits = random_values<T>(tokens * vocab, 1, range);
          const auto target = random_ints(tokens, 2, vocab);
          double loss = -1;
          k.cross_entropy(&loss, logits.data(), target.data(), 0.25, gradient, tokens, vocab,
                          nullptr);
          logits.push_back(static_cast<T>(loss));
          return logits;
        });
}

TEST_CASE("the losses of routers and their gradients agree with the reference") {
  for (const Matrix shape : kMatrices)
    for (const auto rule : {kernels::ScoreRule::kSoftmax, kernels::ScoreRule::kSigmoid})
      agree(5e-6, router_losses(shape, rule));
}

TEST_CASE("a balance loss of equal loads is its scale times the load, and has no gradient") {
  for (const auto* k : kernels::runnable_tables()) {
    const int64_t tokens = 5, experts = 19;
    auto p = random_values<float>(tokens * experts, 1);
    const std::vector<float> load(experts, 8);
    double loss = 0;
    const auto rule = kernels::ScoreRule::kSoftmax;
    k->gate_scores(p.data(), p.data(), rule, tokens, experts, nullptr);
    k->balance_loss(&loss, p.data(), load.data(), rule, 0.5, tokens, experts, nullptr);
    CHECK(loss == Approx(0.5 * 8 * tokens).epsilon(1e-6));
    for (const float g : p) CHECK(std::abs(g) < 1e-6);
  }
}

TEST_CASE("the z-loss of huge logits is finite, and of a NaN it is NaN") {
  for (const auto* k : kernels::runnable_tables()) {
    std::vector<float> logits(19, 1000);
    double loss = 0;
    k->z_loss(&loss, logits.data(), 1, 1, 19, nullptr);
    CHECK(loss == Approx(std::pow(1000 + std::log(19.0), 2)).epsilon(1e-6));
    logits[7] = NAN;
    k->z_loss(&loss, logits.data(), 1, 1, 19, nullptr);
    CHECK(std::isnan(loss));
  }
}

TEST_CASE("cross entropy over a large vocabulary keeps its digits") {
  const int64_t vocab = 50257;
  for (const auto* k : kernels::runnable_tables()) {
    auto logits = random_values<float>(vocab, 1);
    const std::vector<double> exact(logits.begin(), logits.end());
    double loss = 0, sum = 0;
    for (const double x : exact) sum += std::exp(x);
    const int32_t target = 31337;
    k->cross_entropy(&loss, logits.data(), &target, 1.0, true, 1, vocab, nullptr);
    CHECK(loss == Approx(std::log(sum) - exact[target]).epsilon(1e-7));
    CHECK(logits[7] == Approx(std::exp(exact[7]) / sum).epsilon(1e-6));
    double total = 0;
    for (const float g : logits) total += g;
    CHECK(std::abs(total) < 1e-6);
  }
}

TEST_CASE("the loss of equal logits is the log of the vocabulary, wherever they lie") {
  for (const auto* k : kernels::runnable_tables())
    for (const float level : {0.0f, 1e30f, -1e30f}) {
      std::vector<float> logits(37, level);
      const int32_t target = 5;
      double loss = 0;
      k->cross_entropy(&loss, logits.data(), &target, 1.0, false, 1, 37, nullptr);
      CHECK(loss == Approx(std::log(37.0)).epsilon(1e-6));
      CHECK(logits == std::vector<float>(37, level));
    }
}

TEST_CASE("a NaN or infinite logit makes the loss NaN") {
  for (const auto* k : kernels::runnable_tables())
    for (const float bad : {NAN, INFINITY})
      for (const int64_t at : {0, 20, 36}) {
        auto logits = random_values<float>(37, 1);
        logits[at] = bad;
        const int32_t target = 5;
        double loss = 0;
        k->cross_entropy(&loss, logits.data(), &target, 1.0, true, 1, 37, nullptr);
        CHECK(std::isnan(loss));
      }
}

TEST_CASE("exp inside the softmax is accurate to about an ulp over its range") {
  // A softmax of (0, -x) shows e^-x to within the rounding of the sum and the scaling.
  for (const auto* k : kernels::runnable_tables()) {
    INFO(k->name);
    double worst = 0;
    for (double x = 0x1p-10; x < 86; x *= 1.003) {
      float logits[2] = {0, static_cast<float>(-x)};
      const double e = std::exp(static_cast<double>(logits[1]));
      const int32_t target = 0;
      double loss;
      k->cross_entropy(&loss, logits, &target, 1.0, true, 1, 2, nullptr);
      worst = std::max(worst, std::abs(logits[1] * (1 + e) / e - 1));
    }
    CHECK(worst < 3 * 0x1p-23);
  }
}
