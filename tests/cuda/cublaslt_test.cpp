// The emulated cublasLt is strict: descriptors that the library's documentation forbids do not pass
// for calls that it has no algorithm for.
#include <cublasLt.h>

#include <catch2/catch.hpp>

#include "kernels/cuda/products/lt_call.h"

using namespace moe::kernels::cuda;

namespace {

alignas(16) uint16_t place[64 * 64];

/// GELU(a b + bias) of 8 x 16 x 8, two of them where `count` says so; then what `change` makes of
/// it is shown to the heuristic.
template <class Change>
void ask(Change change, int64_t count = 1) {
  static const float bias[16] = {};
  One p = {8, 16, 8, place, place, place, bias, nullptr, place, nullptr};
  p.rounded_bias = place;
  Common s = {false, false, 1, 8, 16, 0, 16, false, false};
  Batch batch = {count, 64, 128, 128, 0, 16, 128};
  LtCall call;
  const auto describe_all = [&] { REQUIRE(describe(call, s, p, batch) == CUBLAS_STATUS_SUCCESS); };
  describe_all();
  change(s, p, batch, describe_all, call);
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulPreferenceInit(&preference);
  cublasLtMatmulHeuristicResult_t result;
  int offered = 0;
  cublasLtMatmulAlgoGetHeuristic(nullptr, &call.operation, &call.a, &call.b, &call.c, &call.d,
                                 &preference, 1, &result, &offered);
}

}  // namespace

TEST_CASE("descriptors that cublasLt's documentation forbids throw with what is wrong") {
  const auto fine = [](auto&...) {};
  CHECK_NOTHROW(ask(fine));
  CHECK_NOTHROW(ask(fine, 2));
  using Catch::Contains;
  const auto wrong = [](auto set) {
    return [=](Common& s, One& p, Batch& batch, auto& again, LtCall& call) {
      set(s, p, batch);
      again();
      (void)call;
    };
  };
  CHECK_THROWS_WITH(ask(wrong([](Common& s, One&, Batch&) { s.ldc = 20; })), Contains("16 bytes"));
  CHECK_THROWS_WITH(ask(wrong([](Common& s, One&, Batch&) { s.lda = 7; })), Contains("overlap"));
  CHECK_THROWS_WITH(ask(wrong([](Common&, One& p, Batch&) { p.before_gelu = place + 1; })),
                    Contains("aux that is not at 16 bytes"));
  CHECK_THROWS_WITH(ask(wrong([](Common&, One&, Batch& b) { b.c = 127; }), 2),
                    Contains("matrices of d that overlap"));
  CHECK_THROWS_WITH(ask(wrong([](Common&, One&, Batch& b) { b.aux = 132; }), 2),
                    Contains("matrices of aux"));
  CHECK_THROWS_WITH(ask(wrong([](Common&, One& p, Batch&) { p.k = 0; })), Contains("depth"));
  CHECK_THROWS_WITH(ask(wrong([](Common&, One& p, Batch&) { p.rounded_bias = nullptr; })),
                    Contains("a bias that the epilogue does not speak of"));
  CHECK_THROWS_WITH(ask([](Common&, One&, Batch&, auto&, LtCall& call) {
                      call.operation.bias_type = CUDA_R_32F;
                    }),
                    Contains("a bias of another type"));
  CHECK_THROWS_WITH(ask([](Common&, One&, Batch&, auto&, LtCall& call) { call.c.cols = 7; }),
                    Contains("not as large"));
}

TEST_CASE("a call of cublasLt without its workspace, or not as aligned as was said, throws") {
  cublasContext context;
  auto* const handle = reinterpret_cast<cublasLtHandle_t>(&context);
  const One p = {8, 16, 8, place, place, place, nullptr, nullptr, nullptr, nullptr};
  const Common s = {false, false, 1, 8, 16, 0, 16, false, false};
  LtCall call;
  REQUIRE(describe(call, s, p, {}) == CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulPreferenceInit(&preference);
  for (uint32_t& bytes : preference.alignment) bytes = 16;
  cublasLtMatmulHeuristicResult_t result;
  int offered = 0;
  REQUIRE(cublasLtMatmulAlgoGetHeuristic(handle, &call.operation, &call.a, &call.b, &call.c,
                                         &call.d, &preference, 1, &result,
                                         &offered) == CUBLAS_STATUS_SUCCESS);
  const float one = 1, zero = 0;
  const auto multiply = [&](const void* a) {
    return cublasLtMatmul(handle, &call.operation, &one, a, &call.a, place, &call.b, &zero, place,
                          &call.c, place, &call.d, &result.algo, nullptr, 0, nullptr);
  };
  CHECK_THROWS_WITH(multiply(place + 1), Catch::Contains("an operand that is not aligned"));
  CHECK_THROWS_WITH(multiply(place), Catch::Contains("workspace"));
}
