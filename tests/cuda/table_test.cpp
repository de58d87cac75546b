// What the table says beside its kernels: handles of cuBLAS, and entries without a kernel. On the
// host; nothing here runs on a GPU.
#include <cublas_v2.h>

#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulated.h"

using namespace moe;
using namespace moe::test;

TEST_CASE("a GEMM keeps float32 and has a handle for each stream, which goes with the stream") {
  const auto& table = kernels::cuda::table();
  const int before = emulation::cublas_handles;
  int streams[3] = {};
  const float a = 3, b = 5;
  for (int round = 0; round < 2; ++round)
    for (int& stream : streams) {
      float c = 0;
      table.gemm(false, false, 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1, &stream);
      CHECK(c == 15);
      CHECK(emulation::cublas_used.stream == &stream);
      CHECK(emulation::cublas_used.math == CUBLAS_PEDANTIC_MATH);
    }
  CHECK(emulation::cublas_handles == before + 3);
  kernels::cuda::forget_gemm(&streams[1]);
  CHECK(emulation::cublas_handles == before + 2);
  kernels::cuda::forget_gemm(&streams[0]);
  kernels::cuda::forget_gemm(&streams[2]);
  CHECK(emulation::cublas_handles == before);
  CHECK(kernels::cuda::take_error() == "");
}

TEST_CASE("attention without a kernel says so and touches nothing") {
  const auto& table = kernels::cuda::table();
  const auto said = [](const std::string& op) {
    return kernels::cuda::take_error().find("cuda: " + op + " has no kernel") == 0;
  };
  const kernels::AttentionShape shape = {1, 1, 1, 1};
  table.attn_score(nullptr, nullptr, shape, nullptr);
  CHECK(said("attn_score"));
  table.attn_softmax(nullptr, nullptr, shape, nullptr);
  CHECK(said("attn_softmax"));
  table.attn_context(nullptr, nullptr, nullptr, shape, nullptr);
  CHECK(said("attn_context"));
  table.attn_context_dx(nullptr, nullptr, nullptr, nullptr, nullptr, shape, nullptr);
  CHECK(said("attn_context_dx"));
  table.attn_softmax_dx(nullptr, nullptr, nullptr, shape, nullptr);
  CHECK(said("attn_softmax_dx"));
  table.attn_score_dx(nullptr, nullptr, nullptr, shape, nullptr);
  CHECK(said("attn_score_dx"));
}
