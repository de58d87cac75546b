// Fused attention and its gradient.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;
using kernels::AttentionShape;

namespace {

/// Heads of every size class, sequences that do not fill a tile and that need several.
const std::vector<AttentionShape> kShapes = {{1, 1, 1, 1},   {2, 3, 2, 5},   {1, 33, 2, 32},
                                             {1, 70, 2, 17}, {1, 64, 1, 64}, {2, 37, 1, 40},
                                             {1, 45, 1, 80}, {1, 20, 1, 128}};

template <class T>
std::vector<T> run(const kernels::KernelTable<T>& k, AttentionShape s, const std::vector<T>& qkv) {
  const int64_t n = s.batch * s.seq * s.heads * s.head_dim;
  const auto dctx = random_values<T>(n, 2);
  std::vector<T> ctx(n, T(77)), lse(s.batch * s.heads * s.seq, T(77)), dqkv(3 * n, T(77));
  auto work = work_for(k, s);
  k.attention(ctx.data(), lse.data(), in_qkv(qkv.data(), s), s, work.data(), nullptr);
  k.attention_dx(out_qkv(dqkv.data(), s), dctx.data(), ctx.data(), in_qkv(qkv.data(), s),
                 lse.data(), s, work.data(), nullptr);
  return joined(joined(ctx, lse), dqkv);
}

}  // namespace

TEST_CASE("fused attention and its gradient agree with the reference") {
  for (const AttentionShape& s : kShapes)
    for (const double range : {1.0, 6.0})
      agree_on_device(2e-4, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        INFO("seq " << s.seq << " head_dim " << s.head_dim);
        return run<T>(k, s, random_values<T>(3 * s.batch * s.seq * s.heads * s.head_dim, 1, range));
      });
}

TEST_CASE("attention does not look at later tokens, not even at a NaN") {
  const AttentionShape s = {1, 50, 1, 8};
  auto qkv = random_values<float>(3 * 50 * 8, 1);
  const auto clean = run(device_table(), s, qkv);
  for (int64_t c = 0; c < 24; ++c) qkv[40 * 24 + c] = NAN;
  const auto with_nan = run(device_table(), s, qkv);
  CHECK(std::equal(clean.begin(), clean.begin() + 40 * 8, with_nan.begin()));
  for (int64_t i = 40 * 8; i < 50 * 8; ++i) CHECK(std::isnan(with_nan[i]));
}

TEST_CASE("attention with heads that are too wide is refused with their size") {
  device_table().attention(nullptr, nullptr, {}, {1, 4, 1, 193}, nullptr, nullptr);
  CHECK(device_error() == "cuda: attention got heads of 193 columns; at most 192 are possible");
}
