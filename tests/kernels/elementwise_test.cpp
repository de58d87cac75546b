#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;

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

constexpr kernels::AdamwRates kRates = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .lr = 0.01, .weight_decay = 1};

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
