// Kernels that read their data once: bias, activations, sums, copies, the optimizers.
#include "kernels/cpu/adamw.h"
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {

void fill_bias(float* y, const float* bias, const float* residual, int64_t rows, int64_t cols,
               Stream) noexcept {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = residual ? residual + r * cols : nullptr;
    float* to = y + r * cols;
    each_vec(cols, [&](int64_t i, auto lanes) {
      store(to + i, load_or_zero(bias, i, lanes) + load_or_zero(from, i, lanes), lanes);
    });
  }
}

namespace {

void bias_grad(float* db, const float* dy, const float* acc, int64_t rows, int64_t cols, Stream) {
  sum_rows(db, acc, rows, cols,
           [&](int64_t r, int64_t c, auto lanes) { return load(dy + r * cols + c, lanes); });
}

// With u = sqrt(2/pi) (z + 0.044715 z^3), (1 + tanh u) / 2 is the sigmoid of 2u: 1 / (1 + e) with e
// = exp(-2u) = 2^(-2u / ln 2). The upper bound of the exponent keeps e finite; beyond it the result
// is z 2^-115 instead of a value that is even nearer to 0.
constexpr float kTwoSqrt2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
constexpr float kLog2E = 1.4426950408889634f;

MOE_INLINE Vec exp_of_minus_2u(Vec z, Vec z_squared) {
  constexpr float kLinear = -kTwoSqrt2OverPi * kLog2E;
  const Vec exponent = z * (kLinear + kLinear * kCubic * z_squared);
  return exp2_bounded(at_most(exponent, splat(115.0f)));
}

MOE_INLINE Vec gelu_of(Vec z) {
  return z * reciprocal(1.0f + exp_of_minus_2u(z, z * z));
}

MOE_INLINE Vec gelu_slope(Vec z) {
  const Vec squared = z * z;
  const Vec e = exp_of_minus_2u(z, squared);
  const Vec sigmoid = reciprocal(1.0f + e);
  const Vec slope = kTwoSqrt2OverPi + 3 * kTwoSqrt2OverPi * kCubic * squared;  // derivative of 2u
  return sigmoid + z * slope * (sigmoid * (e * sigmoid));
}

/// The limits and factors of a gated activation, and what its kernels compute of one vector.
struct Gated {
  explicit Gated(const GatedForm& f)
      : limit(static_cast<float>(f.limit)),
        alpha(static_cast<float>(f.alpha)),
        offset(static_cast<float>(f.offset)) {}
  MOE_INLINE Vec gate(Vec v) const { return at_most(v, splat(limit)); }
  MOE_INLINE Vec other(Vec v) const {
    return at_least(at_most(v, splat(limit)), splat(-limit)) + offset;
  }
  /// e^(-alpha g), where the sigmoid is 1 / (1 + e). The bound keeps e finite, as in gelu.
  MOE_INLINE Vec exp_of_minus(Vec g) const {
    return exp_bounded(at_most(-alpha * g, splat(79.5f)));
  }

  float limit, alpha, offset;
};

void silu_mul(float* y, const float* x, const float* weight, GatedForm form, int64_t rows,
              int64_t cols, Stream) {
  const Gated f(form);
  for (int64_t r = 0; r < rows; ++r, x += 2 * cols, y += cols) {
    const float w = weight ? weight[r] : 1.0f;
    each_vec(cols, [&](int64_t i, auto lanes) {
      const Vec g = f.gate(load(x + i, lanes)), u = f.other(load(x + cols + i, lanes));
      store(y + i, w * (g * reciprocal(1.0f + f.exp_of_minus(g)) * u), lanes);
    });
  }
}

void silu_mul_dx(float* dx, float* dweight, const float* dy, const float* x, const float* weight,
                 GatedForm form, int64_t rows, int64_t cols, Stream) {
  const Gated f(form);
  for (int64_t r = 0; r < rows; ++r, x += 2 * cols, dx += 2 * cols, dy += cols) {
    const float w = weight ? weight[r] : 1.0f;
    const auto dot = [&](int64_t i, auto lanes) {  // stores, and returns the terms of dweight
      const Vec gate = load(x + i, lanes), other = load(x + cols + i, lanes);
      const Vec g = f.gate(gate), u = f.other(other), given = load(dy + i, lanes), d = w * given;
      const Vec e = f.exp_of_minus(g), sigmoid = reciprocal(1.0f + e);
      const Vec slope = sigmoid + f.alpha * g * sigmoid * (e * sigmoid);
      store(dx + i, gate > f.limit ? Vec{} : d * u * slope, lanes);
      const auto beyond = (other > f.limit) | (other < -f.limit);
      store(dx + cols + i, beyond ? Vec{} : d * (g * sigmoid), lanes);
      return given * (g * sigmoid * u);
    };
    if (weight)
      dweight[r] = sum_of(cols, dot);
    else
      each_vec(cols, dot);
  }
}

/// As ScalarMath, of vectors. The bound keeps exp() finite.
struct VecMath {
  static MOE_INLINE Vec exp(Vec x) { return exp_bounded(at_most(x, splat(79.5f))); }
  static MOE_INLINE Vec reciprocal(Vec x) { return MOE_ISA::reciprocal(x); }
  static MOE_INLINE Vec at_least_0(Vec x) { return at_least(x, Vec{}); }
};

/// y = acc + f(i, lanes), where a null acc counts as 0.
template <class F>
MOE_INLINE void each_sum(float* y, const float* acc, int64_t n, F f) {
  if (acc)
    each_vec(
        n, [&](int64_t i, auto lanes) { store(y + i, load(acc + i, lanes) + f(i, lanes), lanes); });
  else
    each_vec(n, [&](int64_t i, auto lanes) { store(y + i, f(i, lanes), lanes); });
}

void map(float* y, const float* x, Map map, float factor, const float* acc, int64_t n, Stream) {
  with_formulas(map, [&](auto f) {
    each_sum(y, acc, n, [&](int64_t i, auto lanes) {
      return f.template of<VecMath>(load(x + i, lanes), factor);
    });
  });
}

void map_dx(float* dx, const float* dy, const float* y, Map map, const float* acc, int64_t n,
            Stream) {
  with_slope<VecMath, Vec>(map, [&](auto f) {
    each_sum(dx, acc, n, [&](int64_t i, auto lanes) {
      return f.template dx<VecMath>(load(dy + i, lanes), load(y + i, lanes));
    });
  });
}

void mul(float* y, const float* a, const float* b, const float* acc, int64_t rows, int64_t cols,
         bool by_row, Stream) {
  if (!by_row) {
    each_sum(y, acc, rows * cols,
             [&](int64_t i, auto lanes) { return load(a + i, lanes) * load(b + i, lanes); });
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    each_sum(y + r * cols, acc ? acc + r * cols : nullptr, cols,
             [&](int64_t i, auto lanes) { return load(a + r * cols + i, lanes) * b[r]; });
}

void row_dot(float* y, const float* a, const float* b, int64_t rows, int64_t cols, Stream) {
  for (int64_t r = 0; r < rows; ++r, a += cols, b += cols)
    y[r] = sum_of(cols,
                  [&](int64_t i, auto lanes) { return load(a + i, lanes) * load(b + i, lanes); });
}

void sgd(float* w, float* v, const float* g, float lr, float momentum, int64_t n, Stream) {
  each_vec(n, [&](int64_t i, auto lanes) {
    const Vec velocity = momentum * load(v + i, lanes) + load(g + i, lanes);
    store(v + i, velocity, lanes);
    store(w + i, load(w + i, lanes) - lr * velocity, lanes);
  });
}

void square_sums(float* sums, const float* x, const float* acc, float factor, int64_t n, Stream) {
  for (int64_t j = 0; j < kSquareSums; ++j) sums[j] = acc != nullptr ? acc[j] : 0.0F;
  for (int64_t i = 0; i < n; i += kSquareRun) {
    const float squares = sum_of(std::min(kSquareRun, n - i), [&](int64_t k, auto lanes) {
      return load(x + i + k, lanes) * load(x + i + k, lanes);
    });
    sums[i / kSquareRun % kSquareSums] += factor * squares;
  }
}

void clip(float* y, const float* x, const float* square_sums, float limit, int64_t n, Stream) {
  double sum = 0;
  for (int64_t j = 0; j < kSquareSums; ++j) sum += square_sums[j];
  const auto factor = static_cast<float>(std::min(1.0, limit / (std::sqrt(sum) + 1e-6)));
  each_vec(n, [&](int64_t i, auto lanes) { store(y + i, load(x + i, lanes) * factor, lanes); });
}

void adamw(float* w, float* m, float* v, const float* g, const AdamwRates& a, const int64_t* step,
           int64_t n, Stream) {
  const AdamwFactors f = adamw_factors(a, *step + 1);
  const auto beta1 = static_cast<float>(a.beta1), rest1 = static_cast<float>(1 - a.beta1);
  const auto beta2 = static_cast<float>(a.beta2), rest2 = static_cast<float>(1 - a.beta2);
  const auto eps = static_cast<float>(a.eps), kept = static_cast<float>(f.keep);
  const auto rate = static_cast<float>(f.rate), root = static_cast<float>(f.root);
  each_vec(n, [&](int64_t i, auto lanes) {
    const Vec gradient = load(g + i, lanes);
    const Vec first = beta1 * load(m + i, lanes) + rest1 * gradient;
    const Vec second = beta2 * load(v + i, lanes) + rest2 * gradient * gradient;
    store(m + i, first, lanes);
    store(v + i, second, lanes);
    store(w + i, kept * load(w + i, lanes) - rate * first / (root * sqrt(second) + eps), lanes);
  });
}

void add(float* y, const float* a, const float* b, int64_t n, Stream) {
  each_vec(n, [&](int64_t i, auto lanes) {
    store(y + i, load(a + i, lanes) + load(b + i, lanes), lanes);
  });
}

void sum_n(float* y, const float* const* in, int64_t count, int64_t n, Stream) {
  sum_rows(y, nullptr, count, n,
           [&](int64_t j, int64_t i, auto lanes) { return load(in[j] + i, lanes); });
}

void round(float* y, const float* x, int64_t n, Stream) {
  __builtin_memcpy(y, x, sizeof(float) * static_cast<size_t>(n));
}

void copy_2d(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t width,
             int64_t rows, Stream) {
  for (int64_t r = 0; r < rows; ++r)
    __builtin_memcpy(static_cast<char*>(to) + r * to_pitch,
                     static_cast<const char*>(from) + r * from_pitch, static_cast<size_t>(width));
}

void clear(void* to, int64_t bytes, Stream) {
  __builtin_memset(to, 0, static_cast<size_t>(bytes));
}

int64_t first_nonfinite(const float* x, int64_t n) {
  constexpr int64_t kBlock = 4096;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = n - first < kBlock ? n - first : kBlock;
    const float difference = sum_of(count, [&](int64_t i, auto lanes) {
      const Vec v = load(x + first + i, lanes);
      return v - v;  // 0 for finite v, NaN for NaN and infinity
    });
    if (difference == 0) continue;
    for (int64_t i = first; i < first + count; ++i)
      if (!__builtin_isfinite(x[i])) return i;
  }
  return -1;
}

}  // namespace

void gelu(float* y, const float* x, const float* bias, int64_t rows, int64_t cols,
          Stream) noexcept {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols)
    each_vec(cols, [&](int64_t i, auto lanes) {
      store(y + i, gelu_of(load(x + i, lanes) + load_or_zero(bias, i, lanes)), lanes);
    });
}

void gelu_dx(float* dx, const float* dy, const float* x, const float* bias, int64_t rows,
             int64_t cols, Stream) noexcept {
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols)
    each_vec(cols, [&](int64_t i, auto lanes) {
      const Vec slope = gelu_slope(load(x + i, lanes) + load_or_zero(bias, i, lanes));
      store(dx + i, load(dy + i, lanes) * slope, lanes);
    });
}

void set_elementwise(KernelTable<float>& table) noexcept {
  table.bias_grad = bias_grad;
  table.gelu = gelu;
  table.gelu_dx = gelu_dx;
  table.silu_mul = silu_mul;
  table.silu_mul_dx = silu_mul_dx;
  table.map = map;
  table.map_dx = map_dx;
  table.mul = mul;
  table.row_dot = row_dot;
  table.sgd = sgd;
  table.square_sums = square_sums;
  table.clip = clip;
  table.adamw = adamw;
  table.add = add;
  table.sum_n = sum_n;
  table.round = round;
  table.copy_2d = copy_2d;
  table.clear = clear;
  table.first_nonfinite = first_nonfinite;
}

}  // namespace moe::kernels::MOE_ISA
