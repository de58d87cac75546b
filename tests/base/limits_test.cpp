#include "engine/base/limits.h"

#include <catch2/catch.hpp>
#include <limits>

#include "engine/base/errors.h"
#include "tests/base/message_of.h"

namespace moe {
namespace {

constexpr auto kName = [] { return "op 'x'"; };

std::string refusal(double ns) {
  return test::message_of<UserError>([&] { checked_ns(ns, kName); });
}

TEST_CASE("times up to the ceiling are rounded to the nearest nanosecond") {
  CHECK(checked_ns(0.0, kName) == 0);
  CHECK(checked_ns(1.5, kName) == 2);
  CHECK(checked_ns(static_cast<double>(kLongestNs), kName) == kLongestNs);
  CHECK(checked_ns(kLongestNs, kName) == kLongestNs);
}

TEST_CASE("what is no time, or too long a one, is refused by its name") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double ns : {std::nan(""), inf, -inf, -1.0, 1e308, 0x1p53 + 2, 0x1p63}) {
    CHECK_THAT(refusal(ns), Catch::StartsWith("op 'x' takes ") && Catch::Contains("104 days"));
  }
  CHECK_THAT(refusal(3.2e28), Catch::Contains("takes 3.2e+19 s"));
  CHECK_THROWS_AS(checked_ns(kLongestNs + 1, kName), UserError);
  CHECK_THROWS_AS(checked_ns(Nanoseconds{-1}, kName), UserError);
  CHECK_THROWS_AS(checked_ns(std::numeric_limits<Nanoseconds>::max(), kName), UserError);
}

TEST_CASE("a sum of times is exact beyond int64, and so is its mean") {
  TimeSum sum;
  for (int i = 0; i < 5000; ++i) sum += kLongestNs;
  CHECK(sum.mean(5000, kName) == kLongestNs);
  CHECK(sum.ms() == 5000 * (0x1p53 / 1e6));
  CHECK_THROWS_AS(sum.ns(kName), UserError);
  CHECK_THROWS_AS(sum.mean(2, kName), UserError);
  for (int i = 0; i < 4999; ++i) sum += -kLongestNs;
  CHECK(sum.ns(kName) == kLongestNs);
}

TEST_CASE("bytes beyond the ceiling are refused by name") {
  CHECK_NOTHROW(check_bytes(0x1p53, kName));
  CHECK_THROWS_WITH(check_bytes(0x1p54, kName), Catch::StartsWith("op 'x' has 1.801e+16 bytes"));
  CHECK_THROWS_AS(check_bytes(std::nan(""), kName), UserError);
}

}  // namespace
}  // namespace moe
