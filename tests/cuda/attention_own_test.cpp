// This project's own kernels of fused attention, the plain ones, on operands of bfloat16.
#include <algorithm>

#include "tests/cuda/attention_bf16.h"

using namespace moe;
using namespace moe::test;

namespace {

AttentionShape own(AttentionShape s) {
  s.own = true;
  return s;
}

}  // namespace

TEST_CASE("attention of bfloat16 agrees with the reference for heads of every size") {
  for (const int64_t head_dim : {1, 16, 32, 64, 80, 96, 128, 192}) agree(own({1, 65, 1, head_dim}));
}

TEST_CASE("attention of bfloat16 agrees with the reference for sequences that fill no tile") {
  for (const int64_t seq : {1, 7, 64, 127, 200}) agree(own({1, seq, 1, 32}));
}

TEST_CASE("attention of bfloat16 of no rows does nothing") {
  for (const AttentionShape& s : {own({0, 5, 2, 16}), own({2, 0, 2, 16})}) {
    run(s, Inputs(s, 1));
    CHECK(device_error() == "");
  }
}

TEST_CASE("attention of bfloat16 keeps sequences and heads apart") {
  agree(own({2, 40, 3, 32}));
  agree(own({3, 7, 2, 64}));
}

TEST_CASE("attention of bfloat16 takes heads whose rows are not aligned") {
  for (const int64_t head_dim : {5, 33}) agree(own({1, 37, 2, head_dim}));
}

TEST_CASE("attention of bfloat16 bears scores that are large") {
  const AttentionShape s = own({1, 150, 1, 64});
  const Inputs in(s, 30);
  const auto qkv = widened<double>(in.qkv);
  const Mixed got = run(s, in);
  auto want = run(kernels::reference_table(), s, qkv, widened<double>(in.dctx));
  CHECK(*std::max_element(want.lse.begin(), want.lse.end()) > 1000);
  CHECK(relative_l2(widened<float>(got.ctx), want.ctx) < kMaxBf16);
  CHECK(relative_l2(got.lse, want.lse) < kMaxLse);
  // From the same ctx: where one key takes all, the gradient is a difference of near numbers.
  kernels::reference_table().attention_dx(
      out_qkv(want.dqkv.data(), s), widened<double>(in.dctx).data(),
      widened<double>(got.ctx).data(), in_qkv(qkv.data(), s), want.lse.data(), s, nullptr, nullptr);
  CHECK(relative_l2(widened<float>(got.dqkv), want.dqkv) < kMaxBf16);
}

TEST_CASE("a NaN in a query of bfloat16 makes its row NaN, and no other") {
  const AttentionShape s = own({1, 70, 1, 32});
  Inputs in(s, 1);
  const Mixed clean = run(s, in);
  in.qkv[static_cast<size_t>(50 * 3 * s.head_dim)] = {0x7fc0};
  const Mixed with_nan = run(s, in);
  for (int64_t row = 0; row < s.seq; ++row) {
    const auto at = static_cast<size_t>(row);
    CHECK(std::isnan(with_nan.lse[at]) == (row == 50));
    CHECK((row == 50 || with_nan.lse[at] == clean.lse[at]));
    for (size_t i = at * 32; i < at * 32 + 32; ++i) {
      const bool is_nan = std::isnan(kernels::to_float(with_nan.ctx[i]));
      CHECK(is_nan == (row == 50));
      CHECK((is_nan || with_nan.ctx[i].bits == clean.ctx[i].bits));
    }
  }
  // It was a query of all keys before it, and its gradient is its own.
  for (const int64_t which : {1, 2}) {
    const auto part = widened<float>(block(with_nan.dqkv, s, which));
    CHECK(std::all_of(part.begin(), part.begin() + 51 * 32, [](float v) { return std::isnan(v); }));
  }
  const auto dq = widened<float>(block(with_nan.dqkv, s, 0));
  CHECK(std::all_of(dq.begin() + 50 * 32, dq.begin() + 51 * 32, [](float v) { return v != v; }));
  CHECK(std::none_of(dq.begin(), dq.begin() + 50 * 32, [](float v) { return v != v; }));
}

TEST_CASE("a NaN in a key of bfloat16 reaches the rows that see it, and no other") {
  const AttentionShape s = own({1, 140, 1, 32});
  Inputs in(s, 1);
  const Mixed clean = run(s, in);
  for (int64_t c = 32; c < 96; ++c) in.qkv[static_cast<size_t>(130 * 96 + c)] = {0x7fc0};
  const Mixed with_nan = run(s, in);
  CHECK(std::memcmp(with_nan.ctx.data(), clean.ctx.data(), 130 * 32 * sizeof(Bf16)) == 0);
  CHECK(std::equal(clean.lse.begin(), clean.lse.begin() + 130, with_nan.lse.begin()));
  for (size_t i = 130 * 32; i < 140 * 32; ++i)
    CHECK(std::isnan(kernels::to_float(with_nan.ctx[i])));
  for (size_t row = 130; row < 140; ++row) CHECK(std::isnan(with_nan.lse[row]));
}

TEST_CASE("an infinity in bfloat16 does not vanish in attention") {
  const AttentionShape s = own({1, 100, 1, 32});
  Inputs in(s, 1);
  in.qkv[64 + 3] = {0x7f80};  // of the first value, which all rows see
  const auto of_value = widened<float>(run(s, in).ctx);
  for (size_t i = 0; i < of_value.size(); ++i) CHECK(std::isfinite(of_value[i]) == (i % 32 != 3));
  in = Inputs(s, 1);
  in.qkv[70 * 96] = {0xff80};  // of a query: some of its scores are infinite
  const auto of_query = widened<float>(run(s, in).ctx);
  for (size_t i = 0; i < of_query.size(); ++i) CHECK(std::isfinite(of_query[i]) == (i / 32 != 70));
}

TEST_CASE("a first tile of keys that a row of bfloat16 does not want at all leaves it whole") {
  const AttentionShape s = own({1, 80, 1, 32});
  Inputs in(s, 1);
  for (size_t key = 0; key < 64; ++key) in.qkv[key * 96 + 32] = {0xff80};
  for (size_t row = 0; row < 80; ++row) in.qkv[row * 96] = kernels::to_bf16(1);
  const auto want =
      run(kernels::reference_table(), s, widened<double>(in.qkv), widened<double>(in.dctx));
  const Mixed got = run(s, in);
  const std::vector<float> ctx = widened<float>(got.ctx);
  CHECK(relative_l2({ctx.begin() + 64 * 32, ctx.end()},
                    {want.ctx.begin() + 64 * 32, want.ctx.end()}) < kMaxBf16);
  CHECK(std::all_of(ctx.begin(), ctx.begin() + 64 * 32, [](float v) { return std::isnan(v); }));
}

TEST_CASE("a key of bfloat16 that no query wants has a value without gradient") {
  const AttentionShape s = own({1, 80, 1, 32});
  Inputs in(s, 1);
  in.qkv[5 * 96 + 32] = {0xff80};
  for (size_t row = 0; row < 80; ++row) in.qkv[row * 96] = kernels::to_bf16(1);
  const auto want =
      run(kernels::reference_table(), s, widened<double>(in.qkv), widened<double>(in.dctx));
  const std::vector<float> dv = widened<float>(block(run(s, in).dqkv, s, 2));
  CHECK(relative_l2(dv, block(want.dqkv, s, 2)) < kMaxBf16);
  CHECK(std::all_of(dv.begin() + 5 * 32, dv.begin() + 6 * 32, [](float v) { return v == 0; }));
}

TEST_CASE("attention of bfloat16 with heads that are too wide is refused with their size") {
  device_mixed().attention(nullptr, nullptr, {}, {1, 4, 1, 193}, nullptr, nullptr);
  CHECK(device_error() == "cuda: attention got heads of 193 columns; at most 192 are possible");
  device_mixed().attention_dx({}, nullptr, nullptr, {}, nullptr, {1, 4, 1, 194}, nullptr, nullptr);
  CHECK(device_error() == "cuda: attention got heads of 194 columns; at most 192 are possible");
}
