#include "tests/kernels/gate_bodies.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;
using kernels::WeightRule;

TEST_CASE("gate logits agree with the reference") {
  for (const GateShape g : kGates)
    agree(1e-5, [&](const auto& k, auto zero) {
      using T = decltype(zero);
      const auto x = random_values<T>(g.tokens * g.hidden, 1);
      const auto w = random_values<T>(g.experts * g.hidden, 2);
      const auto bias = random_values<T>(g.experts, 3);
      std::vector<T> logits(g.tokens * g.experts), biased(logits.size());
      k.gate_logits(logits.data(), x.data(), w.data(), nullptr, g.tokens, g.experts, g.hidden,
                    nullptr);
      k.gate_logits(biased.data(), x.data(), w.data(), bias.data(), g.tokens, g.experts, g.hidden,
                    nullptr);
      CHECK(biased.back() == logits.back() + bias.back());
      return joined(logits, biased);
    });
}

TEST_CASE("a row's logits and scores have the same bits alone and among others") {
  for (const auto* k : kernels::runnable_tables())
    for (const auto& [tokens, experts, hidden] : kGates) {
      INFO(k->name << " " << tokens << " " << experts << " " << hidden);
      const auto x = random_values<float>(tokens * hidden, 1);
      const auto w = random_values<float>(experts * hidden, 2);
      std::vector<float> all(tokens * experts), p(all.size());
      k->gate_logits(all.data(), x.data(), w.data(), nullptr, tokens, experts, hidden, nullptr);
      for (const ScoreRule rule : {ScoreRule::kSoftmax, ScoreRule::kSigmoid}) {
        k->gate_scores(p.data(), all.data(), rule, tokens, experts, nullptr);
        for (int64_t first = 0; first < tokens; ++first)
          for (int64_t count = 1; first + count <= tokens; count += 3) {
            std::vector<float> some(count * experts), some_p(some.size());
            k->gate_logits(some.data(), x.data() + first * hidden, w.data(), nullptr, count,
                           experts, hidden, nullptr);
            k->gate_scores(some_p.data(), some.data(), rule, count, experts, nullptr);
            REQUIRE(std::equal(some.begin(), some.end(), all.begin() + first * experts));
            REQUIRE(std::equal(some_p.begin(), some_p.end(), p.begin() + first * experts));
          }
      }
    }
}

TEST_CASE("gate logits do not depend on the alignment of their rows") {
  for (const auto* k : kernels::runnable_tables()) {
    const int64_t hidden = 61;
    const auto x = random_values<float>(hidden, 1), w = random_values<float>(2 * hidden, 2);
    float want[2];
    k->gate_logits(want, x.data(), w.data(), nullptr, 1, 2, hidden, nullptr);
    for (int shift = 1; shift < 16; ++shift) {
      std::vector<float> moved(shift);
      moved.insert(moved.end(), x.begin(), x.end());
      float got[2];
      k->gate_logits(got, moved.data() + shift, w.data(), nullptr, 1, 2, hidden, nullptr);
      CHECK(got[0] == want[0]);
      CHECK(got[1] == want[1]);
    }
  }
}

TEST_CASE("gate scores agree with the reference, also for extreme logits") {
  for (const GateShape g : kGates)
    for (const double range : {1.0, 300.0})
      for (const ScoreRule rule : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
        agree(5e-7, gate_scores(g, range, rule));
}

TEST_CASE("gate dlogits agree with the reference for every rule, with missing choices") {
  for (const GateShape g : kGates)
    for (const WeightRule weight : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne})
      for (const ScoreRule score : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
        agree(1e-5, gate_dlogits(g, weight, score));
}

TEST_CASE("a NaN logit makes its own row's softmax NaN and no other") {
  for (const auto* k : kernels::runnable_tables()) {
    auto logits = random_values<float>(3 * 5, 1);
    logits[7] = NAN;
    std::vector<float> p(15);
    k->gate_scores(p.data(), logits.data(), ScoreRule::kSoftmax, 3, 5, nullptr);
    CHECK(k->first_nonfinite(p.data(), 15) == 5);
    CHECK(k->first_nonfinite(p.data() + 10, 5) == -1);
  }
}
