// Descriptors of the emulated cublasLt: matrices, operations and preferences, and their attributes
// as far as kernels/cuda sets them. The values of the names are not the library's.
#pragma once

#include <cublas_v2.h>

#include <cstring>
#include <stdexcept>
#include <string>

struct cublasLtContext;
using cublasLtHandle_t = cublasLtContext*;

enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_GELU_AUX = 32 | 128,
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS = CUBLASLT_EPILOGUE_GELU_AUX | CUBLASLT_EPILOGUE_BIAS,
  CUBLASLT_EPILOGUE_DGELU = 64 | 128
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
};
enum cublasLtReductionScheme_t : uint32_t {
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
  CUBLASLT_REDUCTION_SCHEME_MASK = 7
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
  int64_t bias_stride = 0;
  void* aux = nullptr;
  int64_t aux_ld = 0, aux_stride = 0;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t count = 1;
  int64_t stride = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};  // of a, b, c, d
};
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

namespace emulation {

[[noreturn]] inline void forbid(const std::string& what) {
  throw std::runtime_error("cublasLt: " + what);
}

template <class V>
cublasStatus_t take(V& to, const void* from, size_t bytes) {
  if (bytes != sizeof to) forbid("an attribute of another size");
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace emulation

inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation,
                                             cublasComputeType_t compute, cudaDataType_t scale) {
  *operation = {.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType type,
                                               uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = {.type = type, .rows = rows, .cols = cols, .ld = ld};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {};
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t o,
                                                     cublasLtMatmulDescAttributes_t what,
                                                     const void* value, size_t bytes) {
  using emulation::take;
  switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(o->op_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(o->op_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(o->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(o->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(o->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return take(o->bias_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(o->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(o->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return take(o->aux_stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t what,
                                                       const void* value, size_t bytes) {
  if (what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    return emulation::take(layout->count, value, bytes);
  return emulation::take(layout->stride, value, bytes);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what,
    const void* value, size_t bytes) {
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return emulation::take(preference->workspace_bytes, value, bytes);
  if (what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return emulation::take(preference->reductions, value, bytes);
  return emulation::take(preference->alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                         value, bytes);
}
