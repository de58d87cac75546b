// The kernels at sizes that fill a GPU: more elements than a grid has threads, rows beyond one
// block, sequences of many tiles. Too slow for the emulation.
#include "tests/cuda/on_device.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("elementwise kernels agree over more elements than a grid has threads", "[large]") {
  const int64_t rows = 1501, cols = 1024;
  agree_on_device(1e-5, [&](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto x = random_values<T>(rows * cols, 1, 4), bias = random_values<T>(cols, 2);
    std::vector<T> y(rows * cols), dx = random_values<T>(rows * cols, 3), db(cols);
    k.gelu(y.data(), x.data(), bias.data(), rows, cols, nullptr);
    k.gelu_dx(dx.data(), dx.data(), x.data(), bias.data(), rows, cols, nullptr);
    k.bias_grad(db.data(), dx.data(), nullptr, rows, cols, nullptr);
    k.add(y.data(), y.data(), x.data(), rows * cols, nullptr);
    return joined(joined(y, dx), db);
  });
}

TEST_CASE("LayerNorm and its gradients agree at the size of a model", "[large]") {
  const int64_t rows = 4096, cols = 768;
  agree_on_device(1e-4, [&](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto x = random_values<T>(rows * cols, 1, 3), dy = random_values<T>(rows * cols, 2);
    const auto gamma = random_values<T>(cols, 3), beta = random_values<T>(cols, 4);
    std::vector<T> y(rows * cols), mean(rows), rstd(rows), dx(rows * cols), dgamma(cols);
    std::vector<T> dbeta(cols);
    k.layernorm(y.data(), mean.data(), rstd.data(), x.data(), gamma.data(), beta.data(), rows, cols,
                nullptr);
    k.layernorm_dx(dx.data(), dy.data(), x.data(), mean.data(), rstd.data(), gamma.data(), nullptr,
                   rows, cols, nullptr);
    k.layernorm_dw(dgamma.data(), dbeta.data(), dy.data(), x.data(), mean.data(), rstd.data(),
                   nullptr, nullptr, rows, cols, nullptr);
    return joined(joined(y, dx), joined(dgamma, dbeta));
  });
}

TEST_CASE("GEMM agrees at the size of an expert's part, without TF32", "[large]") {
  const int64_t m = 160, n = 384, k = 768;
  agree_on_device(1e-5, [&](const auto& table, auto zero) {
    using T = decltype(zero);
    const T scale = T(0.0625);  // results are of order 1
    const auto x = random_values<T>(m * k, 1), w = random_values<T>(n * k, 2);
    std::vector<T> y(m * n), dx(m * k), dw(n * k);
    table.gemm(false, true, m, n, k, scale, x.data(), k, w.data(), k, T(0), y.data(), n, nullptr);
    table.gemm(false, false, m, k, n, scale, y.data(), n, w.data(), k, T(0), dx.data(), k, nullptr);
    table.gemm(true, false, n, k, m, scale, y.data(), n, x.data(), k, T(0), dw.data(), k, nullptr);
    return joined(joined(y, dx), dw);
  });
}

TEST_CASE("fused attention agrees over a sequence of many tiles", "[large]") {
  const kernels::AttentionShape s = {1, 515, 2, 64};
  const int64_t n = s.batch * s.seq * s.heads * s.head_dim;
  agree_on_device(2e-4, [&](const auto& k, auto zero) {
    using T = decltype(zero);
    const auto qkv = random_values<T>(3 * n, 1), dctx = random_values<T>(n, 2);
    std::vector<T> ctx(n), lse(s.batch * s.heads * s.seq), dqkv(3 * n);
    auto work = work_for(k, s);
    k.attention(ctx.data(), lse.data(), in_qkv(qkv.data(), s), s, work.data(), nullptr);
    k.attention_dx(out_qkv(dqkv.data(), s), dctx.data(), ctx.data(), in_qkv(qkv.data(), s),
                   lse.data(), s, work.data(), nullptr);
    return joined(joined(ctx, lse), dqkv);
  });
}

TEST_CASE("cross entropy agrees over GPT-2's vocabulary", "[large]") {
  const int64_t tokens = 40, vocab = 50257;
  agree_on_device(2e-6, [&](const auto& k, auto zero) {
    using T = decltype(zero);
    auto logits = random_values<T>(tokens * vocab, 1, 5);
    const auto target = random_ints(tokens, 2, vocab);
    double loss = -1;
    k.cross_entropy(&loss, logits.data(), target.data(), 1.0 / tokens, true, tokens, vocab,
                    nullptr);
    logits.push_back(static_cast<T>(loss));
    return logits;
  });
}

TEST_CASE("dispatch and combine agree at the size of a layer", "[large]") {
  const int64_t tokens = 2048, k = 2, slots = 4096, hidden = 768;
  std::vector<int32_t> slot_choice(slots, -1), choice_slot(tokens * k, -1);
  for (int32_t choice = 0; choice < tokens * k; ++choice) {
    if (choice % 7 == 0) continue;  // dropped
    const auto slot = static_cast<int32_t>(choice * int64_t{1237} % slots);
    slot_choice[static_cast<size_t>(slot)] = choice;
    choice_slot[static_cast<size_t>(choice)] = slot;
  }
  agree_on_device(1e-5, [&](const auto& table, auto zero) {
    using T = decltype(zero);
    const auto x = random_values<T>(tokens * hidden, 1), weight = random_values<T>(tokens * k, 2);
    std::vector<T> rows(slots * hidden), y(tokens * hidden), dx(tokens * hidden),
        dweight(2 * tokens);
    table.dispatch(rows.data(), x.data(), slot_choice.data(), slots, k, hidden, nullptr);
    table.combine(y.data(), rows.data(), weight.data(), choice_slot.data(), x.data(), tokens, k,
                  hidden, nullptr);
    table.combine_dx(rows.data(), y.data(), weight.data(), slot_choice.data(), slots, k, hidden,
                     nullptr);
    table.dispatch_dx(dx.data(), rows.data(), choice_slot.data(), nullptr, tokens, k, hidden,
                      nullptr);
    table.combine_dweight(dweight.data(), dx.data(), rows.data(), choice_slot.data(), tokens, k,
                          hidden, nullptr);
    return joined(joined(y, dx), dweight);
  });
}
