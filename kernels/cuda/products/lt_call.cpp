#include "kernels/cuda/products/lt_call.h"

namespace moe::kernels::cuda {
namespace {

/// Fills descriptors, and stops at the first value that the library refuses.
class DescriptorFiller {
 public:
  template <class V>
  void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t what, V value) {
    note([&] { return cublasLtMatmulDescSetAttribute(&operation, what, &value, sizeof value); });
  }
  /// rows, cols: in the library's column-major order.
  void layout(cublasLtMatrixLayoutOpaque_t& matrix, cudaDataType_t type, int64_t rows, int64_t cols,
              int64_t ld, int64_t count, int64_t apart) {
    note([&] {
      return cublasLtMatrixLayoutInit(&matrix, type, static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(cols), ld);
    });
    if (count == 1) return;
    set(matrix, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
    set(matrix, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart);
  }
  template <class Call>
  void note(Call call) {
    if (status == CUBLAS_STATUS_SUCCESS) status = call();
  }
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

 private:
  template <class V>
  void set(cublasLtMatrixLayoutOpaque_t& matrix, cublasLtMatrixLayoutAttribute_t what, V value) {
    note([&] { return cublasLtMatrixLayoutSetAttribute(&matrix, what, &value, sizeof value); });
  }
};

void describe_epilogue(DescriptorFiller& fill, cublasLtMatmulDescOpaque_t& operation,
                       const Common& s, const GemmCall& p, const Batch& batch) {
  fill.set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, *lt_epilogue(p));
  if (p.bias != nullptr) {
    fill.set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.rounded_bias);
    fill.set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(s.type_c()));
    if (batch.count > 1) fill.set(operation, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, batch.bias);
  }
  if (p.aux() != nullptr) {
    fill.set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux());
    fill.set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.ldc);
    if (batch.count > 1)
      fill.set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, batch.aux);
  }
}

}  // namespace

std::optional<cublasLtEpilogue_t> lt_epilogue(const GemmCall& p) {
  if (p.gelu_at != nullptr) {
    if (p.filled()) return std::nullopt;
    return CUBLASLT_EPILOGUE_DGELU;
  }
  if (p.before_gelu != nullptr) {
    if (p.add != nullptr) return std::nullopt;
    return p.bias != nullptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  }
  return p.bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

cublasStatus_t describe(LtCall& call, const Common& s, const GemmCall& p, const Batch& batch) {
  DescriptorFiller fill;
  fill.note([&] { return cublasLtMatmulDescInit(&call.operation, s.compute(), CUDA_R_32F); });
  fill.set(call.operation, CUBLASLT_MATMUL_DESC_TRANSA, s.op_b());
  fill.set(call.operation, CUBLASLT_MATMUL_DESC_TRANSB, s.op_a());
  describe_epilogue(fill, call.operation, s, p, batch);
  fill.layout(call.a, s.type_ab(), s.transpose_b ? p.k : p.n, s.transpose_b ? p.n : p.k, s.ldb,
              batch.count, batch.b);
  fill.layout(call.b, s.type_ab(), s.transpose_a ? p.m : p.k, s.transpose_a ? p.k : p.m, s.lda,
              batch.count, batch.a);
  fill.layout(call.c, s.type_c(), p.n, p.m, s.ldc, batch.count,
              p.add != nullptr ? batch.add : batch.c);
  fill.layout(call.d, s.type_c(), p.n, p.m, s.ldc, batch.count, batch.c);
  return fill.status;
}

}  // namespace moe::kernels::cuda
