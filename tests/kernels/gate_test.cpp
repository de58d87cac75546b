#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;

TEST_CASE("a row's logits and scores have the same bits alone and among others") {
  for (const auto* k : kernels::runnable_tables())
    for (const auto& [tokens, experts, hidden] : kGates) {
      INFO(k->name << " " << tokens << " " << experts << " " << hidden);
      const auto x = random_values<float>(tokens * hidden, 1);
      const auto w = random_values<float>(experts * hidden, 2),
                 bias = random_values<float>(experts, 3);
      std::vector<float> all(tokens * experts), p(all.size());
      k->gate_logits(all.data(), x.data(), w.data(), nullptr, tokens, experts, hidden, nullptr);
      k->gate_logits(p.data(), x.data(), w.data(), bias.data(), tokens, experts, hidden, nullptr);
      CHECK(p.back() == all.back() + bias.back());
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
