// Elementwise ops and LayerNorm.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("LayerNorm and its gradients agree with the reference") {
  for (const auto& [rows, cols] : kMatrices)
    for (const bool accumulate : {false, true})
      agree_on_device(2e-5, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        const auto x = random_values<T>(rows * cols, 1, 3), dy = random_values<T>(rows * cols, 2);
        const auto gamma = random_values<T>(cols, 3), beta = random_values<T>(cols, 4);
        std::vector<T> y(rows * cols), mean(rows), rstd(rows);
        k.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(), rows,
                    cols, nullptr);
        auto dx = random_values<T>(rows * cols, 5);
        auto dgamma = random_values<T>(cols, 6), dbeta = random_values<T>(cols, 7);
        // One column alone has variance 0: rstd is 316 there, and so is the error.
        if (cols > 1)
          k.layernorm_dx(dx.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(),
                         accumulate ? dx.data() : nullptr, rows, cols, nullptr);
        k.layernorm_dw(dgamma.data(), dbeta.data(), dy.data(), x.data(), mean.data(), rstd.data(),
                       accumulate ? dgamma.data() : nullptr, accumulate ? dbeta.data() : nullptr,
                       rows, cols, nullptr);
        return joined(joined(joined(y, mean), joined(rstd, dx)), joined(dgamma, dbeta));
      });
}

TEST_CASE("bias and its gradient agree with the reference") {
  for (const auto& [rows, cols] : kMatrices)
    for (const bool extra : {false, true})
      agree_on_device(1e-5, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        const auto bias = random_values<T>(cols, 1), residual = random_values<T>(rows * cols, 2);
        std::vector<T> y(rows * cols);
        k.fill_bias(y.data(), bias.data(), extra ? residual.data() : nullptr, rows, cols, nullptr);
        auto db = random_values<T>(cols, 3);
        k.bias_grad(db.data(), y.data(), extra ? db.data() : nullptr, rows, cols, nullptr);
        return joined(y, db);
      });
}

TEST_CASE("GELU and its gradient agree with the reference") {
  for (const auto& [rows, cols] : kMatrices)
    for (const bool biased : {false, true})
      agree_on_device(1e-6, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        auto x = random_values<T>(rows * cols, 1, 8), dy = random_values<T>(rows * cols, 2);
        x[0] = NAN;
        const auto bias = random_values<T>(cols, 3);
        std::vector<T> y(rows * cols);
        const T* const b = biased ? bias.data() : nullptr;
        k.gelu(y.data(), x.data(), b, rows, cols, nullptr);
        k.gelu_dx(dy.data(), dy.data(), x.data(), b, rows, cols, nullptr);
        return joined(y, dy);
      });
}

TEST_CASE("sums, with operands that are not aligned to a vector") {
  for (const int64_t n : {0, 1, 4, 255, 1028, 4099})
    for (const int64_t shift : {0, 1})
      agree_on_device(0, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        std::vector<std::vector<T>> in;
        std::vector<const T*> at;
        for (uint64_t i = 0; i < 4; ++i) in.push_back(random_values<T>(n + shift, i));
        for (auto& v : in) {
          for (T& x : v) x = static_cast<T>(static_cast<int>(x * 100));  // sums without rounding
          at.push_back(v.data() + shift);
        }
        std::vector<T> sum(n + shift), both(n + shift);
        k.sum_n(sum.data() + shift, at.data(), 4, n, nullptr);
        k.add(both.data() + shift, at[0], at[1], n, nullptr);
        return joined(sum, both);
      });
}

TEST_CASE("rows of a pitched copy arrive and nothing beside them") {
  agree_on_device(0, [&](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto from = random_values<T>(5 * 7, 1);
    auto to = random_values<T>(5 * 9, 2);
    k.copy_2d(to.data() + 2, 9 * sizeof(T), from.data() + 1, 7 * sizeof(T), 4 * sizeof(T), 5,
              nullptr);
    return to;
  });
}

TEST_CASE("GEMM hands cuBLAS the arguments that give the reference's result", "[gemm]") {
  struct Case {
    int64_t m, n, k;
    double alpha, beta;
  };
  for (const Case s : {Case{3, 5, 7, 1, 0}, {8, 1, 4, 2, 1}, {0, 4, 3, 1, 0}, {4, 3, 0, 1, 0.5}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        agree_on_device(1e-6, [&, s = s](const auto& table, auto zero) {
          using T = decltype(zero);
          const int64_t lda = (ta ? s.m : s.k) + 2, ldb = (tb ? s.k : s.n) + 1, ldc = s.n + 3;
          const auto a = random_values<T>(10 * lda, 1), b = random_values<T>(10 * ldb, 2);
          auto c = random_values<T>(10 * ldc, 3);
          table.gemm(ta, tb, s.m, s.n, s.k, T(s.alpha), a.data(), lda, b.data(), ldb, T(s.beta),
                     c.data(), ldc, nullptr);
          return c;
        });
}

TEST_CASE("a sum of more tensors than a launch takes is refused by name") {
  device_table().sum_n(nullptr, nullptr, 257, 1, nullptr);
  CHECK(device_error().find("sum_n takes 1 to 256 summands, here are 257") != std::string::npos);
  CHECK(device_error() == "");
}
