#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;

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
    k->cross_entropy(&loss, logits.data(), &target, 1.0, true, 1, vocab, vocab, nullptr);
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
      k->cross_entropy(&loss, logits.data(), &target, 1.0, false, 1, 37, 37, nullptr);
      CHECK(loss == Approx(std::log(37.0)).epsilon(1e-6));
      CHECK(logits == std::vector<float>(37, level));
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
      k->cross_entropy(&loss, logits, &target, 1.0, true, 1, 2, 2, nullptr);
      worst = std::max(worst, std::abs(logits[1] * (1 + e) / e - 1));
    }
    CHECK(worst < 3 * 0x1p-23);
  }
}
