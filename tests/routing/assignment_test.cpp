#include <catch2/catch.hpp>

#include "tests/routing/fixture.h"

using namespace moe;
using kernels::WeightRule;
using moe::test::OwnedMaps;

namespace {

// A token each goes to the expert whose number is the character.
uint64_t checksum_of(uint64_t so_far, const std::string& text) {
  OwnedMaps m(static_cast<int64_t>(text.size()), 128, 1, 8);
  RoutingBuilder builder(m.maps);
  for (size_t t = 0; t < text.size(); ++t) builder.take(static_cast<int64_t>(t), text[t]);
  return assignment_checksum(so_far, m.maps, AssignmentCode::kChoices);
}

}  // namespace

TEST_CASE("the checksum of kept choices is FNV-1a over the experts' numbers") {
  // The published vectors of FNV-1a 64.
  CHECK(checksum_of(kChecksumStart, "a") == 0xaf63dc4c8601ec8cull);
  CHECK(checksum_of(kChecksumStart, "foobar") == 0x85944171f73967e8ull);
}

TEST_CASE("the checksum of ranks chains over them in order") {
  CHECK(checksum_of(checksum_of(kChecksumStart, "foo"), "bar") == 0x85944171f73967e8ull);
  CHECK(checksum_of(checksum_of(kChecksumStart, "bar"), "foo") != 0x85944171f73967e8ull);
}

TEST_CASE("a dropped choice sets the high bit of its byte, and no choice is 255") {
  OwnedMaps m(2, 4, 2, 1);
  RoutingBuilder builder(m.maps);
  builder.take(0, 1);
  builder.take(0, 3);
  builder.take(1, 1);  // dropped
  // Bytes 01 03 81 ff, by hand: h = (h xor byte) * 1099511628211 modulo 2^64.
  CHECK(assignment_checksum(kChecksumStart, m.maps, AssignmentCode::kChoices) ==
        0xc5712c7754dc6f91ull);
  CHECK(dropped(m.maps, AssignmentCode::kChoices) == 1);
}

TEST_CASE("expert choice is coded a byte per expert, whatever the order of a token's columns") {
  for (const bool swapped : {false, true}) {
    OwnedMaps m(2, 3, 3, 1);
    RoutingBuilder builder(m.maps);
    builder.take(0, swapped ? 2 : 0);
    builder.take(0, swapped ? 0 : 2);
    builder.take(1, 2);  // not taken: the expert is full
    // Bytes 01 00 01 00 00 00.
    CHECK(assignment_checksum(kChecksumStart, m.maps, AssignmentCode::kTaken) ==
          0x9b4944cf91e16795ull);
    CHECK(dropped(m.maps, AssignmentCode::kTaken) == 1);
  }
}

TEMPLATE_TEST_CASE("weights follow the rule, and a choice without a place weighs nothing", "",
                   float, double) {
  OwnedMaps m(3, 4, 2, 1);
  RoutingBuilder builder(m.maps);
  builder.take(0, 2);
  builder.take(0, 1);
  builder.take(1, 2);  // dropped, and still in the sum
  builder.take(1, 3);
  builder.take(2, 0);  // no second choice
  const std::vector<TestType> scores = {TestType(0.125), TestType(0.25), TestType(0.5),
                                        TestType(0.125), TestType(0.0),  TestType(0.25),
                                        TestType(0.5),   TestType(0.25), TestType(0.25),
                                        TestType(0.25),  TestType(0.25), TestType(0.25)};
  std::vector<TestType> weight(6, 9);
  using W = std::vector<TestType>;
  gate_weights(weight.data(), scores.data(), m.maps, WeightRule::kProb);
  CHECK(weight == W{TestType(0.5), TestType(0.25), 0, TestType(0.25), TestType(0.25), 0});
  gate_weights(weight.data(), scores.data(), m.maps, WeightRule::kRenorm);
  const TestType third = TestType(0.25) / TestType(0.75);
  CHECK(weight == W{TestType(0.5) / TestType(0.75), third, 0, third, 1, 0});
  gate_weights(weight.data(), scores.data(), m.maps, WeightRule::kOne);
  CHECK(weight == W{1, 1, 0, 1, 1, 0});
}
