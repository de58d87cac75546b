#include "tests/kernels/compare.h"

using namespace moe;
using namespace moe::test;
using kernels::AttentionShape;

namespace {

const std::vector<AttentionShape> kShapes = {{1, 1, 1, 1},    {2, 3, 2, 5},   {1, 16, 3, 8},
                                             {2, 33, 1, 32},  {1, 64, 2, 32}, {1, 70, 2, 17},
                                             {2, 100, 1, 64}, {1, 129, 1, 80}};

int64_t tokens(AttentionShape s) {
  return s.batch * s.seq;
}
int64_t hidden(AttentionShape s) {
  return s.heads * s.head_dim;
}
int64_t scores(AttentionShape s) {
  return s.batch * s.heads * s.seq * s.seq;
}

template <class T>
struct Fused {
  std::vector<T> ctx, lse, dqkv;
};

template <class T>
Fused<T> run_fused(const kernels::KernelTable<T>& k, AttentionShape s, const std::vector<T>& qkv,
                   const std::vector<T>& dctx) {
  Fused<T> out;
  auto work = work_for(k, s);
  out.ctx.resize(dctx.size());
  out.lse.resize(static_cast<size_t>(tokens(s) * s.heads));
  out.dqkv.assign(qkv.size(), T(77));  // every element is to be overwritten
  k.attention(out.ctx.data(), out.lse.data(), in_qkv(qkv.data(), s), s, work.data(), nullptr);
  k.attention_dx(out_qkv(out.dqkv.data(), s), dctx.data(), out.ctx.data(), in_qkv(qkv.data(), s),
                 out.lse.data(), s, work.data(), nullptr);
  return out;
}

}  // namespace

TEST_CASE("the three ops of attention agree with the reference and leave other columns alone") {
  for (const AttentionShape& s : kShapes)
    agree(2e-5, [&](const auto& k, auto zero) {
      using T = decltype(zero);
      const auto qkv = random_values<T>(3 * tokens(s) * hidden(s), 1);
      const auto dctx = random_values<T>(tokens(s) * hidden(s), 2);
      std::vector<T> score(scores(s)), prob(scores(s)), dprob(scores(s)), dscore(scores(s));
      std::vector<T> ctx(dctx.size()), dv(qkv.size(), T(3)), dqk(qkv.size(), T(4));
      k.attn_score(score.data(), qkv.data(), s, nullptr);
      k.attn_softmax(prob.data(), score.data(), s, nullptr);
      k.attn_context(ctx.data(), prob.data(), qkv.data(), s, nullptr);
      k.attn_context_dx(dprob.data(), dv.data(), dctx.data(), prob.data(), qkv.data(), s, nullptr);
      k.attn_softmax_dx(dscore.data(), dprob.data(), prob.data(), s, nullptr);
      k.attn_score_dx(dqk.data(), dscore.data(), qkv.data(), s, nullptr);
      return joined(joined(joined(prob, ctx), joined(dprob, dscore)), joined(dv, dqk));
    });
}

TEST_CASE("fused attention and the three ops give the same context") {
  const AttentionShape s = {2, 37, 3, 24};
  for (const auto* k : kernels::runnable_tables()) {
    const auto qkv = random_values<float>(3 * tokens(s) * hidden(s), 1);
    const auto fused = run_fused(*k, s, qkv, random_values<float>(tokens(s) * hidden(s), 2));
    std::vector<float> prob(scores(s)), ctx(fused.ctx.size());
    k->attn_score(prob.data(), qkv.data(), s, nullptr);
    k->attn_softmax(prob.data(), prob.data(), s, nullptr);
    k->attn_context(ctx.data(), prob.data(), qkv.data(), s, nullptr);
    CHECK(worst_error(ctx, {fused.ctx.begin(), fused.ctx.end()}) <= 1e-6);
  }
}

TEST_CASE("attention with scores of hundreds stays finite and picks the largest") {
  const AttentionShape s = {1, 40, 1, 16};
  for (const auto* k : kernels::runnable_tables()) {
    std::vector<float> qkv(static_cast<size_t>(3 * tokens(s) * hidden(s)));
    for (int64_t t = 0; t < s.seq; ++t)
      for (int64_t c = 0; c < s.head_dim; ++c) {
        qkv[t * 48 + c] = 20;
        qkv[t * 48 + 16 + c] = static_cast<float>(t);  // key t scores 80 t
        qkv[t * 48 + 32 + c] = static_cast<float>(t);
      }
    const auto out = run_fused(*k, s, qkv, std::vector<float>(640, 1.0f));
    for (int64_t t = 0; t < s.seq; ++t) CHECK(out.ctx[t * 16] == Approx(t));
    CHECK(out.lse[39] == Approx(80 * 39));
    CHECK(k->first_nonfinite(out.dqkv.data(), out.dqkv.size()) == -1);
  }
}

TEST_CASE("a NaN in a key reaches the queries that see it") {
  const AttentionShape s = {1, 70, 1, 8};
  for (const auto* k : kernels::runnable_tables()) {
    auto qkv = random_values<float>(3 * tokens(s) * hidden(s), 1);
    qkv[50 * 24 + 8] = NAN;
    const auto out = run_fused(*k, s, qkv, std::vector<float>(560, 1.0f));
    CHECK(k->first_nonfinite(out.ctx.data(), out.ctx.size()) == 50 * 8);
    CHECK(std::isnan(out.ctx[69 * 8]));
    CHECK(std::isnan(out.lse[60]));
  }
}
