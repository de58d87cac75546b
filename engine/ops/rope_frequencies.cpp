#include "engine/ops/rope_frequencies.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "engine/base/errors.h"
#include "kernels/kernels.h"

namespace moe::ops {
namespace {

using Kind = RopeScaling::Kind;
constexpr int64_t kMost = kernels::RopeFrequencies::kMost;

void expect_scaling(bool kept, const char* field, double value, const char* allowed) {
  if (kept) return;
  throw user_error("rotary embedding: {} is {}, allowed: {}", field, value, allowed);
}

void check_rope_frequencies(int64_t rotary, double theta, const RopeScaling& s) {
  expect_scaling(rotary >= 2 && rotary % 2 == 0 && rotary <= 2 * kMost, "rotary",
                 static_cast<double>(rotary), "an even number from 2 to 512");
  expect_scaling(theta > 1, "theta", theta, "above 1");
  if (s.kind == Kind::kNone) return;
  expect_scaling(s.factor >= 1, "factor", s.factor, "at least 1");
  if (s.kind == Kind::kLinear) return;
  expect_scaling(s.original_seq > 0, "original_max_position_embeddings",
                 static_cast<double>(s.original_seq), "above 0");
  if (s.kind == Kind::kYarn) {
    expect_scaling(s.beta_slow > 0, "beta_slow", s.beta_slow, "above 0");
    expect_scaling(s.beta_fast >= s.beta_slow, "beta_fast", s.beta_fast, "at least beta_slow");
    expect_scaling(s.attention_factor >= 0, "attention_factor", s.attention_factor, "above 0");
  } else {
    expect_scaling(s.low_freq_factor > 0, "low_freq_factor", s.low_freq_factor, "above 0");
    expect_scaling(s.high_freq_factor > s.low_freq_factor, "high_freq_factor", s.high_freq_factor,
                   "above low_freq_factor");
  }
}

/// Returns how much of frequency j YaRN leaves as it is, 0..1: 1 before the ramp, 0 after it.
double yarn_share(int64_t j, int64_t rotary, double theta, const RopeScaling& s) {
  // The column, with a fraction, whose frequency turns `turns` times within the original length.
  const auto column = [&](double turns) {
    const double wave = static_cast<double>(s.original_seq) / (turns * 2 * std::numbers::pi);
    return static_cast<double>(rotary) * std::log(wave) / (2 * std::log(theta));
  };
  double low = column(s.beta_fast), high = column(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary - 1));
  if (low == high) high += 0.001;  // as transformers does
  return 1 - std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
}

double llama3_share(double frequency, const RopeScaling& s) {
  const double waves = static_cast<double>(s.original_seq) * frequency / (2 * std::numbers::pi);
  return std::clamp((waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0.0,
                    1.0);
}

double yarn_scale(const RopeScaling& s) {
  if (s.attention_factor > 0) return s.attention_factor;
  const auto of = [&](double mscale) { return 0.1 * mscale * std::log(s.factor) + 1; };
  if (s.mscale != 0 && s.mscale_all_dim != 0) return of(s.mscale) / of(s.mscale_all_dim);
  return of(1);
}

}  // namespace

Attrs rope_angles_attrs(int64_t rotary, double theta, const RopeScaling& s) {
  check_rope_frequencies(rotary, theta, s);
  std::vector<float> frequencies;
  for (int64_t j = 0; j < rotary / 2; ++j) {
    const double frequency =
        std::pow(theta, -2 * static_cast<double>(j) / static_cast<double>(rotary));
    double share = s.kind == Kind::kNone ? 1 : 0;
    if (s.kind == Kind::kYarn) share = yarn_share(j, rotary, theta, s);
    if (s.kind == Kind::kLlama3) share = llama3_share(frequency, s);
    frequencies.push_back(
        static_cast<float>(frequency * share + frequency / s.factor * (1 - share)));
  }
  Attrs attrs = {{"frequencies", fmt::format("{}", fmt::join(frequencies, ","))}};
  if (s.kind == Kind::kYarn) attrs["scale"] = yarn_scale(s);
  return attrs;
}

std::vector<float> parse_frequencies(const Op& op) {
  const std::string text = attr_string(op, "frequencies");
  std::vector<float> all;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    float value = -1;
    const auto [next, error] = std::from_chars(at, end, value);
    const bool good = error == std::errc() && std::isfinite(value) && value >= 0;
    if (good) all.push_back(value);
    if (good && next == end) break;
    if (!good || *next != ',') {
      throw user_error(
          "op '{}': attribute 'frequencies' is '{}', allowed: numbers of at least 0 such as "
          "\"1,0.1\"",
          op.name, text);
    }
    at = next + 1;
  }
  if (static_cast<int64_t>(all.size()) > kMost) {
    throw user_error("op '{}': attribute 'frequencies' has {} numbers, allowed: at most {}",
                     op.name, all.size(), kMost);
  }
  return all;
}

}  // namespace moe::ops
