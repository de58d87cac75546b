// Descriptors of calls of cublasLt, made by the library itself, which needs no device for it: it
// takes each attribute that is set, and has it afterwards.
#include "kernels/cuda/products/lt_call.h"

#include <catch2/catch.hpp>

using namespace moe::kernels::cuda;

namespace {

template <class V>
V value_of(LtCall& call, cublasLtMatmulDescAttributes_t what) {
  V value{};
  size_t bytes = 0;
  REQUIRE(cublasLtMatmulDescGetAttribute(&call.operation, what, &value, sizeof value, &bytes) ==
          CUBLAS_STATUS_SUCCESS);
  CHECK(bytes == sizeof value);
  return value;
}
template <class V>
V value_of(cublasLtMatrixLayoutOpaque_t& matrix, cublasLtMatrixLayoutAttribute_t what) {
  V value{};
  size_t bytes = 0;
  REQUIRE(cublasLtMatrixLayoutGetAttribute(&matrix, what, &value, sizeof value, &bytes) ==
          CUBLAS_STATUS_SUCCESS);
  CHECK(bytes == sizeof value);
  return value;
}

alignas(16) char place[6][16];

/// Products of m, n, k = 32, 24, 16, all of whose operands have places.
GemmCall product() {
  static const float bias[24] = {};
  GemmCall p = {32, 24, 16, place[0], place[1], place[2], bias, place[3], place[4], place[5]};
  p.rounded_bias = place[3];
  return p;
}

void check_matrix(cublasLtMatrixLayoutOpaque_t& m, uint64_t rows, uint64_t cols, int64_t ld,
                  const Batch& batch, int64_t apart) {
  CHECK(value_of<uint64_t>(m, CUBLASLT_MATRIX_LAYOUT_ROWS) == rows);
  CHECK(value_of<uint64_t>(m, CUBLASLT_MATRIX_LAYOUT_COLS) == cols);
  CHECK(value_of<int64_t>(m, CUBLASLT_MATRIX_LAYOUT_LD) == ld);
  CHECK(value_of<int32_t>(m, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) == batch.count);
  CHECK(value_of<int64_t>(m, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) ==
        (batch.count == 1 ? 0 : apart));
}

}  // namespace

TEST_CASE("cublasLt takes each attribute of each epilogue, and has what was set") {
  for (const int given : {0, 1, 2, 3, 4, 5, 8})
    for (const int64_t count : {1, 5})
      for (const bool wide_c : {false, true}) {
        if (wide_c && given != 0) continue;
        GemmCall p = product();
        if ((given & 1) == 0) p.bias = nullptr;
        if ((given & 2) == 0) p.add = nullptr;
        if ((given & 4) == 0) p.before_gelu = nullptr;
        if ((given & 8) == 0) p.gelu_at = nullptr;
        const bool ta = given == 1, tb = given != 2;
        const Common s = {ta, tb, 1, ta ? 32 : 16, tb ? 16 : 24, 0, 24, false, wide_c};
        const Batch batch = {count, 512, 384, 768, 1536, 24, 800};
        INFO("given " << given << ", count " << count);
        LtCall call;
        REQUIRE(describe(call, s, p, batch) == CUBLAS_STATUS_SUCCESS);
        check_matrix(call.a, tb ? 16 : 24, tb ? 24 : 16, s.ldb, batch, batch.b);
        check_matrix(call.b, ta ? 32 : 16, ta ? 16 : 32, s.lda, batch, batch.a);
        check_matrix(call.c, 24, 32, 24, batch, (given & 2) != 0 ? batch.add : batch.c);
        check_matrix(call.d, 24, 32, 24, batch, batch.c);
        CHECK(value_of<int32_t>(call, CUBLASLT_MATMUL_DESC_TRANSA) ==
              (tb ? CUBLAS_OP_T : CUBLAS_OP_N));
        CHECK(value_of<int32_t>(call, CUBLASLT_MATMUL_DESC_TRANSB) ==
              (ta ? CUBLAS_OP_T : CUBLAS_OP_N));
        CHECK(value_of<uint32_t>(call, CUBLASLT_MATMUL_DESC_EPILOGUE) ==
              static_cast<uint32_t>(*lt_epilogue(p)));
        if (p.bias != nullptr) {
          CHECK(value_of<const void*>(call, CUBLASLT_MATMUL_DESC_BIAS_POINTER) == p.rounded_bias);
          CHECK(value_of<int32_t>(call, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) == CUDA_R_16BF);
          CHECK(value_of<int64_t>(call, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE) ==
                (count == 1 ? 0 : batch.bias));
        }
        if (p.aux() != nullptr) {
          CHECK(value_of<const void*>(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) == p.aux());
          CHECK(value_of<int64_t>(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) == 24);
          CHECK(value_of<int64_t>(call, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE) ==
                (count == 1 ? 0 : batch.aux));
        }
      }
}

TEST_CASE("what cublasLt has no epilogue for is GELU with a summand and a slope with anything") {
  for (int given = 0; given < 16; ++given) {
    GemmCall p = product();
    if ((given & 1) == 0) p.bias = nullptr;
    if ((given & 2) == 0) p.add = nullptr;
    if ((given & 4) == 0) p.before_gelu = nullptr;
    if ((given & 8) == 0) p.gelu_at = nullptr;
    const bool has = given < 4 || given == 4 || given == 5 || given == 8;
    if ((given & 12) != 12) CHECK(lt_epilogue(p).has_value() == has);
  }
}

TEST_CASE("the library's GELU and bias are those that its header names") {
  GemmCall p = product();
  p.gelu_at = p.add = nullptr;
  CHECK(lt_epilogue(p) == CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
  p.bias = nullptr;
  CHECK(lt_epilogue(p) == CUBLASLT_EPILOGUE_GELU_AUX);
  p.gelu_at = p.before_gelu;
  p.before_gelu = nullptr;
  CHECK(lt_epilogue(p) == CUBLASLT_EPILOGUE_DGELU);
}
