// Stands in for cublasLt where a test compiles kernels/cuda for the host, beside cublas_v2.h: it
// reads descriptors as the library's documentation has them (cublaslt_rules.h) and makes the
// product and its epilogue in double. What the library may or may not have for a call is the
// heuristic's to say: switches make it refuse.
#pragma once

#include <algorithm>
#include <set>
#include <utility>

#include "tests/cuda/host/cublaslt_rules.h"

/// What it was offered for.
struct cublasLtMatmulAlgo_t {
  uint64_t rows, cols, depth;
  uint32_t alignment[4], of_bias, of_aux;
  bool parts_as_result;  // see sum_of()
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
};

namespace emulation {

/// Which calls the heuristic has an algorithm for.
enum class LtOffers { kAll, kPlain, kNone };
inline LtOffers lt_offers = LtOffers::kAll;
/// Algorithms make only products as large as that which they were offered for.
inline bool lt_one_size = false;
/// Algorithms are offered and then refused.
inline bool lt_refuses = false;
/// Since a test set them to 0.
struct LtCalls {
  int asked = 0, made = 0, fused = 0;
  std::set<std::pair<cudaStream_t, void*>> workspaces;
};
inline LtCalls lt_calls;

/// The workspace of each algorithm.
constexpr size_t kLtWorkspaceBytes = 4096;

inline bool fits(const LtShape& s, const cublasLtMatmulAlgo_t& algo) {
  const bool same = s.d.cols == algo.cols && s.depth() == algo.depth;
  return s.d.rows == algo.rows && s.d.cols <= algo.cols && s.depth() <= algo.depth &&
         (same || !lt_one_size);
}

inline double gelu(double z) {
  return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}
inline double gelu_slope(double z) {
  const double root = std::sqrt(2 / M_PI), t = std::tanh(root * (z + 0.044715 * z * z * z));
  return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * root * (1 + 3 * 0.044715 * z * z);
}

/// The matrices of one product.
template <class Out>
struct LtOperands {
  const moe::kernels::Bf16 *a, *b;
  const Out *c, *bias;
  Out *d, *aux;
};

/// A sum with a bias is rounded before c is added to it, as by cuBLAS 13.1 on an H200.
template <class Out>
void multiply(const LtShape& s, bool parts_as_result, float alpha, float beta,
              const LtOperands<Out>& p) {
  const bool ta = s.operation.op_a == CUBLAS_OP_T, tb = s.operation.op_b == CUBLAS_OP_T;
  const auto depth = static_cast<int64_t>(s.depth());
  for (int64_t j = 0; j < static_cast<int64_t>(s.d.cols); ++j)
    for (int64_t i = 0; i < static_cast<int64_t>(s.d.rows); ++i) {
      double sum = alpha * sum_of<Out>(depth, parts_as_result, [&](int64_t q) {
                     return number(ta ? p.a[i * s.a.ld + q] : p.a[q * s.a.ld + i]) *
                            number(tb ? p.b[q * s.b.ld + j] : p.b[j * s.b.ld + q]);
                   });
      if (s.has_bias()) sum += number(p.bias[i]);
      if (s.has_bias() && beta != 0) {
        Out rounded;
        put(rounded, sum);
        sum = number(rounded);
      }
      if (beta != 0) sum += beta * number(p.c[j * s.c.ld + i]);
      Out* const aux = p.aux + j * s.operation.aux_ld + i;
      if (s.operation.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        sum *= gelu_slope(number(*aux));
      } else if (s.has_aux()) {
        put(*aux, sum);
        sum = gelu(sum);
      }
      put(p.d[j * s.d.ld + i], sum);
    }
}

template <class Out>
void multiply_all(const LtShape& s, bool parts_as_result, float alpha, const void* a, const void* b,
                  float beta, const void* c, void* d) {
  const cublasLtMatmulDescOpaque_t& o = s.operation;
  for (int64_t i = 0; i < s.d.count; ++i)
    multiply<Out>(
        s, parts_as_result, alpha, beta,
        {static_cast<const moe::kernels::Bf16*>(a) + i * s.a.stride,
         static_cast<const moe::kernels::Bf16*>(b) + i * s.b.stride,
         static_cast<const Out*>(c) + i * s.c.stride,
         static_cast<const Out*>(o.bias) + i * o.bias_stride, static_cast<Out*>(d) + i * s.d.stride,
         static_cast<Out*>(o.aux) + i * o.aux_stride});
}

}  // namespace emulation

/// Has nothing for epilogues of rows that are not at 16 bytes, where the library too is choosy.
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t* results,
    int* offered) {
  using namespace emulation;
  ++lt_calls.asked;
  const LtShape s = {*operation, *a, *b, *c, *d};
  check(s);
  if (most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  *offered = 0;
  const bool plain = operation->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  bool vectors = true;
  for (int i = 0; i < 4; ++i) vectors = vectors && preference->alignment[i] >= 16;
  for (const auto* const m : {a, b, c, d}) vectors = vectors && m->ld % 8 == 0;
  if (lt_offers == LtOffers::kNone || (!plain && (lt_offers == LtOffers::kPlain || !vectors)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  cublasLtMatmulAlgo_t algo = {
      d->rows,
      d->cols,
      s.depth(),
      {},
      alignment_of(operation->bias),
      alignment_of(operation->aux),
      (preference->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0};
  std::copy_n(preference->alignment, 4, algo.alignment);
  results[0] = {algo, std::min<size_t>(kLtWorkspaceBytes, preference->workspace_bytes),
                CUBLAS_STATUS_SUCCESS};
  *offered = 1;
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              const cublasLtMatmulAlgo_t* algo,
                                              cublasLtMatmulHeuristicResult_t* result) {
  const emulation::LtShape s = {*operation, *a, *b, *c, *d};
  emulation::check(s);
  if (!emulation::fits(s, *algo)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = emulation::kLtWorkspaceBytes;
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                     const void* alpha, const void* a,
                                     cublasLtMatrixLayout_t a_layout, const void* b,
                                     cublasLtMatrixLayout_t b_layout, const void* beta,
                                     const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                                     cublasLtMatrixLayout_t d_layout,
                                     const cublasLtMatmulAlgo_t* algo, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
  using namespace emulation;
  const LtShape s = {*operation, *a_layout, *b_layout, *c_layout, *d_layout};
  check(s);
  if (!fits(s, *algo)) forbid("an algorithm of another product");
  const void* const all[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    if (alignment_of(all[i]) < algo->alignment[i]) forbid("an operand that is not aligned");
  if (alignment_of(operation->bias) < algo->of_bias || alignment_of(operation->aux) < algo->of_aux)
    forbid("a bias or aux that is not aligned");
  if (lt_refuses) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (workspace_bytes < kLtWorkspaceBytes || !is_allocated(workspace, workspace_bytes))
    forbid("a workspace that is too small or not there");
  cublas_used = *reinterpret_cast<cublasHandle_t>(handle);
  ++lt_calls.made;
  lt_calls.workspaces.insert({stream, workspace});
  if (operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT) ++lt_calls.fused;
  ++(d_layout->count > 1 ? cublas_calls.batched : cublas_calls.single);
  if (d_layout->count == 1) cublas_calls.streams.insert(stream);
  cublas_rows_at_16_bytes = at_16_bytes(a) && at_16_bytes(b) && s.a.ld % 8 == 0 && s.b.ld % 8 == 0;
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const bool parts_as_result = algo->parts_as_result;
  give(stream, [=] {
    std::memset(workspace, 0xff, workspace_bytes);
    s.d.type == CUDA_R_32F
        ? multiply_all<float>(s, parts_as_result, by, a, b, keep, c, d)
        : multiply_all<moe::kernels::Bf16>(s, parts_as_result, by, a, b, keep, c, d);
  });
  return CUBLAS_STATUS_SUCCESS;
}
