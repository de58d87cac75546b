// The reference itself: against numbers worked out by hand and against central differences.
#include <functional>

#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::AttentionShape;
using kernels::ScoreRule;
using kernels::WeightRule;

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

TEST_CASE("reference gradients of layernorm are its slopes") {
  const int64_t rows = 3, cols = 5;
  const auto x = random_values<double>(15, 1), gamma = random_values<double>(5, 2);
  const auto beta = random_values<double>(5, 3), dy = random_values<double>(15, 4);
  Values y(15), mean(3), rstd(3), dx(15), dgamma(5), dbeta(5);
  const auto loss = [&](const Values& x, const Values& gamma, const Values& beta) {
    reference.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(),
                        rows, cols, nullptr);
    return dot(y, dy);
  };
  loss(x, gamma, beta);
  reference.layernorm_dx(dx.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(),
                         nullptr, rows, cols, nullptr);
  reference.layernorm_dw(dgamma.data(), dbeta.data(), dy.data(), x.data(), mean.data(), rstd.data(),
                         nullptr, nullptr, rows, cols, nullptr);
  check_gradient(x, dx, [&](const Values& v) { return loss(v, gamma, beta); });
  check_gradient(gamma, dgamma, [&](const Values& v) { return loss(x, v, beta); });
  check_gradient(beta, dbeta, [&](const Values& v) { return loss(x, gamma, v); });
}

TEST_CASE("reference rmsnorm of (3, 4) divides by the root of 12.5, and its gradients are slopes") {
  const double eps = 0.25;
  Values y(15), rstd(3), dx(15), dgamma(5);
  const Values pair = {3, 4}, two = {2, 1};
  reference.rmsnorm(y.data(), rstd.data(), pair.data(), two.data(), eps, 1, 2, nullptr);
  CHECK(rstd[0] == Approx(1 / std::sqrt(12.75)));
  CHECK(y[0] == Approx(6 * rstd[0]));
  CHECK(y[1] == Approx(4 * rstd[0]));
  const auto x = random_values<double>(15, 1), gamma = random_values<double>(5, 2);
  const auto dy = random_values<double>(15, 4);
  const auto loss = [&](const Values& x, const Values& gamma) {
    reference.rmsnorm(y.data(), rstd.data(), x.data(), gamma.data(), eps, 3, 5, nullptr);
    return dot(y, dy);
  };
  loss(x, gamma);
  reference.rmsnorm_dx(dx.data(), dy.data(), x.data(), rstd.data(), gamma.data(), nullptr, 3, 5,
                       nullptr);
  reference.rmsnorm_dw(dgamma.data(), dy.data(), x.data(), rstd.data(), nullptr, 3, 5, nullptr);
  check_gradient(x, dx, [&](const Values& v) { return loss(v, gamma); });
  check_gradient(gamma, dgamma, [&](const Values& v) { return loss(x, v); });
}

TEST_CASE("reference gelu has its known values and slopes") {
  const Values x = {-3, -1, -0.2, 0, 0.5, 1, 4}, dy = random_values<double>(7, 1);
  Values y(7), dx(7);
  reference.gelu(y.data(), x.data(), nullptr, 1, 7, nullptr);
  CHECK(y[3] == 0);
  CHECK(y[5] == Approx(0.8411919906));  // the tanh form; the erf form gives 0.8413447461
  CHECK(y[1] == Approx(-0.1588080094));
  reference.gelu_dx(dx.data(), dy.data(), x.data(), nullptr, 1, 7, nullptr);
  check_gradient(x, dx, [&](const Values& v) {
    reference.gelu(y.data(), v.data(), nullptr, 1, 7, nullptr);
    return dot(y, dy);
  });
}

TEST_CASE("reference gated activations have their formulas' values, and their slopes") {
  Values y(4), dx(8);
  const Values x = {-3, 0.5, 1, 4, 2, -0.3, 5, 0.7}, dy = random_values<double>(4, 1);
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (const kernels::GatedForm form : {kernels::GatedForm{}, {2.5, 1.702, 1}}) {
    reference.silu_mul(y.data(), x.data(), form, 2, 2, nullptr);  // [2,4]: gates -3, 0.5, 2, -0.3
    const double third = form.offset == 0 ? 2 * sigmoid(2) * 5 : 2 * sigmoid(3.404) * (2.5 + 1);
    CHECK(y[0] == Approx(-3 * sigmoid(-3 * form.alpha) * (1 + form.offset)));
    CHECK(y[2] == Approx(third));
    reference.silu_mul_dx(dx.data(), dy.data(), x.data(), form, 2, 2, nullptr);
    check_gradient(x, dx, [&](const Values& v) {
      reference.silu_mul(y.data(), v.data(), form, 2, 2, nullptr);
      return dot(y, dy);
    });
  }
}

TEST_CASE("a limit stops the gradients of what is beyond it") {
  const Values x = {3, 1, -9, 9, -3, 3}, dy = {1, 1, 1};  // gates 3, 1, -9
  Values dx(6);
  reference.silu_mul_dx(dx.data(), dy.data(), x.data(), {2, 1, 0}, 1, 3, nullptr);
  CHECK((dx[0] == 0 && dx[1] != 0 && dx[2] != 0));
  CHECK((dx[3] == 0 && dx[4] == 0 && dx[5] == 0));
}

TEST_CASE("reference attention of two tokens is the softmax by hand") {
  // head_dim 1: q = k = v = token number + 1; scores of token 1: 2 and 4.
  const AttentionShape s = {1, 2, 1, 1};
  const Values qkv = {1, 1, 1, 2, 2, 2};
  Values ctx(2), lse(2);
  reference.attention(ctx.data(), lse.data(), qkv.data(), s, nullptr, nullptr);
  const double p1 = 1 / (1 + std::exp(-2.0));
  CHECK(ctx[0] == 1);
  CHECK(ctx[1] == Approx((1 - p1) * 1 + p1 * 2));
  CHECK(lse[0] == Approx(1));
  CHECK(lse[1] == Approx(std::log(std::exp(2.0) + std::exp(4.0))));
}

TEST_CASE("reference gradients of attention are its slopes") {
  const AttentionShape s = {2, 3, 2, 2};
  const auto qkv = random_values<double>(2 * 3 * 12, 1), dctx = random_values<double>(24, 2);
  Values ctx(24), lse(12), dqkv(qkv.size());
  const auto loss = [&](const Values& v) {
    reference.attention(ctx.data(), lse.data(), v.data(), s, nullptr, nullptr);
    return dot(ctx, dctx);
  };
  loss(qkv);
  reference.attention_dx(dqkv.data(), dctx.data(), ctx.data(), qkv.data(), lse.data(), s, nullptr,
                         nullptr);
  check_gradient(qkv, dqkv, loss);
}

TEST_CASE("reference gradient of cross entropy is its slope, and the loss is the formula") {
  const auto logits = random_values<double>(3 * 5, 1, 4.0);
  const std::vector<int32_t> target = {4, 0, 2};
  const auto loss = [&](Values v) {
    double l = 0;
    reference.cross_entropy(&l, v.data(), target.data(), 0.5, false, 3, 5, nullptr);
    return l;
  };
  double want = 0;
  for (int t = 0; t < 3; ++t) {
    double sum = 0;
    for (int v = 0; v < 5; ++v) sum += std::exp(logits[t * 5 + v]);
    want -= 0.5 * std::log(std::exp(logits[t * 5 + target[t]]) / sum);
  }
  CHECK(loss(logits) == Approx(want));
  Values gradient = logits;
  double ignored;
  reference.cross_entropy(&ignored, gradient.data(), target.data(), 0.5, true, 3, 5, nullptr);
  check_gradient(logits, gradient, loss);
}

TEST_CASE("reference gradient of the gate is the slope of its weights, for every rule") {
  const int64_t tokens = 3, experts = 4, k = 2;
  const std::vector<int32_t> expert = {1, 3, 2, 0, 3, -1};
  const auto logits = random_values<double>(tokens * experts, 1, 2.0);
  const auto dweight = random_values<double>(tokens * k, 2);
  for (const ScoreRule score : {ScoreRule::kSoftmax, ScoreRule::kSigmoid})
    for (const WeightRule rule : {WeightRule::kProb, WeightRule::kRenorm, WeightRule::kOne}) {
      Values p(logits.size()), dlogits(logits.size());
      const auto loss = [&](const Values& v) {
        reference.gate_scores(p.data(), v.data(), score, tokens, experts, nullptr);
        double sum = 0;
        for (int64_t choice = 0; choice < tokens * k; ++choice) {
          if (expert[choice] < 0) continue;
          const double* row = p.data() + choice / k * experts;
          double total = 0;
          for (int64_t j = choice / k * k; j < choice / k * k + k; ++j)
            if (expert[j] >= 0) total += row[expert[j]];
          const double weight = rule == WeightRule::kProb     ? row[expert[choice]]
                                : rule == WeightRule::kRenorm ? row[expert[choice]] / total
                                                              : 1.0;
          sum += dweight[choice] * weight;
        }
        return sum;
      };
      loss(logits);
      reference.gate_dlogits(dlogits.data(), dweight.data(), p.data(), expert.data(), rule, score,
                             tokens, experts, k, nullptr);
      check_gradient(logits, dlogits, loss);
    }
}

TEST_CASE("reference gradients of dispatch and combine are their adjoints") {
  const int64_t tokens = 4, k = 2, slots = 6, hidden = 3;
  const std::vector<int32_t> choice_slot = {2, -1, 0, 5, -1, -1, 1, 3};
  const std::vector<int32_t> slot_choice = {2, 6, 0, 7, -1, 3};
  const auto x = random_values<double>(tokens * hidden, 1), dy = random_values<double>(x.size(), 2);
  const auto in = random_values<double>(slots * hidden, 3), w = random_values<double>(8, 4);
  Values out(in.size()), dx(x.size()), y(x.size()), din(in.size()), dw(8);
  reference.dispatch(out.data(), x.data(), slot_choice.data(), slots, k, hidden, nullptr);
  reference.dispatch_dx(dx.data(), in.data(), choice_slot.data(), nullptr, tokens, k, hidden,
                        nullptr);
  CHECK(dot(out, in) == Approx(dot(x, dx)));
  const auto loss = [&](const Values& v, const Values& weight) {
    reference.combine(y.data(), v.data(), weight.data(), choice_slot.data(), x.data(), tokens, k,
                      hidden, nullptr);
    return dot(y, dy);
  };
  reference.combine_dx(din.data(), dy.data(), w.data(), slot_choice.data(), slots, k, hidden,
                       nullptr);
  reference.combine_dweight(dw.data(), dy.data(), in.data(), choice_slot.data(), tokens, k, hidden,
                            nullptr);
  check_gradient(in, din, [&](const Values& v) { return loss(v, w); });
  check_gradient(w, dw, [&](const Values& v) { return loss(in, v); });
}
