// Activations in bfloat16 where float32 has cases of its own: products of mixed operands, the same
// bits wherever a row lies, numbers that are not finite. What both have is in the other files.
#include <array>

#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;
using kernels::Bf16;

namespace {

using Floats = std::vector<float>;
using Narrow = std::vector<Bf16>;

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// A matrix of a product: as it is, rounded, and for the reference.
struct Operand {
  Operand(int64_t n, uint64_t stream)
      : wide(random_values<float>(n, stream)), narrow(Arrays<Bf16>::stored(n, stream)) {
    for (const Bf16 v : narrow) rounded.push_back(to_float(v));
  }
  kernels::EitherIn in(bool as_it_is) const {
    if (as_it_is) return wide.data();
    return narrow.data();
  }
  Floats wide;
  Narrow narrow;
  std::vector<double> rounded;
};

/// Product number `variant` of the types, transpositions, factors and gaps of m x n x k.
void check_product(int64_t m, int64_t n, int64_t k, int variant) {
  const bool ta = variant & 1, tb = variant & 2, wide_a = variant & 4, wide_b = variant & 8;
  const bool wide_c = variant & 16;
  const float beta = variant & 32 ? 0.75f : 0;
  const int64_t gap = variant & 64 ? 3 : 0;
  const int64_t lda = (ta ? m : k) + gap, ldb = (tb ? k : n) + gap, ldc = n + gap;
  const Operand a(lda * (ta ? k : m), 1), b(ldb * (tb ? n : k), 2);
  Operand c(ldc * m, 3);
  std::vector<double> want(c.rounded);
  if (wide_c) want.assign(c.wide.begin(), c.wide.end());
  kernels::reference_table().gemm(ta, tb, m, n, k, 0.5, a.rounded.data(), lda, b.rounded.data(),
                                  ldb, beta, want.data(), ldc, nullptr);
  const kernels::EitherOut out = wide_c ? kernels::EitherOut(c.wide.data()) : c.narrow.data();
  device_mixed().gemm(ta, tb, m, n, k, 0.5f, a.in(wide_a), lda, b.in(wide_b), ldb, beta, out, ldc,
                      nullptr);
  INFO(m << " x " << n << " x " << k << ", variant " << variant);
  REQUIRE(device_error() == "");
  if (wide_c) {
    CHECK(relative_l2(c.wide, want) <= kMaxRelativeL2);
    return;
  }
  Floats got;
  for (const Bf16 v : c.narrow) got.push_back(to_float(v));
  CHECK(worst_error(got, want, kBf16Rounding) <= 1e-5);
  CHECK(relative_l2(got, want) <= kMaxRelativeL2Bf16);
}

/// What sums over a row, of the same numbers that begin `shift` numbers further on.
template <class T>
std::vector<float> sums_at(const kernels::KernelTable<T>& k, int64_t cols, int64_t shift) {
  const int64_t rows = 3, experts = 9, n = rows * cols;
  const auto place = [&](uint64_t stream) {
    const auto values = Arrays<T>::stored(n, stream, 2);
    std::vector<T> moved(static_cast<size_t>(shift), Arrays<T>::of(NAN));
    moved.insert(moved.end(), values.begin(), values.end());
    return moved;
  };
  const auto x = place(1), dy = place(2);
  const auto gamma = random_values<float>(cols, 4), w = random_values<float>(experts * cols, 5);
  auto y = place(6), dx = place(7), logits = place(8), z = place(9), dz = place(10);
  std::vector<float> mean(rows), rstd(rows), rms(rows), dgamma(cols), dbeta(cols), db(cols),
      dweight(rows);
  std::vector<float> scores(rows * experts);
  k.layernorm(y.data() + shift, mean.data(), rstd.data(), x.data() + shift, gamma.data(),
              gamma.data(), rows, cols, nullptr);
  k.layernorm_dx(dx.data() + shift, dy.data() + shift, x.data() + shift, mean.data(), rstd.data(),
                 gamma.data(), dx.data() + shift, rows, cols, nullptr);
  k.layernorm_dw(dgamma.data(), dbeta.data(), dy.data() + shift, x.data() + shift, mean.data(),
                 rstd.data(), nullptr, nullptr, rows, cols, nullptr);
  k.bias_grad(db.data(), dy.data() + shift, nullptr, rows, cols, nullptr);
  k.rmsnorm(z.data() + shift, rms.data(), x.data() + shift, gamma.data(), 0.01f, rows, cols,
            nullptr);
  k.rmsnorm_dx(dz.data() + shift, dy.data() + shift, x.data() + shift, rms.data(), gamma.data(),
               dz.data() + shift, rows, cols, nullptr);
  k.gate_logits(scores.data(), x.data() + shift, w.data(), nullptr, rows, experts, cols, nullptr);
  const std::vector<int32_t> choice_slot = {2, -1, 0},
                             target = {0, 1, static_cast<int32_t>(cols) - 1};
  k.combine_dweight(dweight.data(), dy.data() + shift, x.data() + shift, choice_slot.data(), rows,
                    1, cols, nullptr);
  double loss = -1;
  k.cross_entropy(&loss, logits.data() + shift, target.data(), 0.25, true, rows, cols, nullptr);
  std::vector<float> all = joined(joined(joined(mean, rstd), joined(dgamma, dbeta)),
                                  joined(joined(db, scores), joined(dweight, rms)));
  all.push_back(static_cast<float>(loss));
  for (const auto* stored : {&y, &dx, &logits, &z, &dz})
    for (int64_t i = shift; i < shift + n; ++i)
      all.push_back(kernels::to_float((*stored)[static_cast<size_t>(i)]));
  return all;
}

}  // namespace

TEST_CASE("a GEMM takes and gives bfloat16 and float32 in all mixtures", "[gemm]") {
  for (const auto& [m, n, k] :
       std::vector<std::array<int64_t, 3>>{{3, 5, 7}, {8, 1, 4}, {33, 40, 70}})
    for (int variant = 0; variant < 128; ++variant) check_product(m, n, k, variant);
}

TEST_CASE("a GEMM of bfloat16 without rows does nothing, without depth scales c", "[gemm]") {
  const Narrow a(1, kernels::to_bf16(7));
  const Floats b(1, 7.0f);
  Narrow c(6, kernels::to_bf16(8));
  const auto& table = device_mixed();
  table.gemm(false, true, 0, 3, 4, 1, a.data(), 4, a.data(), 4, 0, c.data(), 3, nullptr);
  table.gemm(true, false, 2, 3, 0, 1, a.data(), 2, b.data(), 3, 0.5, c.data(), 3, nullptr);
  CHECK(same_bits(c, Narrow(6, kernels::to_bf16(4))));
  CHECK(device_error() == "");
}

TEST_CASE("a GEMM passes NaN and infinity on, and beta 0 overwrites a NaN", "[gemm]") {
  const Floats x = {NAN, 1, INFINITY, 1};
  const Narrow w = {kernels::to_bf16(2), kernels::to_bf16(3)};
  Narrow y(2, kernels::to_bf16(NAN));
  device_mixed().gemm(false, false, 2, 1, 2, 1, x.data(), 2, w.data(), 1, 0, y.data(), 1, nullptr);
  CHECK(std::isnan(to_float(y[0])));
  CHECK(to_float(y[1]) == INFINITY);
  const Narrow one(1, kernels::to_bf16(1));
  y[0] = kernels::to_bf16(NAN);
  device_mixed().gemm(false, false, 1, 1, 1, 1, one.data(), 1, one.data(), 1, 0, y.data(), 1,
                      nullptr);
  CHECK(to_float(y[0]) == 1);
  CHECK(device_error() == "");
}

TEST_CASE("sums over rows have the same bits wherever the rows begin") {
  // Whole packs, odd rows, and rows of which a thread takes several packs.
  for (const int64_t cols : {2, 40, 77, 2056, 2061}) {
    const auto narrow = sums_at(device_mixed(), cols, 0), wide = sums_at(device_table(), cols, 0);
    for (int64_t shift = 1; shift < 9; ++shift) {
      INFO(cols << " columns, " << shift << " off");
      CHECK(same_bits(sums_at(device_mixed(), cols, shift), narrow));
      if (shift < 5) CHECK(same_bits(sums_at(device_table(), cols, shift), wide));
    }
  }
  CHECK(device_error() == "");
}

TEST_CASE("a row's logits of bfloat16 have the same bits in any part of a batch") {
  const int64_t tokens = 7, experts = 19, hidden = 45;
  const auto x = Arrays<Bf16>::stored(tokens * hidden, 1);
  const auto w = random_values<float>(experts * hidden, 2);
  Floats all(tokens * experts);
  device_mixed().gate_logits(all.data(), x.data(), w.data(), nullptr, tokens, experts, hidden,
                             nullptr);
  for (int64_t first = 0; first < tokens; ++first)
    for (int64_t count = 1; first + count <= tokens; ++count) {
      Floats part(count * experts);
      device_mixed().gate_logits(part.data(), x.data() + first * hidden, w.data(), nullptr, count,
                                 experts, hidden, nullptr);
      REQUIRE(std::equal(part.begin(), part.end(), all.begin() + first * experts));
    }
}

TEST_CASE("NaN and infinity in an activation come out where the reference has them") {
  for (const int64_t hidden : {5, 24})
    for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}})
      agree_on_both(1e-5, [&](const auto& k, auto arrays) {
        using A = decltype(arrays);
        using T = typename A::Stored;
        using W = typename A::Wide;
        const int64_t rows = 4, n = rows * hidden;
        auto x = A::stored(n, 1);
        x[static_cast<size_t>(hidden + 1)] = A::of(bad);
        const auto other = A::stored(n, 4);
        const auto weight = A::wide(rows, 2), gate = A::wide(3 * hidden, 3);
        const std::vector<int32_t> slot = {1, 0, -1, 2};
        std::vector<T> y(n), sum(n), out(n), back(n), din(n);
        std::vector<W> mean(rows), rstd(rows), db(hidden), logits(rows * 3), dweight(rows);
        std::vector<W> dwpe(2 * hidden);
        k.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gate.data(), gate.data(), rows,
                    hidden, nullptr);
        k.add(sum.data(), x.data(), x.data(), n, nullptr);
        k.dispatch(out.data(), x.data(), slot.data(), rows, 1, hidden, nullptr);
        k.combine(back.data(), x.data(), weight.data(), slot.data(), nullptr, rows, 1, hidden,
                  nullptr);
        k.combine_dx(din.data(), x.data(), weight.data(), slot.data(), rows, 1, hidden, nullptr);
        k.combine_dweight(dweight.data(), x.data(), other.data(), slot.data(), rows, 1, hidden,
                          nullptr);
        k.bias_grad(db.data(), x.data(), nullptr, rows, hidden, nullptr);
        k.embedding_dwpe(dwpe.data(), x.data(), nullptr, rows, 2, hidden, nullptr);
        k.gate_logits(logits.data(), x.data(), gate.data(), nullptr, rows, 3, hidden, nullptr);
        return Results<T>{
            joined(joined(joined(y, sum), joined(out, back)), din),
            joined(joined(joined(mean, rstd), joined(db, dwpe)), joined(logits, dweight))};
      });
}

TEST_CASE("the loss of bfloat16 logits of which one is NaN is NaN, and so is their gradient") {
  Narrow logits(21, kernels::to_bf16(1));
  logits[13] = kernels::to_bf16(NAN);
  const int32_t target = 0;
  double loss = -1;
  device_mixed().cross_entropy(&loss, nullptr, nullptr, 1, true, 0, 4, nullptr);
  CHECK(loss == 0);
  device_mixed().cross_entropy(&loss, logits.data(), &target, 1, true, 1, 21, nullptr);
  CHECK(std::isnan(loss));
  for (const Bf16 g : logits) CHECK(std::isnan(to_float(g)));
}
