// The gate's numerics, losses and optimizers.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;
using kernels::WeightRule;

namespace {

struct GateShape {
  int64_t tokens, experts, hidden;
};
const std::vector<GateShape> kGates = {{1, 2, 8},   {5, 3, 17},   {19, 5, 100},
                                       {7, 64, 33}, {33, 16, 64}, {2, 256, 20}};

}  // namespace

TEST_CASE("gate logits agree with the reference") {
  for (const GateShape g : kGates)
    for (const double range : {1.0, 30.0})
      for (const int64_t shift : {0, 1})
        agree_on_both(1e-4, [&](const auto& k, auto arrays) {
          using A = decltype(arrays);
          const auto x = A::stored(g.tokens * g.hidden + shift, 1, range);
          const auto w = A::wide(g.experts * g.hidden, 2);
          std::vector<typename A::Wide> logits(g.tokens * g.experts);
          k.gate_logits(logits.data(), x.data() + shift, w.data(), g.tokens, g.experts, g.hidden,
                        nullptr);
          return Results<typename A::Stored>{{}, logits};
        });
}

TEST_CASE("gate scores agree with the reference") {
  for (const GateShape g : kGates)
    for (const double range : {1.0, 30.0})
      for (const ScoreRule rule : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
        agree_on_device(1e-4, [&](const auto& k, auto zero) {
          using T = decltype(zero);
          const auto logits = random_values<T>(g.tokens * g.experts, 1, range);
          std::vector<T> p(logits.size());
          k.gate_scores(p.data(), logits.data(), rule, g.tokens, g.experts, nullptr);
          return p;
        });
}

TEST_CASE("a row's logits and scores have the same bits alone") {
  const auto& k = device_table();
  for (const auto& [tokens, experts, hidden] : kGates) {
    const auto x = random_values<float>(tokens * hidden, 1);
    const auto w = random_values<float>(experts * hidden, 2);
    std::vector<float> all(tokens * experts), one(experts), all_p(all.size()), one_p(experts);
    k.gate_logits(all.data(), x.data(), w.data(), tokens, experts, hidden, nullptr);
    k.gate_scores(all_p.data(), all.data(), ScoreRule::kSoftmax, tokens, experts, nullptr);
    for (int64_t t = 0; t < tokens; ++t) {
      k.gate_logits(one.data(), x.data() + t * hidden, w.data(), 1, experts, hidden, nullptr);
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
        agree_on_device(1e-5, [&](const auto& table, auto zero) {
          using T = decltype(zero);
          const int64_t k = 2;
          std::vector<int32_t> expert(g.tokens * k);
          for (int64_t t = 0; t < g.tokens; ++t) {
            expert[2 * t] = static_cast<int32_t>((t * 7) % g.experts);
            expert[2 * t + 1] = t % 3 ? static_cast<int32_t>((t * 7 + 1) % g.experts) : -1;
          }
          if (g.tokens > 4) expert[2 * 3] = expert[2 * 3 + 1] = -1;  // a token that no expert took
          const auto logits = random_values<T>(g.tokens * g.experts, 1, 3.0);
          const auto dweight = random_values<T>(g.tokens * k, 2);
          std::vector<T> p(logits.size()), dlogits(logits.size(), T(5));
          table.gate_scores(p.data(), logits.data(), score, g.tokens, g.experts, nullptr);
          table.gate_dlogits(dlogits.data(), dweight.data(), p.data(), expert.data(), weight, score,
                             g.tokens, g.experts, k, nullptr);
          return joined(p, dlogits);  // some dlogits cancel to 0: p gives the scale
        });
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
  for (const auto& [tokens, experts] : kMatrices)
    for (const auto rule : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
      agree_on_device(5e-6, [&, tokens = tokens, experts = experts](const auto& k, auto zero) {
        using T = decltype(zero);
        auto logits = random_values<T>(tokens * experts, 1, 4), p = logits;
        auto load = random_values<T>(experts, 2, 50);
        for (T& l : load) l = std::abs(l);
        double balance = -1, z = -1;
        k.gate_scores(p.data(), p.data(), rule, tokens, experts, nullptr);  // in place
        k.balance_loss(&balance, p.data(), load.data(), rule, 0.01 / tokens, tokens, experts,
                       nullptr);
        k.z_loss(&z, logits.data(), 0.1 / tokens, tokens, experts, nullptr);
        p.push_back(static_cast<T>(balance));
        p.push_back(static_cast<T>(z));
        return joined(p, logits);
      });
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
