// Fused attention of bfloat16 and its gradient, against the double reference on the same rounded
// numbers.
#pragma once

#include <string>

#include "tests/cuda/on_device.h"

namespace moe::test {

using kernels::AttentionShape;
using kernels::Bf16;

constexpr double kMaxBf16 = 1e-2, kMaxLse = 2e-3;

inline int64_t values(AttentionShape s) {
  return s.batch * s.seq * s.heads * s.head_dim;
}

inline std::vector<Bf16> rounded(const std::vector<float>& v) {
  std::vector<Bf16> all;
  for (const float x : v) all.push_back(kernels::to_bf16(x));
  return all;
}
inline std::vector<Bf16> random_bf16(int64_t n, uint64_t stream, double range) {
  return rounded(random_values<float>(n, stream, range));
}
template <class T>
std::vector<T> widened(const std::vector<Bf16>& v) {
  std::vector<T> all;
  for (const Bf16 x : v) all.push_back(static_cast<T>(kernels::to_float(x)));
  return all;
}

struct Inputs {
  Inputs(AttentionShape s, double range)
      : qkv(random_bf16(3 * values(s), 1, range)), dctx(random_bf16(values(s), 2, 1)) {}
  std::vector<Bf16> qkv, dctx;
};

/// T, W: of ctx and dqkv, of lse.
template <class T, class W>
struct Outputs {
  std::vector<T> ctx, dqkv;
  std::vector<W> lse;
};
using Mixed = Outputs<Bf16, float>;

template <class T>
auto run(const kernels::KernelTable<T>& k, AttentionShape s, const std::vector<T>& qkv,
         const std::vector<T>& dctx) {
  Outputs<T, kernels::Wide<T>> out;
  out.ctx.resize(static_cast<size_t>(values(s)));
  out.dqkv.resize(static_cast<size_t>(3 * values(s)));
  out.lse.resize(static_cast<size_t>(s.batch * s.heads * s.seq));
  auto work = work_for(k, s);
  k.attention(out.ctx.data(), out.lse.data(), in_qkv(qkv.data(), s), s, work.data(), nullptr);
  k.attention_dx(out_qkv(out.dqkv.data(), s), dctx.data(), out.ctx.data(), in_qkv(qkv.data(), s),
                 out.lse.data(), s, work.data(), nullptr);
  return out;
}

inline Mixed run(AttentionShape s, const Inputs& in) {
  return run(device_mixed(), s, in.qkv, in.dctx);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
inline bool same_bits(const Mixed& a, const Mixed& b) {
  return same_bits(a.ctx, b.ctx) && same_bits(a.dqkv, b.dqkv) && same_bits(a.lse, b.lse);
}

/// The columns of q (0), k (1) or v (2) of a matrix like qkv.
template <class T>
std::vector<T> block(const std::vector<T>& all, AttentionShape s, int64_t which) {
  const int64_t hidden = s.heads * s.head_dim;
  std::vector<T> part;
  for (int64_t row = 0; row < s.batch * s.seq; ++row) {
    const auto from = all.begin() + (row * 3 + which) * hidden;
    part.insert(part.end(), from, from + hidden);
  }
  return part;
}

/// Results are near the reference's, and have the same bits on every run. The gradient is held
/// against the reference's from its own, unrounded ctx and lse.
inline void agree(AttentionShape s) {
  INFO("batch " << s.batch << " seq " << s.seq << " heads " << s.heads << " head_dim "
                << s.head_dim);
  const Inputs in(s, 1);
  const auto want =
      run(kernels::reference_table(), s, widened<double>(in.qkv), widened<double>(in.dctx));
  begin_run(0);
  const Mixed got = run(s, in);
  REQUIRE(device_error() == "");
  CHECK(relative_l2(widened<float>(got.ctx), want.ctx) < kMaxBf16);
  CHECK(relative_l2(got.lse, want.lse) < kMaxLse);
  for (const int64_t which : {0, 1, 2}) {
    INFO("gradient of " << std::string("qkv").substr(static_cast<size_t>(which), 1));
    const std::vector<double> part = block(want.dqkv, s, which);
    // One key alone: q and k change nothing, and what is left is rounding.
    if (s.seq == 1 && which < 2)
      CHECK(worst_error(widened<float>(block(got.dqkv, s, which)), part) < kMaxBf16);
    else
      CHECK(relative_l2(widened<float>(block(got.dqkv, s, which)), part) < kMaxBf16);
  }
  for (uint64_t run_number = 1; run_number < kRuns; ++run_number) {
    begin_run(run_number);
    CHECK(same_bits(run(s, in), got));
  }
}

}  // namespace moe::test
