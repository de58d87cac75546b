#include "engine/routing/token_imbalance.h"

#include <catch2/catch.hpp>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/sha256.h"
#include "engine/routing/workload.h"
#include "tests/base/message_of.h"

namespace moe {
namespace {

std::vector<int32_t> choices_of(const char* name, const RoutingQuery& q, uint64_t seed,
                                int64_t rank = 0) {
  std::vector<int32_t> choices(static_cast<size_t>(q.tokens * q.k));
  workload(name, {}, seed).route(q, rank, choices);
  return choices;
}

TEST_CASE("W0 to W7 are those of the benchmark, to the bit") {
  // From a second implementation, of which PyTorch's randperm(10) after manual_seed(0) is a result.
  const RoutingQuery q{.step = 7, .ranks = 4, .tokens = 4, .experts = 16, .k = 2};
  using Choices = std::vector<int32_t>;
  CHECK(choices_of("W0_balanced", q, 1234) == Choices{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(choices_of("W1_hot_expert_set", q, 1234) == Choices{6, 10, 1, 3, 0, 3, 0, 3});
  CHECK(choices_of("W2_hot_rank", q, 1234) == Choices{12, 14, 2, 3, 1, 2, 1, 2});
  CHECK(choices_of("W3_spread_hot_experts", q, 1234) == Choices{10, 13, 2, 14, 8, 14, 6, 10});
  CHECK(choices_of("W4_source_ragged", q, 1234) == Choices{4, 14, 0, 14, 6, 15, 1, 3});
  CHECK(choices_of("W5_zero_expert_rank", q, 1234) == Choices{10, 13, 10, 12, 13, 14, 11, 14});
  CHECK(choices_of("W6_rotating_hotspot", q, 1234) == Choices{5, 12, 9, 10, 10, 11, 8, 10});
  CHECK(choices_of("W7_burst", q, 1234) == Choices{1, 2, 0, 7, 2, 3, 1, 14});
}

TEST_CASE("the first bytes of SHA-256") {
  CHECK(sha256("abc")[0] == 0xba7816bf);
  CHECK(sha256("")[0] == 0xe3b0c442);
  // FIPS 180-2, appendix B: two blocks, and a million letters; hashlib for the lengths between.
  const auto ends = [](const std::string& text, uint32_t first, uint32_t last) {
    const std::array<uint32_t, 8> words = sha256(text);
    return words[0] == first && words[7] == last;
  };
  CHECK(ends("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 0x248d6a61, 0x19db06c1));
  CHECK(ends(std::string(1'000'000, 'a'), 0xcdc76e5c, 0xc7112cd0));
  CHECK(ends(std::string(64, 'a'), 0xffe054fe, 0x154668eb));
  CHECK(ends(std::string(119, 'a'), 0x31eba51c, 0x6584dcfb));
}

TEST_CASE("W0 to W7: k different experts each, the same on all ranks, counted as they are chosen") {
  for (const TokenImbalance& one : token_imbalances()) {
    for (const int64_t experts : {4, 5, 16}) {
      const RoutingQuery q{.step = 3, .ranks = 3, .tokens = 40, .experts = experts, .k = 2};
      const std::vector<int32_t> choices = choices_of(one.name, q, 1);
      CHECK(choices_of(one.name, q, 1, 2) == choices);
      ExpertCounts counted(3, experts);
      for (size_t i = 0; i < choices.size(); i += 2) {
        CHECK(choices[i] != choices[i + 1]);
        for (int64_t r = 0; r < 3; ++r)
          ++counted.at(r, choices[i]), ++counted.at(r, choices[i + 1]);
      }
      CHECK(workload(one.name, {}, 1).loads(q) == counted);
    }
  }
  const std::string message = test::message_of<UserError>([] {
    choices_of("W5_zero_expert_rank", {.ranks = 1, .tokens = 1, .experts = 4, .k = 3}, 1);
  });
  CHECK_THAT(message, Catch::Contains("k = 3") && Catch::Contains("1 to the 2 experts in use"));
}

}  // namespace
}  // namespace moe
