#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::RopeShape;

TEST_CASE("gemm agrees with the reference for every transposition, alpha and beta") {
  const int64_t m = 7, n = 19, k = 33;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const double beta : {0.0, 1.0, -0.5})
        agree(1e-5, [&](const auto& table, auto zero) {
          using T = decltype(zero);
          const int64_t lda = (ta ? m : k) + 2, ldb = (tb ? k : n) + 1, ldc = n + 3;
          const auto a = random_values<T>((ta ? k : m) * lda, 1);
          const auto b = random_values<T>((tb ? n : k) * ldb, 2);
          auto c = random_values<T>(m * ldc, 3);
          table.gemm(ta, tb, m, n, k, T(1.5), a.data(), lda, b.data(), ldb, T(beta), c.data(), ldc,
                     nullptr);
          return c;
        });
}

TEST_CASE("gemm without rows does nothing, without depth scales c") {
  agree(0, [](const auto& table, auto zero) {
    using T = decltype(zero);
    auto c = random_values<T>(6, 3);
    const T a = 7;
    table.gemm(false, true, 0, 3, 4, 1, &a, 4, &a, 4, 0, c.data(), 3, nullptr);
    table.gemm(true, false, 2, 3, 0, 1, &a, 2, &a, 3, 0.5, c.data(), 3, nullptr);
    return c;
  });
}

TEST_CASE("beta 0 overwrites a NaN in c") {
  for (const auto* table : kernels::runnable_tables()) {
    const float a = 2, b = 3;
    float c = NAN;
    table->gemm(false, false, 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1, nullptr);
    CHECK(c == 6);
  }
}

TEST_CASE("bias_grad sums over rows and adds the accumulator, also in place") {
  for (const auto [rows, cols] : kMatrices)
    for (const bool in_place : {false, true})
      agree(1e-5, [&, rows = rows, cols = cols](const auto& k, auto zero) {
        using T = decltype(zero);
        const auto dy = random_values<T>(rows * cols, 1);
        std::vector<T> db = random_values<T>(cols, 2);
        k.bias_grad(db.data(), dy.data(), in_place ? db.data() : nullptr, rows, cols, nullptr);
        return db;
      });
}

TEST_CASE("layernorm agrees, also for rows far from zero") {
  for (const auto [rows, cols] : kMatrices)
    for (const double offset : {0.0, 50.0})
      agree(2e-4, [&, rows = rows, cols = cols](const auto& k, auto zero) {
        using T = decltype(zero);
        auto x = random_values<T>(rows * cols, 1);
        for (T& v : x) v = static_cast<float>(v + offset);
        const auto gamma = random_values<T>(cols, 2), beta = random_values<T>(cols, 3);
        std::vector<T> y(rows * cols), mean(rows), rstd(rows);
        k.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(), rows,
                    cols, nullptr);
        // A row of one column has rstd 1 / sqrt(eps), which says nothing about rounding.
        return cols == 1 ? joined(y, mean) : joined(joined(y, mean), rstd);
      });
}

TEST_CASE("the gradients of layernorm agree, with and without accumulators, also in place") {
  for (const auto [rows, cols] : kMatrices)
    for (const int mode : {0, 1, 2}) {  // no accumulator; one; dx is dy and the outputs accumulate
      if (cols == 1) continue;
      agree(1e-4, [&, rows = rows, cols = cols](const auto& k, auto zero) {
        using T = decltype(zero);
        const auto x = random_values<T>(rows * cols, 1), gamma = random_values<T>(cols, 2);
        const auto acc = random_values<T>(rows * cols, 4);
        auto dy = random_values<T>(rows * cols, 3);
        std::vector<T> y(rows * cols), mean(rows), rstd(rows);
        k.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), gamma.data(), rows,
                    cols, nullptr);
        auto dw = random_values<T>(cols, 5), db = random_values<T>(cols, 6);
        k.layernorm_dw(dw.data(), db.data(), dy.data(), x.data(), mean.data(), rstd.data(),
                       mode == 2 ? dw.data() : nullptr, mode == 2 ? db.data() : nullptr, rows, cols,
                       nullptr);
        std::vector<T> other(rows * cols);
        std::vector<T>& dx = mode == 2 ? dy : other;
        k.layernorm_dx(dx.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(),
                       mode == 0 ? nullptr : acc.data(), rows, cols, nullptr);
        return joined(joined(dx, dw), db);
      });
    }
}

TEST_CASE("layernorm_dx accumulates into its own output") {
  agree(1e-5, [](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto x = random_values<T>(40, 1), dy = random_values<T>(40, 3);
    const std::vector<T> mean(2, T(0.25)), rstd(2, T(1.5)), gamma(20, T(2));
    auto dx = random_values<T>(40, 4);
    k.layernorm_dx(dx.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(),
                   dx.data(), 2, 20, nullptr);
    return dx;
  });
}

TEST_CASE("rmsnorm and its gradients agree, with and without accumulators, also in place") {
  for (const auto [rows, cols] : kMatrices)
    for (const int mode : {0, 1, 2})  // no accumulator; one; dx is dy and the outputs accumulate
      agree(2e-5, [&, rows = rows, cols = cols](const auto& k, auto zero) {
        using T = decltype(zero);
        const auto x = random_values<T>(rows * cols, 1, 3), gamma = random_values<T>(cols, 2);
        const auto acc = random_values<T>(rows * cols, 4);
        auto dy = random_values<T>(rows * cols, 3), dw = random_values<T>(cols, 5);
        std::vector<T> y(rows * cols), rstd(rows), other(rows * cols);
        k.rmsnorm(y.data(), rstd.data(), x.data(), gamma.data(), T(0.01), rows, cols, nullptr);
        k.rmsnorm_dw(dw.data(), dy.data(), x.data(), rstd.data(), mode == 2 ? dw.data() : nullptr,
                     rows, cols, nullptr);
        std::vector<T>& dx = mode == 2 ? dy : other;
        k.rmsnorm_dx(dx.data(), dy.data(), x.data(), rstd.data(), gamma.data(),
                     mode == 0 ? nullptr : acc.data(), rows, cols, nullptr);
        return joined(joined(y, rstd), joined(dx, dw));
      });
}

TEST_CASE("gelu and its gradient agree over small, large and extreme inputs") {
  for (const auto [rows, cols] : kMatrices)
    for (const double range : {1.0, 12.0, 1e4})
      for (const bool biased : {false, true})
        agree(2e-6, [&, rows = rows, cols = cols](const auto& k, auto zero) {
          using T = decltype(zero);
          const auto x = random_values<T>(rows * cols, 1, range), bias = random_values<T>(cols, 2);
          auto dx = random_values<T>(rows * cols, 3);
          std::vector<T> y(rows * cols);
          const T* b = biased ? bias.data() : nullptr;
          k.gelu(y.data(), x.data(), b, rows, cols, nullptr);
          k.gelu_dx(dx.data(), dx.data(), x.data(), b, rows, cols, nullptr);  // in place
          return joined(y, dx);
        });
}

TEST_CASE("gelu is relatively accurate where it is tiny") {
  for (const auto* table : kernels::runnable_tables()) {
    INFO(table->name);
    for (float x = -0x1p-20f; x > -5; x *= 1.37f) {
      float y;
      double want, wide = x;
      table->gelu(&y, &x, nullptr, 1, 1, nullptr);
      kernels::reference_table().gelu(&want, &wide, nullptr, 1, 1, nullptr);
      CHECK(std::abs(y - want) <= 3e-6 * std::abs(want));
    }
  }
}

TEST_CASE("gated activations and their gradients agree, with and without limits, far out too") {
  for (const auto [rows, cols] : kMatrices)
    for (const double range : {1.0, 12.0, 1e4})
      for (const kernels::GatedForm form : {kernels::GatedForm{}, {7, 1.702, 1}}) {
        // Without a limit, an operand of 1e4 multiplies the rounding error of a slope near 0.
        const double tolerance = range > 100 && form.offset == 0 ? 1e-3 : 2e-6;
        agree(tolerance, [&, rows = rows, cols = cols](const auto& k, auto zero) {
          using T = decltype(zero);
          const auto x = random_values<T>(2 * rows * cols, 1, range);
          const auto dy = random_values<T>(rows * cols, 3);
          std::vector<T> y(rows * cols), dx(2 * rows * cols);
          k.silu_mul(y.data(), x.data(), form, rows, cols, nullptr);
          k.silu_mul_dx(dx.data(), dy.data(), x.data(), form, rows, cols, nullptr);
          return joined(y, dx);
        });
      }
}

TEST_CASE("a gated activation passes NaN on from either operand, within limits too") {
  for (const auto* k : kernels::runnable_tables())
    for (const kernels::GatedForm form : {kernels::GatedForm{}, {7, 1.702, 1}}) {
      const float x[] = {NAN, 1, 1, NAN}, dy[] = {1, 1};
      float y[2], dx[4];
      k->silu_mul(y, x, form, 1, 2, nullptr);
      k->silu_mul_dx(dx, dy, x, form, 1, 2, nullptr);
      for (const float v : {y[0], y[1], dx[0], dx[1], dx[2]}) CHECK(std::isnan(v));
    }
}

TEST_CASE("maps, their gradients, products and sums of rows agree, with accumulators too") {
  using kernels::Map;
  for (const auto [rows, cols] : kMatrices)
    for (const bool accumulate : {false, true})
      for (const Map map : {Map::kScale, Map::kSigmoid, Map::kRelu})
        agree(1e-6, [&, rows = rows, cols = cols](const auto& k, auto zero) {
          using T = decltype(zero);
          const int64_t n = rows * cols;
          const auto x = random_values<T>(n, 1, 200), dy = random_values<T>(n, 2);
          const auto acc = random_values<T>(n, 3), b = random_values<T>(n, 4);
          const T* const a = accumulate ? acc.data() : nullptr;
          std::vector<T> y(n), full(n), by_row(n), dots(rows);
          auto dx = acc;
          k.map(y.data(), x.data(), map, T(1.5), a, n, nullptr);
          if (map != Map::kScale) {
            std::vector<T> value(n);
            k.map(value.data(), x.data(), map, T(0), nullptr, n, nullptr);
            k.map_dx(dx.data(), dy.data(), value.data(), map, a, n, nullptr);
          }
          k.mul(full.data(), dy.data(), b.data(), a, rows, cols, false, nullptr);
          k.mul(by_row.data(), dy.data(), b.data(), a, rows, cols, true, nullptr);
          k.row_dot(dots.data(), dy.data(), b.data(), rows, cols, nullptr);
          for (T& dot : dots) dot /= static_cast<T>(cols);
          return joined(joined(y, dx), joined(joined(full, by_row), dots));
        });
}

TEST_CASE("maps pass NaN on, and their results may be in the place of an operand") {
  using kernels::Map;
  for (const auto* k : kernels::runnable_tables())
    for (const Map map : {Map::kScale, Map::kSigmoid, Map::kRelu}) {
      float x[] = {NAN, 2}, d[] = {1, 1};
      k->map(x, x, map, 2, nullptr, 2, nullptr);
      CHECK((std::isnan(x[0]) && x[1] > 0));
      if (map == Map::kScale) continue;
      k->map_dx(d, d, x, map, nullptr, 2, nullptr);
      CHECK((std::isnan(d[0]) == (map == Map::kSigmoid) && d[1] > 0));
      k->mul(d, d, x, d, 1, 2, false, nullptr);
      CHECK(std::isnan(d[0]));
    }
}

TEST_CASE("rope agrees in both forms and directions, of whole heads and parts, also in place") {
  for (RopeShape s : std::vector<RopeShape>{{1, 1, 1, 2, 0, 1},
                                            {12, 6, 2, 8, 0, 4},
                                            {6, 3, 3, 12, 8, 2},
                                            {8, 4, 2, 128, 0, 64},
                                            {8, 8, 5, 192, 128, 32},
                                            {10, 5, 2, 70, 4, 17},
                                            {4, 2, 1, 64, 0, 16}})
    for (const int mode : {0, 1, 2, 3, 4, 5}) {
      s.interleaved = mode % 2 == 1;
      s.inverse = mode >= 2;
      agree(5e-7, [&](const auto& k, auto zero) {
        using T = decltype(zero);
        const auto x = random_values<T>(s.tokens * s.heads * s.head_dim, 1);
        const auto angles = random_values<T>(s.seq * 2 * s.pairs, 2);
        auto y = mode >= 4 ? x : random_values<T>(static_cast<int64_t>(x.size()), 3);
        k.rope(y.data(), mode >= 4 ? y.data() : x.data(), angles.data(), s, nullptr);
        return y;
      });
    }
}

TEST_CASE("all tables have the same angles to a rounding, at far positions too") {
  kernels::RopeFrequencies f = {3, 1.25f, {1, 0.37f, 0}};
  agree(2e-7, [&](const auto& k, auto zero) {
    std::vector<decltype(zero)> angles(6 * 5000);
    k.rope_angles(angles.data(), f, 5000, nullptr);
    return angles;
  });
}

TEST_CASE("sgd with momentum agrees") {
  for (const int64_t n : {1, 15, 16, 1000, 4097})
    agree(1e-6, [&](const auto& k, auto zero) {
      using T = decltype(zero);
      auto w = random_values<T>(n, 1), v = random_values<T>(n, 2);
      const auto g = random_values<T>(n, 3);
      k.sgd(w.data(), v.data(), g.data(), T(0.1), T(0.9), n, nullptr);
      return joined(w, v);
    });
}

constexpr kernels::AdamwRates kRates = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .lr = 0.01, .weight_decay = 1};

TEST_CASE("adamw agrees over several steps, and a second moment is never negative") {
  for (const int64_t n : {1, 15, 16, 1000, 4097})
    agree(1e-5, [&](const auto& k, auto zero) {
      using T = decltype(zero);
      auto w = random_values<T>(n, 1);
      std::vector<T> m(n), v(n);
      for (int64_t step = 0; step < 3; ++step) {
        const auto g = random_values<T>(n, 11 + static_cast<uint64_t>(step));
        k.adamw(w.data(), m.data(), v.data(), g.data(), kRates, &step, n, nullptr);
      }
      for (const T x : v) CHECK(x >= 0);
      return joined(joined(w, m), v);
    });
}

TEST_CASE("adamw moves each weight by about lr in its first step, and forgets that it began at 0") {
  // With one gradient in all steps both means are it and its square, whatever the step.
  for (const int64_t first : {int64_t{0}, int64_t{1000}}) {
    double w = 1, m = 0, v = 0;
    const double g = 0.25;
    kernels::AdamwRates rates = kRates;
    rates.weight_decay = 0;
    if (first > 0) m = g, v = g * g;  // what a thousand steps leave
    kernels::reference_table().adamw(&w, &m, &v, &g, rates, &first, 1, nullptr);
    CHECK(w == Approx(1 - rates.lr).epsilon(1e-9));
  }
}

TEST_CASE("adamw leaves a weight without gradient and decay as it is") {
  for (const auto* k : kernels::runnable_tables()) {
    auto w = random_values<float>(37, 1);
    const auto before = w;
    std::vector<float> m(37), v(37), g(37);
    const int64_t step = 4;
    k->adamw(w.data(), m.data(), v.data(), g.data(), {0.9, 0.99, 1e-8, 0.1, 0}, &step, 37, nullptr);
    CHECK(w == before);
  }
}

TEST_CASE("sum_n adds in the order of its inputs, bit for bit, also into its first input") {
  const int64_t n = 1027;
  for (const auto* table : kernels::runnable_tables()) {
    auto a = random_values<float>(n, 1, 1e6), b = random_values<float>(n, 2, 1.0);
    const auto c = random_values<float>(n, 3, 1e-6);
    std::vector<float> want(n);
    for (int64_t i = 0; i < n; ++i) {
      const volatile float first = a[i] + b[i];
      want[i] = first + c[i];
    }
    const float* in[] = {a.data(), b.data(), c.data()};
    table->sum_n(a.data(), in, 3, n, nullptr);
    CHECK(a == want);
    table->sum_n(b.data(), in + 2, 1, n, nullptr);
    CHECK(b == c);
    table->add(b.data(), a.data(), c.data(), n, nullptr);
    CHECK(b[n - 1] == a[n - 1] + c[n - 1]);
  }
}

TEST_CASE("clear sets the bytes to 0 and none beside them") {
  for (const auto* table : kernels::runnable_tables()) {
    std::vector<char> bytes(9, 'x');
    table->clear(bytes.data() + 2, 5, nullptr);
    CHECK(std::string(bytes.begin(), bytes.end()) == std::string("xx\0\0\0\0\0xx", 9));
  }
}

TEST_CASE("copy_2d copies the rows and nothing between them") {
  for (const auto* table : kernels::runnable_tables()) {
    const std::string from = "abcXdefXghiX";
    std::string to = "..............";
    table->copy_2d(to.data(), 5, from.data(), 4, 3, 3, nullptr);
    CHECK(to == "abc..def..ghi.");
  }
}

TEST_CASE("where numbers are stored as they are computed, rounding them is a copy") {
  const auto x = random_values<float>(77, 1);
  for (const auto* table : kernels::runnable_tables()) {
    std::vector<float> y(78, -1);
    table->round(y.data(), x.data(), 77, nullptr);
    CHECK(std::equal(x.begin(), x.end(), y.begin()));
    CHECK(y[77] == -1);
  }
  const auto exact = random_values<double>(77, 1);
  std::vector<double> same(77);
  kernels::reference_table().round(same.data(), exact.data(), 77, nullptr);
  CHECK(same == exact);
}

TEST_CASE("first_nonfinite finds the first NaN or infinity wherever it is") {
  for (const auto* table : kernels::runnable_tables())
    for (const int64_t n : {1, 17, 4096, 9001}) {
      auto x = random_values<float>(n, 1, 3e38);
      CHECK(table->first_nonfinite(x.data(), n) == -1);
      x[n - 1] = -INFINITY;
      CHECK(table->first_nonfinite(x.data(), n) == n - 1);
      x[n / 2] = NAN;
      CHECK(table->first_nonfinite(x.data(), n) == n / 2);
    }
  CHECK(kernels::runnable_tables()[0]->first_nonfinite(nullptr, 0) == -1);
}
