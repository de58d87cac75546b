// What the table says beside its kernels: handles of cuBLAS, and entries without a kernel. On the
// host; nothing here runs on a GPU.
#include <cublas_v2.h>

#include "kernels/cuda/device_functions.h"
#include "tests/cuda/emulation/emulated.h"

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

TEST_CASE("a GEMM of mixed types keeps a workspace and room for what it rounds, with its stream") {
  using kernels::Bf16;
  const int handles = emulation::cublas_handles;
  int stream = 0;
  const auto& table = kernels::cuda::table_mixed();
  const size_t alive = emulation::things_alive();
  const std::vector<Bf16> x(9, kernels::to_bf16(3));
  const std::vector<float> w(9, 5);
  std::vector<Bf16> y(9);
  table.gemm(false, false, 3, 3, 3, 1, x.data(), 3, x.data(), 3, 0, y.data(), 3, &stream);
  CHECK(to_float(y[8]) == 27);
  CHECK(emulation::things_alive() == alive + 1);
  CHECK(emulation::cublas_used.math == CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  table.gemm(false, false, 3, 3, 3, 1, w.data(), 3, w.data(), 3, 1, y.data(), 3, &stream);
  CHECK(to_float(y[8]) == 102);  // 27 + 75
  CHECK(emulation::things_alive() == alive + 2);
  CHECK(emulation::cublas_rows_at_16_bytes);
  CHECK(emulation::cublas_handles == handles + 1);
  kernels::cuda::forget_gemm(&stream);
  CHECK(emulation::cublas_handles == handles);
  CHECK(emulation::things_alive() == alive);
  CHECK(kernels::cuda::take_error() == "");
}

TEST_CASE("a GEMM of mixed types without room says so and touches nothing") {
  const std::vector<float> x(1, 3);
  std::vector<kernels::Bf16> y(1, kernels::to_bf16(7));
  const int64_t n = int64_t{1} << 20;
  int stream = 0;
  kernels::cuda::table_mixed().gemm(false, false, n, n, n, 1, x.data(), n, y.data(), n, 0, y.data(),
                                    n, &stream);
  CHECK(kernels::cuda::take_error() == "cuda: gemm: allocate 2199023255552 bytes: out of memory");
  CHECK(to_float(y[0]) == 7);
  kernels::cuda::forget_gemm(&stream);
}
