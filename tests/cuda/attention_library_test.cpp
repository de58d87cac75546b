// Attention of bfloat16 where a library may run it: on a GPU with cuDNN, whose shapes these are.
// Elsewhere the plain kernels run.
#include "tests/cuda/attention_bf16.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("attention of bfloat16 by a library agrees with the reference for heads of its sizes") {
  for (const int64_t head_dim : {8, 32, 64, 80, 128}) agree({2, 66, 1, head_dim});
}

TEST_CASE("attention of bfloat16 by a library agrees for sequences that fill no tile") {
  for (const int64_t seq : {1, 3, 7, 64, 127, 200}) agree({4, seq, 1, 32});
}

TEST_CASE("attention of bfloat16 by a library keeps sequences and heads apart") {
  agree({2, 40, 3, 32});
  agree({2, 7, 2, 64});
}

TEST_CASE("attention of bfloat16 by a library bears scores that are large") {
  const AttentionShape s = {2, 150, 1, 64};
  const Inputs in(s, 30);
  const Mixed got = run(s, in);
  const auto want =
      run(kernels::reference_table(), s, widened<double>(in.qkv), widened<double>(in.dctx));
  CHECK(relative_l2(widened<float>(got.ctx), want.ctx) < kMaxBf16);
  CHECK(relative_l2(got.lse, want.lse) < kMaxLse);
}
