// The reference itself: against numbers worked out by hand. Its gradients are held to central
// differences by tests/ops/gradient_test.cpp, beside what only a kernel takes.
#include <functional>

#include "tests/kernels/attend.h"

using namespace moe;
using namespace moe::test;
using kernels::AttentionShape;

namespace {

using Values = std::vector<double>;
const auto& reference = kernels::reference_table();

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Checks `gradient` of the scalar function f at x by central differences.
void check_gradient(const Values& x, const Values& gradient,
                    const std::function<double(const Values&)>& f) {
  REQUIRE(x.size() == gradient.size());
  const double h = 1e-5;
  for (size_t i = 0; i < x.size(); ++i) {
    Values up = x, down = x;
    up[i] += h;
    down[i] -= h;
    const double slope = (f(up) - f(down)) / (2 * h);
    CHECK(gradient[i] == Approx(slope).margin(1e-7).epsilon(1e-6));
  }
}

}  // namespace

TEST_CASE("reference gemm of 2 x 2 matrices is the product by hand") {
  const Values a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
  Values c(4);
  reference.gemm(false, false, 2, 2, 2, 1, a.data(), 2, b.data(), 2, 0, c.data(), 2, nullptr);
  CHECK(c == Values{19, 22, 43, 50});
  reference.gemm(true, false, 2, 2, 2, 1, a.data(), 2, b.data(), 2, 1, c.data(), 2, nullptr);
  CHECK(c == Values{19 + 26, 22 + 30, 43 + 38, 50 + 44});
  reference.gemm(false, true, 2, 2, 2, 2, a.data(), 2, b.data(), 2, 0, c.data(), 2, nullptr);
  CHECK(c == Values{34, 46, 78, 106});
}

TEST_CASE("reference layernorm of (1, 3) is (-1, 1), scaled and shifted") {
  const Values x = {1, 3}, gamma = {2, 2}, beta = {10, 20};
  Values y(2), mean(1), rstd(1);
  reference.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(), 1, 2,
                      nullptr);
  CHECK(mean[0] == 2);
  CHECK(rstd[0] == Approx(1 / std::sqrt(1 + 1e-5)));
  CHECK(y[0] == Approx(10 - 2 * rstd[0]));
  CHECK(y[1] == Approx(20 + 2 * rstd[0]));
}

TEST_CASE("reference rmsnorm of (3, 4) divides by the root of 12.5") {
  const Values pair = {3, 4}, two = {2, 1};
  Values y(2), rstd(1);
  reference.rmsnorm(y.data(), rstd.data(), pair.data(), two.data(), 0.25, 1, 2, nullptr);
  CHECK(rstd[0] == Approx(1 / std::sqrt(12.75)));
  CHECK(y[0] == Approx(6 * rstd[0]));
  CHECK(y[1] == Approx(4 * rstd[0]));
}

TEST_CASE("reference gelu has its known values") {
  const Values x = {-1, 0, 1};
  Values y(3);
  reference.gelu(y.data(), x.data(), nullptr, 1, 3, nullptr);
  CHECK(y[0] == Approx(-0.1588080094));
  CHECK(y[1] == 0);
  CHECK(y[2] == Approx(0.8411919906));  // the tanh form; the erf form gives 0.8413447461
}

TEST_CASE("reference gated activations have their formulas' values") {
  Values y(4);
  const Values x = {-3, 0.5, 1, 4, 2, -0.3, 5, 0.7};
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (const kernels::GatedForm form : {kernels::GatedForm{}, {2.5, 1.702, 1}}) {
    reference.silu_mul(y.data(), x.data(), nullptr, form, 2, 2,
                       nullptr);  // [2,4]: gates -3, 0.5, 2, -0.3
    const double third = form.offset == 0 ? 2 * sigmoid(2) * 5 : 2 * sigmoid(3.404) * (2.5 + 1);
    CHECK(y[0] == Approx(-3 * sigmoid(-3 * form.alpha) * (1 + form.offset)));
    CHECK(y[2] == Approx(third));
  }
}

TEST_CASE("a limit stops the gradients of what is beyond it") {
  const Values x = {3, 1, -9, 9, -3, 3}, dy = {1, 1, 1};  // gates 3, 1, -9
  Values dx(6);
  reference.silu_mul_dx(dx.data(), nullptr, dy.data(), x.data(), nullptr, {2, 1, 0}, 1, 3, nullptr);
  CHECK((dx[0] == 0 && dx[1] != 0 && dx[2] != 0));
  CHECK((dx[3] == 0 && dx[4] == 0 && dx[5] == 0));
}

TEST_CASE("reference maps have their formulas' values") {
  using kernels::Map;
  const Values x = {-3, 0.5, 1, -0.2}, acc = {1, 2, 3, 4};
  Values y(4);
  for (const Map map : kernels::kMaps) {
    reference.map(y.data(), x.data(), map, 2.5, acc.data(), 4, nullptr);
    for (size_t i = 0; i < 4; ++i) {
      const double f = map == Map::kScale     ? 2.5 * x[i]
                       : map == Map::kSigmoid ? 1 / (1 + std::exp(-x[i]))
                                              : std::max(0.0, x[i]);
      CHECK(y[i] == Approx(acc[i] + f));
    }
  }
}

TEST_CASE("reference products are of numbers or of a row and a number, and row_dot sums them") {
  const Values a = {1, 2, 3, 4, 5, 6}, b = {7, 8, 9, 10, 11, 12}, acc = {1, 1, 1, 1, 1, 1};
  Values y(6), dots(2);
  reference.mul(y.data(), a.data(), b.data(), nullptr, 2, 3, false, nullptr);
  CHECK(y == Values{7, 16, 27, 40, 55, 72});
  reference.mul(y.data(), a.data(), b.data(), acc.data(), 2, 3, true, nullptr);
  CHECK(y == Values{8, 15, 22, 33, 41, 49});
  reference.row_dot(dots.data(), a.data(), b.data(), 2, 3, nullptr);
  CHECK(dots == Values{50, 167});
}

TEST_CASE("columns of heads are cut and joined, shared ones summed and repeated") {
  const Values x = {1, 2, 3, 4, 5, 6};  // one row, two heads of 1 + 2 columns
  Values first(2), second(4), sum(2), back(6);
  reference.split_heads(first.data(), second.data(), x.data(), {2, 1, 2}, 1, nullptr);
  CHECK((first == Values{1, 4} && second == Values{2, 3, 5, 6}));
  reference.join_heads(back.data(), first.data(), second.data(), {2, 1, 2}, 1, nullptr);
  CHECK(back == x);
  reference.split_heads(first.data(), sum.data(), x.data(), {2, 1, 2, true}, 1, nullptr);
  CHECK((first == Values{1, 4} && sum == Values{7, 9}));
  reference.join_heads(back.data(), first.data(), sum.data(), {2, 1, 2, true}, 1, nullptr);
  CHECK(back == Values{1, 7, 9, 4, 7, 9});
}

TEST_CASE("reference rope turns pairs, leaves the rest, and turns them back") {
  // Position 1 of 2 turns by 90 degrees and by 0; columns 1 to 4 of each head of 6.
  const Values angles = {1, 1, 0, 0, 0, 1, 1, 0};
  const Values x = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};
  Values y(12), back(12);
  for (const bool interleaved : {false, true}) {
    kernels::RopeShape s = {2, 2, 1, 6, 1, 2, interleaved};
    s.inverse = false;
    reference.rope(y.data(), x.data(), angles.data(), s, nullptr);
    const Values turned =
        interleaved ? Values{10, -12, 11, 13, 14, 15} : Values{10, -13, 12, 11, 14, 15};
    CHECK(Values(y.begin(), y.begin() + 6) == Values(x.begin(), x.begin() + 6));
    CHECK(Values(y.begin() + 6, y.end()) == turned);
    s.inverse = true;
    reference.rope(back.data(), y.data(), angles.data(), s, nullptr);
    CHECK(back == x);
  }
}

TEST_CASE("scores of turned rows depend on the distance of their positions alone") {
  const kernels::RopeFrequencies f = {2, 1, {1, 0.1f}};
  Values angles(4 * 20);
  reference.rope_angles(angles.data(), f, 20, nullptr);
  const Values q = random_values<double>(4, 1), k = random_values<double>(4, 2);
  const auto score = [&](int64_t i, int64_t j) {
    Values a(4), b(4);
    reference.rope(a.data(), q.data(), angles.data() + 4 * i, {1, 1, 1, 4, 0, 2}, nullptr);
    reference.rope(b.data(), k.data(), angles.data() + 4 * j, {1, 1, 1, 4, 0, 2}, nullptr);
    return dot(a, b);
  };
  CHECK(score(17, 12) == Approx(score(5, 0)).margin(1e-6));  // angles are rounded to float
  CHECK(score(0, 0) == Approx(dot(q, k)));
}

TEST_CASE("reference attention of two tokens is the softmax by hand") {
  // head_dim 1: q = k = v = token number + 1; scores of token 1: 2 and 4.
  const AttentionShape s = {1, 2, 1, 1};
  const Values qkv = {1, 1, 1, 2, 2, 2};
  Values ctx(2), lse(2);
  reference.attention(ctx.data(), lse.data(), in_qkv(qkv.data(), s), s, nullptr, nullptr);
  const double p1 = 1 / (1 + std::exp(-2.0));
  CHECK(ctx[0] == 1);
  CHECK(ctx[1] == Approx((1 - p1) * 1 + p1 * 2));
  CHECK(lse[0] == Approx(1));
  CHECK(lse[1] == Approx(std::log(std::exp(2.0) + std::exp(4.0))));
}

TEST_CASE("reference gradients of attention of every form are its slopes") {
  for (uint64_t number = 0; number < 12; ++number) {
    const Attend a = random_attend(number, 6, 3);
    INFO(a.text());
    const auto in = random_operands(a).as<double>();
    const auto got = attend(reference, a, in);
    Values ctx(got.ctx.size()), lse(got.lse.size());
    const auto check = [&](std::vector<double> AttendOperands<double>::*operand, Values gradient) {
      Values values;  // without the gaps between rows
      std::vector<size_t> places;
      for (size_t i = 0; i < (in.*operand).size(); ++i)
        if (!std::isnan((in.*operand)[i])) places.push_back(i);
      for (const size_t i : places) values.push_back((in.*operand)[i]);
      for (size_t i = 0; i < places.size(); ++i) gradient[i] = gradient[places[i]];
      gradient.resize(places.size());
      check_gradient(values, gradient, [&](const Values& v) {
        auto moved = in;
        for (size_t i = 0; i < places.size(); ++i) (moved.*operand)[places[i]] = v[i];
        reference.attention(ctx.data(), lse.data(), moved.in(), a.s, nullptr, nullptr);
        return dot(ctx, in.dctx);
      });
    };
    check(&AttendOperands<double>::q, got.dq);
    check(&AttendOperands<double>::k, got.dk);
    check(&AttendOperands<double>::v, got.dv);
    if (!a.sinks) continue;
    Values dsinks = got.dsinks;  // added to the sinks themselves
    for (size_t h = 0; h < dsinks.size(); ++h) dsinks[h] -= in.sinks[h];
    check(&AttendOperands<double>::sinks, dsinks);
  }
}

TEST_CASE("reference cross entropy is the formula") {
  const auto logits = random_values<double>(3 * 5, 1, 4.0);
  const std::vector<int32_t> target = {4, 0, 2};
  double want = 0;
  for (int t = 0; t < 3; ++t) {
    double sum = 0;
    for (int v = 0; v < 5; ++v) sum += std::exp(logits[t * 5 + v]);
    want -= 0.5 * std::log(std::exp(logits[t * 5 + target[t]]) / sum);
  }
  double loss = 0;
  reference.cross_entropy(&loss, Values(logits).data(), target.data(), 0.5, false, 3, 5, 5,
                          nullptr);
  CHECK(loss == Approx(want));
}
