// Attention of q, k and v that are tensors of their own, by the plain kernels.
#include "tests/kernels/attend.h"

#include "tests/cuda/attention_bf16.h"

using namespace moe;
using namespace moe::test;

namespace {

float to_nearest_bf16(float x) {
  return kernels::to_float(kernels::to_bf16(x));
}

/// One of the results, without what lies between its rows.
std::vector<float> within(const std::vector<Bf16>& all, int64_t cols, int64_t pitch) {
  std::vector<float> part;
  for (size_t i = 0; i < all.size(); ++i)
    if (static_cast<int64_t>(i) % pitch < cols) part.push_back(kernels::to_float(all[i]));
  return part;
}
std::vector<double> within(const std::vector<double>& all, int64_t cols, int64_t pitch) {
  std::vector<double> part;
  for (size_t i = 0; i < all.size(); ++i)
    if (static_cast<int64_t>(i) % pitch < cols) part.push_back(all[i]);
  return part;
}

void agree_on_device(const Attend& a) {
  INFO(a.text());
  test::agree_on_device(2e-4, [&](const auto& k, auto zero) {
    return joined(attend(k, a, random_operands(a).as<decltype(zero)>()));
  });
}

void agree_mixed(const Attend& a) {
  INFO(a.text());
  const auto in = random_operands(a, 1, to_nearest_bf16);
  const auto want = attend(kernels::reference_table(), a, in.as<double>());
  begin_run(0);
  const auto got = attend(device_mixed(), a, in.as<Bf16>());
  REQUIRE(device_error() == "");
  const auto near = [&](const auto& mine, const auto& others, int64_t cols, int64_t pitch) {
    CHECK(relative_l2(within(mine, cols, pitch), within(others, cols, pitch)) < kMaxBf16);
  };
  const int64_t ctx = a.s.heads * a.s.value_dim, keys = a.s.kv_heads * a.s.head_dim;
  near(got.ctx, want.ctx, ctx, ctx);
  near(got.dv, want.dv, a.s.kv_heads * a.s.value_dim, a.s.v_pitch);
  if (a.s.seq > 1) {  // one key alone: q and k change nothing, and what is left is rounding
    near(got.dq, want.dq, a.s.heads * a.s.head_dim, a.s.q_pitch);
    near(got.dk, want.dk, keys, a.s.k_pitch);
  }
  CHECK(worst_error(got.lse, want.lse) < 1e-5);
  CHECK(worst_error(got.dsinks, want.dsinks) < kMaxBf16);
}

/// Latent attention: as many heads of k as of q, whose columns are more than those of v.
Attend latent() {
  Attend a = {{1, 37, 2, 192}};
  a.s.value_dim = 128;
  a.s = apart(a.s);
  return a;
}

}  // namespace

TEST_CASE("attention of every form agrees with the reference on a device") {
  for (uint64_t number = 0; number < 24; ++number) agree_on_device(random_attend(number, 75, 70));
  for (const int64_t columns : {1, 64, 80, 128}) agree_on_device({apart({1, 45, 1, columns})});
  agree_on_device(latent());
}

TEST_CASE("attention of every form in bfloat16 agrees with the reference on a device") {
  for (uint64_t number = 0; number < 24; ++number) agree_mixed(random_attend(number, 75, 70));
  agree_mixed(latent());
}

TEST_CASE("attention looks at no key before its window or after it on a device, not even a NaN") {
  Attend a = {{1, 90, 2, 8}};
  a.s.window = 21;
  a.s = apart(a.s);
  auto in = random_operands(a);
  const auto clean = attend(device_table(), a, in);
  for (int64_t i = 0; i < 40 * 16; ++i) in.k[static_cast<size_t>(i)] = NAN;
  std::fill(in.k.begin() + 80 * 16, in.k.end(), NAN);
  std::copy(in.k.begin(), in.k.begin() + 40 * 16, in.v.begin());
  std::copy(in.k.begin() + 80 * 16, in.k.end(), in.v.begin() + 80 * 16);
  const auto with_nan = attend(device_table(), a, in);
  const auto same = [](const auto& one, const auto& other) {
    return std::equal(one.begin() + 60 * 16, one.begin() + 80 * 16, other.begin() + 60 * 16);
  };
  CHECK(same(with_nan.ctx, clean.ctx));
  CHECK(same(with_nan.dq, clean.dq));
  for (const size_t row : {59, 80}) CHECK(std::isnan(with_nan.ctx[row * 16]));
}

TEST_CASE("a sink that is far above all scores leaves a context of 0 on a device") {
  const Attend with = {apart({1, 40, 2, 16}), true}, without = {with.s, false};
  auto in = random_operands(with);
  in.sinks = {300, -300};
  const auto got = attend(device_table(), with, in);
  in.sinks.clear();
  const auto want = attend(device_table(), without, in);
  for (size_t i = 0; i < got.ctx.size(); ++i)
    CHECK(got.ctx[i] == (i / 16 % 2 == 0 ? 0 : want.ctx[i]));
}

TEST_CASE("attention with heads that are too wide is refused with their size") {
  device_table().attention(nullptr, nullptr, {}, {1, 4, 1, 193}, nullptr, nullptr);
  CHECK(device_error() == "cuda: attention got heads of 193 columns; at most 192 are possible");
}
