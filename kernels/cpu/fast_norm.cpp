// LayerNorm and RMSNorm: each row is read from memory once and stays in the first-level cache for
// all passes.
#include "kernels/cpu/fast.h"
#include "kernels/cpu/fast_simd.h"

namespace moe::kernels::MOE_ISA {
namespace {

constexpr float kEps = 1e-5f;

void layernorm(float* y, float* mean, float* rstd, const float* x, const float* gamma,
               const float* beta, int64_t rows, int64_t cols, Stream) {
  const float per_col = 1.0f / static_cast<float>(cols);
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const float mu =
        per_col * sum_of(cols, [&](int64_t i, auto lanes) { return load(x + i, lanes); });
    const float squares = sum_of(cols, [&](int64_t i, auto lanes) {
      const Vec centred = keep(load(x + i, lanes) - mu, lanes, 0.0f);
      return centred * centred;
    });
    const float rs = 1.0f / __builtin_sqrtf(squares * per_col + kEps);
    mean[r] = mu;
    rstd[r] = rs;
    each_vec(cols, [&](int64_t i, auto lanes) {
      const Vec xhat = (load(x + i, lanes) - mu) * rs;
      store(y + i, xhat * load(gamma + i, lanes) + load(beta + i, lanes), lanes);
    });
  }
}

void layernorm_dx(float* dx, const float* dy, const float* x, const float* mean, const float* rstd,
                  const float* gamma, const float* acc, int64_t rows, int64_t cols, Stream) {
  const float per_col = 1.0f / static_cast<float>(cols);
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    const float mu = mean[r], rs = rstd[r];
    const float* acc_row = acc ? acc + r * cols : nullptr;
    const float sum = sum_of(
        cols, [&](int64_t i, auto lanes) { return load(dy + i, lanes) * load(gamma + i, lanes); });
    const float sum_centred = sum_of(cols, [&](int64_t i, auto lanes) {
      return load(dy + i, lanes) * load(gamma + i, lanes) * (load(x + i, lanes) - mu);
    });
    const float shift = per_col * sum, slope = per_col * sum_centred * rs * rs;
    each_vec(cols, [&](int64_t i, auto lanes) {
      const Vec inner =
          load(dy + i, lanes) * load(gamma + i, lanes) - shift - (load(x + i, lanes) - mu) * slope;
      store(dx + i, load_or_zero(acc_row, i, lanes) + rs * inner, lanes);
    });
  }
}

void layernorm_dw(float* dgamma, float* dbeta, const float* dy, const float* x, const float* mean,
                  const float* rstd, const float* acc_gamma, const float* acc_beta, int64_t rows,
                  int64_t cols, Stream) {
  sum_rows(dgamma, acc_gamma, rows, cols, [&](int64_t r, int64_t c, auto lanes) {
    const int64_t at = r * cols + c;
    return load(dy + at, lanes) * ((load(x + at, lanes) - mean[r]) * rstd[r]);
  });
  sum_rows(dbeta, acc_beta, rows, cols,
           [&](int64_t r, int64_t c, auto lanes) { return load(dy + r * cols + c, lanes); });
}

void rmsnorm(float* y, float* rstd, const float* x, const float* gamma, float eps, int64_t rows,
             int64_t cols, Stream) {
  const float per_col = 1.0f / static_cast<float>(cols);
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const float squares = sum_of(cols, [&](int64_t i, auto lanes) {
      const Vec v = load(x + i, lanes);
      return v * v;
    });
    const float rs = 1.0f / __builtin_sqrtf(squares * per_col + eps);
    rstd[r] = rs;
    each_vec(cols, [&](int64_t i, auto lanes) {
      store(y + i, load(x + i, lanes) * rs * load(gamma + i, lanes), lanes);
    });
  }
}

void rmsnorm_dx(float* dx, const float* dy, const float* x, const float* rstd, const float* gamma,
                const float* acc, int64_t rows, int64_t cols, Stream) {
  const float per_col = 1.0f / static_cast<float>(cols);
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    const float rs = rstd[r];
    const float* acc_row = acc ? acc + r * cols : nullptr;
    const float sum = sum_of(cols, [&](int64_t i, auto lanes) {
      return load(dy + i, lanes) * load(gamma + i, lanes) * load(x + i, lanes);
    });
    const float slope = per_col * sum * rs * rs;
    each_vec(cols, [&](int64_t i, auto lanes) {
      const Vec inner = load(dy + i, lanes) * load(gamma + i, lanes) - load(x + i, lanes) * slope;
      store(dx + i, load_or_zero(acc_row, i, lanes) + rs * inner, lanes);
    });
  }
}

void rmsnorm_dw(float* dgamma, const float* dy, const float* x, const float* rstd, const float* acc,
                int64_t rows, int64_t cols, Stream) {
  sum_rows(dgamma, acc, rows, cols, [&](int64_t r, int64_t c, auto lanes) {
    const int64_t at = r * cols + c;
    return load(dy + at, lanes) * (load(x + at, lanes) * rstd[r]);
  });
}

}  // namespace

void set_norm(KernelTable<float>& table) noexcept {
  table.layernorm = layernorm;
  table.layernorm_dx = layernorm_dx;
  table.layernorm_dw = layernorm_dw;
  table.rmsnorm = rmsnorm;
  table.rmsnorm_dx = rmsnorm_dx;
  table.rmsnorm_dw = rmsnorm_dw;
}

}  // namespace moe::kernels::MOE_ISA
