// Rows of a gate's numbers do not depend on the rows beside them.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;
using kernels::ScoreRule;

namespace {

template <class T>
void same_bits_in_parts(const kernels::KernelTable<T>& k, const GateShape& g) {
  const auto x = Arrays<T>::stored(g.tokens * g.hidden, 1);
  const auto w = random_values<float>(g.experts * g.hidden, 2);
  std::vector<float> all(static_cast<size_t>(g.tokens * g.experts));
  k.gate_logits(all.data(), x.data(), w.data(), nullptr, g.tokens, g.experts, g.hidden, nullptr);
  for (int64_t first = 0; first < g.tokens; ++first)
    for (int64_t count = 1; first + count <= g.tokens; count += 3) {
      std::vector<float> part(static_cast<size_t>(count * g.experts));
      k.gate_logits(part.data(), x.data() + first * g.hidden, w.data(), nullptr, count, g.experts,
                    g.hidden, nullptr);
      REQUIRE(std::equal(part.begin(), part.end(), all.begin() + first * g.experts));
    }
}

}  // namespace

TEST_CASE("a row's logits have the same bits in any part of a batch") {
  for (const GateShape& g : kGates) {
    same_bits_in_parts(device_table(), g);
    same_bits_in_parts(device_mixed(), g);
  }
}

TEST_CASE("a row's scores have the same bits alone") {
  for (const auto& [tokens, experts, hidden] : kGates) {
    const auto logits = random_values<float>(tokens * experts, 1);
    std::vector<float> all(logits.size()), one(static_cast<size_t>(experts));
    device_table().gate_scores(all.data(), logits.data(), ScoreRule::kSoftmax, tokens, experts,
                               nullptr);
    for (int64_t t = 0; t < tokens; ++t) {
      device_table().gate_scores(one.data(), logits.data() + t * experts, ScoreRule::kSoftmax, 1,
                                 experts, nullptr);
      REQUIRE(std::equal(one.begin(), one.end(), all.begin() + t * experts));
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
