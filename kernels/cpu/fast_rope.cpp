// Rotary embedding. Pairs in halves of a head are turned vector by vector; neighbouring columns are
// separated and joined again by shuffles.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

/// The cosines and sines of one position; `turn` is -1 to turn back.
struct Angles {
  const float *cosines, *sines;
  float turn;
};

void turn_halves(float* y, const float* x, Angles angles, int64_t pairs) {
  each_vec(pairs, [&](int64_t i, auto lanes) {
    const Vec a = load(x + i, lanes), b = load(x + pairs + i, lanes);
    const Vec c = load(angles.cosines + i, lanes), s = load(angles.sines + i, lanes) * angles.turn;
    store(y + i, a * c - b * s, lanes);
    store(y + pairs + i, b * c + a * s, lanes);
  });
}

void turn_neighbours(float* y, const float* x, Angles angles, int64_t pairs) {
  const IntVec even = iota() + iota(),
               low = (iota() >> 1) + (iota() & 1) * static_cast<int>(kLanes);
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const Vec first = load(x + 2 * i), second = load(x + 2 * i + kLanes);
    const Vec a = __builtin_shuffle(first, second, even);
    const Vec b = __builtin_shuffle(first, second, even + 1);
    const Vec c = load(angles.cosines + i), s = load(angles.sines + i) * angles.turn;
    const Vec p = a * c - b * s, q = b * c + a * s;
    store(y + 2 * i, __builtin_shuffle(p, q, low));
    store(y + 2 * i + kLanes, __builtin_shuffle(p, q, low + static_cast<int>(kLanes / 2)));
  }
  for (; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    const float c = angles.cosines[i], s = angles.sines[i] * angles.turn;
    y[2 * i] = a * c - b * s;
    y[2 * i + 1] = b * c + a * s;
  }
}

void copy_columns(float* y, const float* x, int64_t n) {
  if (y != x && n > 0) __builtin_memcpy(y, x, sizeof(float) * static_cast<size_t>(n));
}

void rope(float* y, const float* x, const float* angles, const RopeShape& shape, Stream) {
  const int64_t end = shape.first + 2 * shape.pairs;
  const float turn = shape.inverse ? -1.0f : 1.0f;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const float* cosines = angles + t % shape.seq * 2 * shape.pairs;
    const Angles at = {cosines, cosines + shape.pairs, turn};
    for (int64_t h = 0; h < shape.heads; ++h, x += shape.head_dim, y += shape.head_dim) {
      copy_columns(y, x, shape.first);
      (shape.interleaved ? turn_neighbours : turn_halves)(y + shape.first, x + shape.first, at,
                                                          shape.pairs);
      copy_columns(y + end, x + end, shape.head_dim - end);
    }
  }
}

void rope_angles(float* angles, const RopeFrequencies& f, int64_t seq, Stream) {
  for (int64_t position = 0; position < seq; ++position, angles += 2 * f.pairs)
    for (int64_t j = 0; j < f.pairs; ++j) {
      const float angle = static_cast<float>(position) * f.at[j];
      angles[j] = __builtin_cosf(angle) * f.scale;
      angles[f.pairs + j] = __builtin_sinf(angle) * f.scale;
    }
}

}  // namespace

void set_rope(KernelTable<float>& table) noexcept {
  table.rope = rope;
  table.rope_angles = rope_angles;
}

}  // namespace moe::kernels::MOE_ISA
