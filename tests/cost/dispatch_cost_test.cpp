#include "engine/cost/dispatch_cost.h"

#include <catch2/catch.hpp>

#include "engine/base/rng.h"

namespace moe {
namespace {

TEST_CASE("tokens are drawn with the given counts of experts, and none gets an expert twice") {
  Rng rng(4);
  for (int i = 0; i < 50; ++i) {
    const int64_t tokens = 1 + rng.below(40), k = 1 + rng.below(6);
    std::vector<int64_t> counts(static_cast<size_t>(k + rng.below(20)));
    for (int64_t left = tokens * k, tries = 0; left > 0 && tries < 2000; ++tries) {
      int64_t& count = counts[static_cast<size_t>(rng.below(std::ssize(counts)))];
      if (count == tokens) continue;  // an expert has at most one choice of each token
      ++count, --left;
    }
    const std::vector<int32_t> choices = Dispatcher::choices_with(counts, tokens, k, 7);
    std::vector<int64_t> found(counts.size());
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> own(choices.begin() + t * k, choices.begin() + (t + 1) * k);
      std::sort(own.begin(), own.end());
      for (size_t c = 0; c < own.size(); ++c) {
        if (own[c] < 0) continue;
        ++found[static_cast<size_t>(own[c])];
        CHECK((c == 0 || own[c] != own[c - 1]));
      }
    }
    CHECK(found == counts);
  }
}

}  // namespace
}  // namespace moe
