// Elementwise ops and norms.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;

namespace {

/// Also rows that are longer than what the threads of a block take at once.
const std::vector<Matrix> kRows = joined(kMatrices, {{2, 2056}});

}  // namespace

TEST_CASE("LayerNorm and its gradients agree with the reference") {
  for (const auto& [rows, cols] : kRows)
    for (const bool accumulate : {false, true})
      agree_on_both(2e-5, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        using W = typename A::Wide;
        const int64_t n = rows * cols, shift = accumulate ? 1 : 0;  // off a vector
        const auto x = A::stored(n + shift, 1, 3), dy = A::stored(n + shift, 2);
        const auto gamma = A::wide(cols, 3), beta = A::wide(cols, 4);
        std::vector<T> y(n + shift);
        std::vector<W> mean(rows), rstd(rows);
        k.layernorm(y.data() + shift, mean.data(), rstd.data(), x.data() + shift, gamma.data(),
                    beta.data(), rows, cols, nullptr);
        auto dx = A::stored(n + shift, 5);
        auto dgamma = A::wide(cols, 6), dbeta = A::wide(cols, 7);
        // One column alone has variance 0: rstd is 316 there, and so is the error.
        if (cols > 1)
          k.layernorm_dx(dx.data() + shift, dy.data() + shift, x.data() + shift, mean.data(),
                         rstd.data(), gamma.data(), accumulate ? dx.data() + shift : nullptr, rows,
                         cols, nullptr);
        k.layernorm_dw(dgamma.data(), dbeta.data(), dy.data() + shift, x.data() + shift,
                       mean.data(), rstd.data(), accumulate ? dgamma.data() : nullptr,
                       accumulate ? dbeta.data() : nullptr, rows, cols, nullptr);
        return Results<T>{joined(y, dx), joined(joined(mean, rstd), joined(dgamma, dbeta))};
      });
}

TEST_CASE("RMSNorm and its gradients agree with the reference, of short rows and of long ones") {
  for (const auto& [rows, cols] : joined(kRows, {{19, 64}, {9, 256}, {9, 257}}))
    for (const bool accumulate : {false, true})
      agree_on_both(2e-5, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        using W = typename A::Wide;
        const int64_t n = rows * cols, shift = accumulate ? 1 : 0;  // off a vector
        const auto x = A::stored(n + shift, 1, 3), dy = A::stored(n + shift, 2);
        const auto gamma = A::wide(cols, 3);
        std::vector<T> y(n + shift);
        std::vector<W> rstd(rows);
        k.rmsnorm(y.data() + shift, rstd.data(), x.data() + shift, gamma.data(), W(0.01), rows,
                  cols, nullptr);
        auto dx = A::stored(n + shift, 5);
        auto dgamma = A::wide(cols, 6);
        k.rmsnorm_dx(dx.data() + shift, dy.data() + shift, x.data() + shift, rstd.data(),
                     gamma.data(), accumulate ? dx.data() + shift : nullptr, rows, cols, nullptr);
        k.rmsnorm_dw(dgamma.data(), dy.data() + shift, x.data() + shift, rstd.data(),
                     accumulate ? dgamma.data() : nullptr, rows, cols, nullptr);
        return Results<T>{joined(y, dx), joined(rstd, dgamma)};
      });
}

TEST_CASE("the gradient of a bias agrees with the reference") {
  for (const auto& [rows, cols] : kRows)
    for (const bool extra : {false, true})
      agree_on_both(1e-5, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        const auto dy = A::stored(rows * cols, 4);
        auto db = A::wide(cols, 3);
        k.bias_grad(db.data(), dy.data(), extra ? db.data() : nullptr, rows, cols, nullptr);
        return Results<T>{{}, db};
      });
}

TEST_CASE("GELU and its gradient agree with the reference") {
  for (const auto& [rows, cols] : kRows)
    for (const bool biased : {false, true})
      agree_on_both(1e-6, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        auto x = A::stored(rows * cols, 1, 8), dy = A::stored(rows * cols, 2);
        x[0] = A::of(NAN);
        const auto bias = A::wide(cols, 3);
        std::vector<T> y(rows * cols);
        const auto* const b = biased ? bias.data() : nullptr;
        k.gelu(y.data(), x.data(), b, rows, cols, nullptr);
        k.gelu_dx(dy.data(), dy.data(), x.data(), b, rows, cols, nullptr);
        return Results<T>{joined(y, dy), {}};
      });
}

TEST_CASE("gated activations and their gradients agree with the reference") {
  for (const auto& [rows, cols] : kRows)
    for (const int64_t shift : {0, 1})
      for (const kernels::GatedForm form : {kernels::GatedForm{}, {3, 1.702, 1}})
        agree_on_both(2e-6, [&](const auto& k, auto arrays) {
          using A = decltype(arrays);
          using T = typename A::Stored;
          const int64_t n = rows * cols;
          auto x = A::stored(2 * n + shift, 1, 6);
          x[static_cast<size_t>(shift)] = A::of(NAN);
          const auto dy = A::stored(n + shift, 2);
          std::vector<T> y(n + shift), dx(2 * n + shift);
          k.silu_mul(y.data() + shift, x.data() + shift, form, rows, cols, nullptr);
          k.silu_mul_dx(dx.data() + shift, dy.data() + shift, x.data() + shift, form, rows, cols,
                        nullptr);
          return Results<T>{joined(y, dx), {}};
        });
}

TEST_CASE("maps, their gradients and products agree with the reference") {
  using kernels::Map;
  for (const auto& [rows, cols] : kRows)
    for (const int64_t shift : {0, 1})
      for (const Map map : kernels::kMaps)
        agree_on_both(1e-5, [&](const auto& k, auto arrays) {
          using A = decltype(arrays);
          using T = typename A::Stored;
          using W = typename A::Wide;
          const int64_t n = rows * cols;
          auto x = A::stored(n + shift, 1, 6);
          x[static_cast<size_t>(shift)] = A::of(NAN);
          const auto dy = A::stored(n + shift, 2), acc = A::stored(n + shift, 3);
          const T* const a = shift == 0 ? nullptr : acc.data() + shift;
          std::vector<T> y(n + shift), dx(n + shift), full(n + shift), by_row(n + shift);
          std::vector<T> dots(rows);
          k.map(y.data() + shift, x.data() + shift, map, W(1.5), a, n, nullptr);
          if (kernels::has_slope(map))
            k.map_dx(dx.data() + shift, dy.data() + shift, acc.data() + shift, map, a, n, nullptr);
          k.mul(full.data() + shift, dy.data() + shift, acc.data() + shift, a, rows, cols, false,
                nullptr);
          k.mul(by_row.data() + shift, dy.data() + shift, acc.data() + shift, a, rows, cols, true,
                nullptr);
          k.row_dot(dots.data(), dy.data() + shift, acc.data() + shift, rows, cols, nullptr);
          return Results<T>{joined(joined(y, dx), joined(joined(full, by_row), dots)), {}};
        });
}

TEST_CASE("columns of heads that are cut and joined agree with the reference") {
  for (const kernels::HeadColumns columns :
       {kernels::HeadColumns{1, 16, 8}, {3, 5, 64}, {4, 128, 64}, {7, 1, 1}})
    for (const bool shared : {false, true})
      agree_on_both(1e-6, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        kernels::HeadColumns c = columns;
        c.shared = shared;
        const int64_t rows = 11;
        const auto x = A::stored(rows * c.row(), 1), in = A::stored(rows * c.row_of_first(), 2);
        const auto other = A::stored(rows * c.row_of_second(), 3);
        std::vector<T> first(in.size()), second(other.size()), back(x.size());
        k.split_heads(first.data(), second.data(), x.data(), c, rows, nullptr);
        k.join_heads(back.data(), in.data(), other.data(), c, rows, nullptr);
        return Results<T>{joined(joined(first, second), back), {}};
      });
}

TEST_CASE("rotary embedding agrees with the reference in both forms and directions") {
  using kernels::RopeShape;
  for (RopeShape s : std::vector<RopeShape>{{1, 1, 1, 2, 0, 1},
                                            {12, 6, 2, 8, 0, 4},
                                            {6, 3, 3, 12, 8, 2},
                                            {8, 4, 2, 128, 0, 64},
                                            {8, 8, 5, 192, 128, 32},
                                            {10, 5, 2, 70, 4, 17},
                                            {4, 2, 1, 64, 0, 16}})
    for (const int mode : {0, 1, 2, 3})
      for (const int64_t shift : {0, 1}) {
        s.interleaved = mode % 2 == 1;
        s.inverse = mode >= 2;
        agree_on_both(1e-6, [&](const auto& k, auto arrays) {
          using A = decltype(arrays);
          using T = typename A::Stored;
          const int64_t n = s.tokens * s.heads * s.head_dim;
          auto x = A::stored(n + shift, 1);
          const auto angles = A::wide(s.seq * 2 * s.pairs, 2);
          std::vector<T> y(n + shift);
          k.rope(y.data() + shift, x.data() + shift, angles.data(), s, nullptr);
          k.rope(x.data() + shift, x.data() + shift, angles.data(), s, nullptr);
          return Results<T>{joined(x, y), {}};
        });
      }
}

TEST_CASE("the angles of rotary embedding are those of the reference to a rounding") {
  kernels::RopeFrequencies f = {3, 1.25f, {1, 0.37f, 0}};
  agree_on_device(2e-7, [&](const auto& k, auto zero) {
    std::vector<decltype(zero)> angles(6 * 5000);
    k.rope_angles(angles.data(), f, 5000, nullptr);
    return angles;
  });
}

TEST_CASE("sums, with operands that are not aligned to a vector") {
  for (const int64_t n : {0, 1, 4, 255, 1032, 4099})
    for (const int64_t shift : {0, 1})
      agree_on_both(0, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        std::vector<std::vector<T>> in(4);
        std::vector<const T*> at;
        for (uint64_t i = 0; i < 4; ++i) {
          for (const int32_t x : random_ints(n + shift, i, 200)) in[i].push_back(A::of(x - 100));
          at.push_back(in[i].data() + shift);
        }
        std::vector<T> sum(n + shift), both(n + shift);
        k.sum_n(sum.data() + shift, at.data(), 4, n, nullptr);
        k.add(both.data() + shift, at[0], at[1], n, nullptr);
        return Results<T>{joined(sum, both), {}};
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
  const auto check = [](const auto& k) {
    k.sum_n(nullptr, nullptr, 257, 1, nullptr);
    CHECK(device_error().find("sum_n got 257 summands; 1 to 256 are allowed") != std::string::npos);
    CHECK(device_error() == "");
  };
  check(device_table());
  check(device_mixed());
}
