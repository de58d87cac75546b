// The kernels at sizes that fill a GPU: more elements than a grid has threads, rows beyond one
// block, sequences of many tiles. Too slow for the emulation.
#include "tests/cuda/on_device.h"
#include "tests/kernels/conformance.h"

using namespace moe;
using namespace moe::test;
using Reference = kernels::KernelTable<double>;

TEST_CASE("elementwise kernels conform over more elements than a grid has threads", "[large]") {
  const int64_t rows = 1501, cols = 1024;
  check<&Reference::gelu>({1e-5, {{1, {4}}}}, rows, cols);
  check<&Reference::gelu_dx>({1e-5, {{2, {4}}}}, rows, cols);
  check<&Reference::bias_grad>({1e-4}, rows, cols);
  check<&Reference::add>({1e-6}, rows * cols);
}

TEST_CASE("LayerNorm and its gradients conform at the size of a model", "[large]") {
  const int64_t rows = 4096, cols = 768;
  check<&Reference::layernorm>({1e-4, {{3, {3}}}}, rows, cols);
  check<&Reference::layernorm_dx>({1e-4}, rows, cols);
  check<&Reference::layernorm_dw>({1e-4}, rows, cols);
}

TEST_CASE("GEMM conforms at the size of an expert's part, without TF32", "[large]") {
  const int64_t m = 160, n = 384, k = 768;
  const How how = {.tolerance = 1e-5, .same_bits = false};
  const double scale = 0.0625;  // results are of order 1
  check<&Reference::gemm>(how, false, true, m, n, k, scale, k, k, 0.0, n);
  check<&Reference::gemm>(how, false, false, m, k, n, scale, n, k, 0.0, k);
  check<&Reference::gemm>(how, true, false, n, k, m, scale, n, k, 0.0, k);
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

TEST_CASE("cross entropy conforms over GPT-2's vocabulary", "[large]") {
  const int64_t tokens = 40, vocab = 50257;
  for (const int64_t pitch : {vocab, int64_t{50304}})
    check<&Reference::cross_entropy>({2e-6, {{1, {5}}}}, random_ints(tokens, 2, vocab),
                                     1.0 / tokens, true, tokens, vocab, pitch);
}

TEST_CASE("dispatch and combine conform at the size of a layer", "[large]") {
  const int64_t tokens = 2048, k = 2, slots = 4096, hidden = 768;
  std::vector<int32_t> slot_choice(slots, -1), choice_slot(tokens * k, -1);
  for (int32_t choice = 0; choice < tokens * k; ++choice) {
    if (choice % 7 == 0) continue;  // dropped
    const auto slot = static_cast<int32_t>(choice * int64_t{1237} % slots);
    slot_choice[static_cast<size_t>(slot)] = choice;
    choice_slot[static_cast<size_t>(choice)] = slot;
  }
  check<&Reference::dispatch>({0}, slot_choice, slots, k, hidden);
  check<&Reference::dispatch_dx>({1e-5}, choice_slot, tokens, k, hidden);
  check<&Reference::combine>({1e-5}, choice_slot, tokens, k, hidden);
  check<&Reference::combine_dx>({1e-5}, slot_choice, slots, k, hidden);
  check<&Reference::combine_dweight>({1e-5}, choice_slot, tokens, k, hidden);
}
