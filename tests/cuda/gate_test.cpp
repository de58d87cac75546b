// The gate's numerics, losses and optimizers.
#include "tests/cuda/on_device.h"
#include "tests/kernels/gate_bodies.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;
using kernels::WeightRule;

TEST_CASE("gate logits agree with the reference") {
  for (const GateShape g : kGates)
    for (const double range : {1.0, 30.0})
      for (const int64_t shift : {0, 1})
        agree_on_both(1e-4, [&](const auto& k, auto arrays) {
          using A = decltype(arrays);
          const auto x = A::stored(g.tokens * g.hidden + shift, 1, range);
          const auto w = A::wide(g.experts * g.hidden, 2);
          const auto bias = A::wide(g.experts, 3);
          std::vector<typename A::Wide> logits(g.tokens * g.experts), biased(logits.size());
          k.gate_logits(logits.data(), x.data() + shift, w.data(), nullptr, g.tokens, g.experts,
                        g.hidden, nullptr);
          k.gate_logits(biased.data(), x.data() + shift, w.data(), bias.data(), g.tokens, g.experts,
                        g.hidden, nullptr);
          return Results<typename A::Stored>{{}, joined(logits, biased)};
        });
}

TEST_CASE("gate scores agree with the reference") {
  for (const GateShape g : kGates)
    for (const double range : {1.0, 30.0})
      for (const ScoreRule rule : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
        agree_on_device(1e-4, gate_scores(g, range, rule));
}

TEST_CASE("a row's logits and scores have the same bits alone") {
  const auto& k = device_table();
  for (const auto& [tokens, experts, hidden] : kGates) {
    const auto x = random_values<float>(tokens * hidden, 1);
    const auto w = random_values<float>(experts * hidden, 2);
    std::vector<float> all(tokens * experts), one(experts), all_p(all.size()), one_p(experts);
    k.gate_logits(all.data(), x.data(), w.data(), nullptr, tokens, experts, hidden, nullptr);
    k.gate_scores(all_p.data(), all.data(), ScoreRule::kSoftmax, tokens, experts, nullptr);
    for (int64_t t = 0; t < tokens; ++t) {
      k.gate_logits(one.data(), x.data() + t * hidden, w.data(), nullptr, 1, experts, hidden,
                    nullptr);
      k.gate_scores(one_p.data(), one.data(), ScoreRule::kSoftmax, 1, experts, nullptr);
      REQUIRE(std::equal(one.begin(), one.end(), all.begin() + t * experts));
      REQUIRE(std::equal(one_p.begin(), one_p.end(), all_p.begin() + t * experts));
    }
  }
}

TEST_CASE("a NaN logit makes its own row's softmax NaN and no other") {
  for (int64_t at = 0; at < 70; ++at) {
    auto p = random_values<float>(3 * 70, 1);
    p[70 + at] = NAN;
    device_table().gate_scores(p.data(), p.data(), ScoreRule::kSoftmax, 3, 70, nullptr);
    for (int64_t i = 0; i < 3 * 70; ++i) REQUIRE(std::isnan(p[i]) == (i / 70 == 1));
  }
}

TEST_CASE("gate dlogits agree for every rule, with missing choices") {
  for (const GateShape g : kGates)
    for (const WeightRule weight : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne})
      for (const ScoreRule score : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
        agree_on_device(1e-5, gate_dlogits(g, weight, score));
}

TEST_CASE("cross entropy agrees with the reference, also for huge logits") {
  for (const auto& [tokens, vocab] : joined(kMatrices, {{270, 3}, {2, 4113}}))
    for (const double range : {1.0, 1000.0})
      for (const bool gradient : {false, true}) {
        if (tokens > 100 && (!gradient || range > 1)) continue;  // more rows than blocks
        agree_on_both(2e-6, [&, tokens = tokens, vocab = vocab](const auto& k, auto arrays) {
          using A = decltype(arrays);
          auto logits = A::stored(tokens * vocab, 1, range);
          const auto target = random_ints(tokens, 2, vocab);
          double loss = -1;
          k.cross_entropy(&loss, logits.data(), target.data(), 0.25, gradient, tokens, vocab,
                          nullptr);
          return Results<typename A::Stored>{logits, {static_cast<typename A::Wide>(loss)}};
        });
      }
}

TEST_CASE("the losses of routers agree with the reference") {
  for (const Matrix shape : kMatrices)
    for (const auto rule : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
      agree_on_device(5e-6, router_losses(shape, rule));
}

TEST_CASE("a loss of no tokens is 0, and of a NaN it is NaN") {
  const auto& k = device_table();
  double loss = -1;
  k.z_loss(&loss, nullptr, 1, 0, 4, nullptr);
  CHECK(loss == 0);
  std::vector<float> logits = {1, NAN, 2, 3};
  const int32_t target = 0;
  k.cross_entropy(&loss, logits.data(), &target, 1, true, 1, 4, nullptr);
  CHECK(std::isnan(loss));
  for (const float g : logits) CHECK(std::isnan(g));
}

TEST_CASE("SGD and AdamW agree with the reference over several steps") {
  for (const int64_t n : {1, 15, 1000, 4097})
    agree_on_device(1e-5, [&](const auto& k, auto zero) {
      using T = decltype(zero);
      auto w = random_values<T>(n, 1), sgd_w = w, sgd_v = random_values<T>(n, 2);
      std::vector<T> m(n), v(n);
      const kernels::AdamwRates rates = {
          .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .lr = 0.01, .weight_decay = 1};
      for (const int64_t step : {0, 1, 2, 1000}) {
        const auto g = random_values<T>(n, 11 + static_cast<uint64_t>(step));
        k.adamw(w.data(), m.data(), v.data(), g.data(), rates, &step, n, nullptr);
        k.sgd(sgd_w.data(), sgd_v.data(), g.data(), T(0.1), T(0.9), n, nullptr);
      }
      return joined(joined(joined(w, m), v), joined(sgd_w, sgd_v));
    });
}
