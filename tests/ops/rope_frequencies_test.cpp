// Frequencies of rotary embeddings, scaled as configurations say, against the formulas of their
// papers at points where these are simple.
#include <catch2/catch.hpp>

#include <cmath>

#include "engine/base/errors.h"
#include "engine/ops/rope_frequencies.h"
#include "tests/base/message_of.h"

namespace moe::test {
namespace {

using ops::RopeScaling;
using Kind = RopeScaling::Kind;

std::vector<float> frequencies(int64_t rotary, double theta, const RopeScaling& scaling = {}) {
  Op op;
  op.name = "angles";
  op.attrs = ops::rope_angles_attrs(rotary, theta, scaling);
  return ops::parse_frequencies(op);
}

double scale(const RopeScaling& scaling) {
  Op op;
  op.attrs = ops::rope_angles_attrs(8, 1e4, scaling);
  return attr_double(op, "scale", 1);
}

}  // namespace

TEST_CASE("frequencies fall from 1 by equal ratios, and linear scaling divides them all") {
  const std::vector<float> plain = frequencies(8, 1e4);
  const std::vector<float> slow = frequencies(8, 1e4, {.kind = Kind::kLinear, .factor = 4});
  REQUIRE(plain.size() == 4);
  for (size_t j = 0; j < 4; ++j) {
    CHECK(plain[j] == Approx(std::pow(10.0, -static_cast<double>(j))).epsilon(1e-7));
    CHECK(slow[j] == Approx(plain[j] / 4).epsilon(1e-7));
  }
}

TEST_CASE("YaRN leaves the fast columns, divides the slow ones, and mixes those between") {
  // gpt-oss: 64 columns, theta 150000, 32 times 4096. A frequency that turns 32 times within 4096
  // positions is at column 8.09, one that turns once at 17.40; not truncated.
  const RopeScaling yarn = {
      .kind = Kind::kYarn, .factor = 32, .original_seq = 4096, .truncate = false};
  const std::vector<float> plain = frequencies(64, 150000), scaled = frequencies(64, 150000, yarn);
  for (size_t j = 0; j < 32; ++j) {
    INFO(j);
    if (j <= 8) CHECK(scaled[j] == plain[j]);
    if (j >= 18) CHECK(scaled[j] == Approx(plain[j] / 32).epsilon(1e-6));
    if (j > 8 && j < 18) CHECK((scaled[j] < plain[j] && scaled[j] > plain[j] / 32));
  }
  const double column = [](double turns) {
    return 64 * std::log(4096 / (turns * 2 * M_PI)) / (2 * std::log(150000));
  }(32);
  const double end = column + 32 * std::log(32) / std::log(150000);
  const double kept = 1 - (12 - column) / (end - column);
  CHECK(scaled[12] == Approx(plain[12] * (kept + (1 - kept) / 32)).epsilon(1e-5));
  RopeScaling whole = yarn;
  whole.truncate = true;  // the ramp from column 8 to 18
  CHECK(frequencies(64, 150000, whole)[13] == Approx(plain[13] * (0.5 + 0.5 / 32)).epsilon(1e-5));
}

TEST_CASE("YaRN's factor of cosines and sines is given, of both mscales, or of the factor") {
  RopeScaling yarn = {.kind = Kind::kYarn, .factor = 40, .original_seq = 4096};
  CHECK(scale(yarn) == Approx(0.1 * std::log(40) + 1));
  yarn.mscale = yarn.mscale_all_dim = 0.7;
  CHECK(scale(yarn) == Approx(1));
  yarn.mscale_all_dim = 1.4;
  CHECK(scale(yarn) == Approx((0.07 * std::log(40) + 1) / (0.14 * std::log(40) + 1)));
  yarn.attention_factor = 1.5;
  CHECK(scale(yarn) == 1.5);
  CHECK(scale({}) == 1);
  CHECK(scale({.kind = Kind::kLinear, .factor = 2}) == 1);
}

TEST_CASE("the scaling of Llama 3 leaves short waves, divides long ones, and mixes those between") {
  const RopeScaling llama = {.kind = Kind::kLlama3, .factor = 8, .original_seq = 8192};
  const std::vector<float> plain = frequencies(128, 5e5), scaled = frequencies(128, 5e5, llama);
  int64_t between = 0;
  for (size_t j = 0; j < plain.size(); ++j) {
    INFO(j);
    const double wave = 2 * M_PI / plain[j];
    if (wave < 8192.0 / 4) {
      CHECK(scaled[j] == plain[j]);
    } else if (wave > 8192) {
      CHECK(scaled[j] == Approx(plain[j] / 8).epsilon(1e-6));
    } else {
      const double kept = (8192 / wave - 1) / 3;
      CHECK(scaled[j] == Approx(plain[j] * (kept + (1 - kept) / 8)).epsilon(1e-5));
      ++between;
    }
  }
  CHECK(between > 3);
}

TEST_CASE("wrong settings of a rotary embedding are refused by the name of their field") {
  const auto refused = [](int64_t rotary, double theta, const RopeScaling& scaling = {}) {
    return message_of<UserError>([&] { ops::rope_angles_attrs(rotary, theta, scaling); });
  };
  using Catch::Contains;
  CHECK_THAT(refused(7, 1e4), Contains("rotary is 7, allowed: an even number from 2 to 512"));
  CHECK_THAT(refused(514, 1e4), Contains("rotary is 514"));
  CHECK_THAT(refused(8, 0), Contains("theta is 0, allowed: above 1"));
  CHECK_THAT(refused(8, 1e4, {.kind = Kind::kLinear, .factor = 0}), Contains("factor is 0"));
  CHECK_THAT(refused(8, 1e4, {.kind = Kind::kYarn, .factor = 2}),
             Contains("original_max_position_embeddings is 0, allowed: above 0"));
  CHECK_THAT(refused(8, 1e4,
                     {.kind = Kind::kLlama3,
                      .factor = 2,
                      .original_seq = 9,
                      .low_freq_factor = 4,
                      .high_freq_factor = 4}),
             Contains("high_freq_factor is 4, allowed: above low_freq_factor"));
}

}  // namespace moe::test
