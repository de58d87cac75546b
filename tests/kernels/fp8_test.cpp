#include "kernels/fp8.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "engine/base/rng.h"

namespace moe::kernels {
namespace {

TEST_CASE("every number of e4m3 is kept, and what lies between goes to the nearer") {
  CHECK(from_e4m3(0x7e) == 448);
  CHECK(from_e4m3(0x01) == std::ldexp(1.0f, -9));
  for (int bits = 0; bits < 256; ++bits) {
    const float v = from_e4m3(static_cast<uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      CHECK(std::isnan(v));
      CHECK(std::isnan(from_e4m3(to_e4m3(v))));
      continue;
    }
    CHECK(static_cast<int>(to_e4m3(v)) == bits);
    if ((bits & 0x7f) == 0x7e) continue;
    const float next = from_e4m3(static_cast<uint8_t>(bits + 1)), half = (v + next) / 2;
    CHECK(static_cast<int>(to_e4m3(half)) == bits + (bits & 1));  // a tie goes to the even one
    CHECK(static_cast<int>(to_e4m3(std::nextafter(half, v))) == bits);
    CHECK(static_cast<int>(to_e4m3(std::nextafter(half, next))) == bits + 1);
  }
  CHECK(from_e4m3(to_e4m3(1e9f)) == 448);
  CHECK(from_e4m3(to_e4m3(-std::numeric_limits<float>::infinity())) == -448);
}

TEST_CASE("a block's largest number is 448 scales, and no number is off by more than a sixteenth") {
  Rng rng(3);
  std::vector<float> x(2 * kFp8Block);
  for (float& v : x) v = static_cast<float>(rng.uniform() - 0.5) * 1e3f;
  std::fill(x.begin() + kFp8Block, x.end(), 0.0f);
  std::vector<uint8_t> codes(x.size());
  float scales[2];
  to_fp8_blocks(x.data(), static_cast<int64_t>(x.size()), codes.data(), scales);
  for (size_t i = 0; i < x.size(); ++i) {
    const float back = from_e4m3(codes[i]) * scales[i / kFp8Block];
    CHECK(std::abs(back - x[i]) <= std::max(std::abs(x[i]) / 16, scales[i / kFp8Block] / 1024));
  }
  CHECK(scales[0] * kFp8Largest ==
        Approx(std::abs(*std::max_element(
            x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }))));
}

}  // namespace
}  // namespace moe::kernels
