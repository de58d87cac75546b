// The vectors in which the fast kernels are written: GCC vector types, as wide as the instruction
// set for which the file is compiled. Every sum has the order of the source (no
// -fassociative-math), so that the bits depend neither on alignment nor on what the optimizer does.
// Everything here has internal linkage: otherwise the linker could take an inline function that was
// compiled for AVX-512 for code that runs on other machines. "Lanes" in these files are SIMD lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define MOE_INLINE inline __attribute__((always_inline))
#define MOE_UNROLL _Pragma("GCC unroll 16")

namespace moe::kernels::MOE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * sizeof(float))));
using IntVec = int32_t __attribute__((vector_size(kLanes * sizeof(float))));

/// The SIMD lanes that a load or store accesses: all, or the first n (0 < n < kLanes).
struct All {};
struct First {
  int64_t n;
};

MOE_INLINE Vec splat(float x) {
  return x - Vec{};
}  // x - 0 is x, also for -0

MOE_INLINE IntVec iota() {
  IntVec v;
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v;
}

MOE_INLINE Vec load(const float* p, All = {}) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

MOE_INLINE void store(float* p, Vec v, All = {}) {
  __builtin_memcpy(p, &v, sizeof v);
}

/// Loads the first some.n lanes; the others are 0.
MOE_INLINE Vec load(const float* p, First some) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << some.n) - 1), p);
#elif defined(__AVX2__)
  return _mm256_maskload_ps(p, (__m256i)(iota() < static_cast<int32_t>(some.n)));
#else
  Vec v{};
  for (int64_t i = 0; i < some.n; ++i) v[i] = p[i];
  return v;
#endif
}

MOE_INLINE void store(float* p, Vec v, First some) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << some.n) - 1), v);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(p, (__m256i)(iota() < static_cast<int32_t>(some.n)), v);
#else
  for (int64_t i = 0; i < some.n; ++i) p[i] = v[i];
#endif
}

/// Returns `v` with `fill` in the lanes after the first some.n; all of `v` for All.
MOE_INLINE Vec keep(Vec v, All, float) {
  return v;
}
MOE_INLINE Vec keep(Vec v, First some, float fill) {
  return iota() < static_cast<int32_t>(some.n) ? v : splat(fill);
}

/// Returns the vector at p + i, or 0 where p is null.
template <class Lanes>
MOE_INLINE Vec load_or_zero(const float* p, int64_t i, Lanes lanes) {
  return p ? load(p + i, lanes) : Vec{};
}

/// Calls f(i, All) for each whole vector of n elements, then f(i, First) for the rest.
template <class F>
MOE_INLINE void each_vec(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, All{});
  if (i < n) f(i, First{n - i});
}

/// at_least returns the larger and at_most the smaller of a and b. Where a or b is NaN, the result
/// is a, since the instructions then return their second operand.
#if defined(__AVX512F__)
MOE_INLINE Vec at_least(Vec a, Vec b) {
  return _mm512_max_ps(b, a);
}
MOE_INLINE Vec at_most(Vec a, Vec b) {
  return _mm512_min_ps(b, a);
}
#elif defined(__AVX2__)
MOE_INLINE Vec at_least(Vec a, Vec b) {
  return _mm256_max_ps(b, a);
}
MOE_INLINE Vec at_most(Vec a, Vec b) {
  return _mm256_min_ps(b, a);
}
#else
MOE_INLINE Vec at_least(Vec a, Vec b) {
  return _mm_max_ps(b, a);
}
MOE_INLINE Vec at_most(Vec a, Vec b) {
  return _mm_min_ps(b, a);
}
#endif

MOE_INLINE Vec sqrt(Vec v) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(v);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(v);
#else
  return _mm_sqrt_ps(v);
#endif
}

/// Returns the sum over lanes, computed by adding halves of the vector until one number is left.
MOE_INLINE float sum_lanes(Vec v) {
  for (int step = kLanes / 2; step > 0; step /= 2) v += __builtin_shuffle(v, iota() ^ step);
  return v[0];
}

MOE_INLINE float max_lanes(Vec v) {
  for (int step = kLanes / 2; step > 0; step /= 2)
    v = at_least(v, __builtin_shuffle(v, iota() ^ step));
  return v[0];
}

/// Returns the sum over n elements of the vectors f(i, lanes), in which lanes that are not accessed
/// must be 0. The sum uses four running vectors, then a tree.
template <class F>
MOE_INLINE float sum_of(int64_t n, F f) {
  Vec s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 += f(i, All{});
    s1 += f(i + kLanes, All{});
    s2 += f(i + 2 * kLanes, All{});
    s3 += f(i + 3 * kLanes, All{});
  }
  for (; i + kLanes <= n; i += kLanes) s0 += f(i, All{});
  if (i < n) s1 += f(i, First{n - i});
  return sum_lanes((s0 + s1) + (s2 + s3));
}

/// Returns the maximum over n elements of f(i, lanes), in which lanes that are not accessed must be
/// -infinity. It may miss a NaN; the NaN appears again when the caller computes x - maximum.
template <class F>
MOE_INLINE float max_of(int64_t n, F f) {
  Vec m0 = splat(-__builtin_inff()), m1 = m0;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    m0 = at_least(m0, f(i, All{}));
    m1 = at_least(m1, f(i + kLanes, All{}));
  }
  for (; i + kLanes <= n; i += kLanes) m0 = at_least(m0, f(i, All{}));
  if (i < n) m1 = at_least(m1, f(i, First{n - i}));
  return max_lanes(at_least(m0, m1));
}

/// out[c] = acc[c] + sum over ascending r of f(r, c, lanes), c < cols; acc may be null or out.
template <class F>
MOE_INLINE void sum_rows(float* out, const float* acc, int64_t rows, int64_t cols, F f) {
  // kBlock vectors of neighbouring columns are summed in registers: enough independent sums to hide
  // the latency of an add.
  constexpr int kBlock = 8;
  int64_t c = 0;
  for (; c + kBlock * kLanes <= cols; c += kBlock * kLanes) {
    Vec sum[kBlock] = {};
    for (int64_t r = 0; r < rows; ++r)
      for (int b = 0; b < kBlock; ++b) sum[b] += f(r, c + b * kLanes, All{});
    for (int b = 0; b < kBlock; ++b)
      store(out + c + b * kLanes, load_or_zero(acc, c + b * kLanes, All{}) + sum[b]);
  }
  each_vec(cols - c, [&](int64_t i, auto lanes) {
    Vec sum{};
    for (int64_t r = 0; r < rows; ++r) sum += f(r, c + i, lanes);
    store(out + c + i, load_or_zero(acc, c + i, lanes) + sum, lanes);
  });
}

/// Returns in lane l the sum over the lanes of v[l]. Pairs of vectors are merged, so that all sums
/// together cost about as much as transposing half of the vectors. The order is the same for all l.
template <int kStep = 1>
MOE_INLINE Vec sums_of_lanes(Vec (&v)[kLanes]) {
  const IntVec low = (iota() & kStep) == 0 ? iota() : iota() + static_cast<int32_t>(kLanes);
  MOE_UNROLL for (int i = 0; i < kLanes; i += 2 * kStep) {
    v[i] = __builtin_shuffle(v[i], v[i + kStep], low) +
           __builtin_shuffle(v[i], v[i + kStep], low ^ kStep);
  }
  if constexpr (2 * kStep < kLanes) return sums_of_lanes<2 * kStep>(v);
  return v[0];
}

/// Transposes a kLanes x kLanes block in registers.
template <int kStep = 1>
MOE_INLINE void transpose(Vec (&v)[kLanes]) {
  const IntVec other = iota() + static_cast<int32_t>(kLanes);
  const IntVec low = (iota() & kStep) == 0 ? iota() : other - kStep;
  const IntVec high = (iota() & kStep) == 0 ? iota() + kStep : other;
  MOE_UNROLL for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Vec a = v[i], b = v[i + kStep];
    v[i] = __builtin_shuffle(a, b, low);
    v[i + kStep] = __builtin_shuffle(a, b, high);
  }
  if constexpr (2 * kStep < kLanes) transpose<2 * kStep>(v);
}

/// 1 / x for 1 <= x < 2^120 or NaN, within 1.5 ulp.
MOE_INLINE Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  const Vec r = _mm512_rcp14_ps(x);
  return r + r * (1.0f - x * r);
#else
  return 1.0f / x;
#endif
}

/// Returns x rounded to an integer, for |x| < 2^22.
MOE_INLINE Vec rounded(Vec x) {
  const Vec magic = splat(0x1.8p23f);  // after adding it no bits are left for a fraction
  return (x + magic) - magic;
}

/// The parts of e^x = p 2^n or 2^x = p 2^n, with an integer n and 0.7 < p < 1.5.
struct Power {
  Vec p, n;
};

/// Returns p 2^n, or 0 where x < lowest: no result is subnormal, since some machines are slow with
/// subnormal numbers. Without AVX-512, raised_to() must have raised x before, so that n >= -126.
MOE_INLINE Vec value_of(Power power, Vec x, float lowest) {
#if defined(__AVX512F__)
  const __mmask16 keep = _mm512_cmp_ps_mask(x, splat(lowest), _CMP_NLT_UQ);  // true for NaN
  return _mm512_maskz_scalef_ps(keep, power.p, power.n);
#else
  (void)x, (void)lowest;
  // The power is multiplied in two factors, so that n = 128 does not overflow too early.
  return (power.p + power.p) * (Vec)((__builtin_convertvector(power.n, IntVec) + 126) << 23);
#endif
}

/// Returns x with AVX-512; without it, the larger of x and `lowest`.
MOE_INLINE Vec raised_to(Vec x, float lowest) {
#if defined(__AVX512F__)
  (void)lowest;
  return x;
#else
  return at_least(x, splat(lowest));
#endif
}

/// Returns e^x for x <= 89.5 or NaN, within 1.5 ulp, and 0 where e^x is below about the smallest
/// normal number. With x = n ln2 + r, |r| <= ln2 / 2, e^r is approximated by the polynomial of
/// degree 6 that begins 1 + r and has the least relative error (3e-9).
MOE_INLINE Vec exp_bounded(Vec x) {
  constexpr float kLowest = -87.1f;
  x = raised_to(x, -87.4f);
  const Vec n = rounded(x * 0x1.715476p0f);
  const Vec r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  Vec p = splat(0x1.6a2434p-10f);
  p = p * r + 0x1.1239e2p-7f;
  p = p * r + 0x1.5558f2p-5f;
  p = p * r + 0x1.555492p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return value_of({p, n}, x, kLowest);
}

/// Returns 2^x for x <= 129 or NaN, like exp_bounded(); the polynomial's relative error is 2e-9.
MOE_INLINE Vec exp2_bounded(Vec x) {
  constexpr float kLowest = -125.5f;
  x = raised_to(x, -126.0f);
  const Vec n = rounded(x);
  const Vec r = x - n;
  Vec p = splat(0x1.41fbap-13f);
  p = p * r + 0x1.5f3e8p-10f;
  p = p * r + 0x1.3b2d4ep-7f;
  p = p * r + 0x1.c6aee8p-5f;
  p = p * r + 0x1.ebfbdcp-3f;
  p = p * r + 0x1.62e43p-1f;
  p = p * r + 1.0f;
  return value_of({p, n}, x, kLowest);
}

/// Returns e^x for any x, and 0 below about the smallest normal number.
MOE_INLINE Vec exp(Vec x) {
  return exp_bounded(at_most(x, splat(89.5f)));
}

/// Returns ln x for normal x > 0, within 2 ulp; NaN and infinity give NaN. From Cephes (logf).
MOE_INLINE Vec log(Vec x) {
  const IntVec bits = (IntVec)x;
  // Bits of sqrt(1/2): puts the mantissa into [sqrt(1/2), sqrt 2).
  const IntVec half_up = bits - 0x3f3504f3;
  const IntVec n = half_up >> 23;
  const Vec m = (Vec)((half_up & 0x007fffff) + 0x3f3504f3) - 1.0f;
  Vec p = splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const Vec nf = __builtin_convertvector(n, Vec);
  const Vec tail = m * (m * m) * p - nf * 2.12194440e-4f - 0.5f * (m * m);
  return (m + tail) + nf * 0.693359375f + (x - x);
}

}  // namespace
}  // namespace moe::kernels::MOE_ISA
