#include "kernels/cuda/products/lt.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "kernels/cuda/check.h"

namespace moe::kernels::cuda {
namespace {

struct Algorithm {
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes;
};

/// All sizes, strides, alignments and flags that the heuristic may use.
using Key = std::array<int64_t, 25>;

struct Algorithms {
  std::mutex mutex;
  std::map<Key, std::optional<Algorithm>> of;  // nullopt: the library has none
};

/// Never destroyed, since the process may end after the driver was unloaded.
Algorithms& algorithms() {
  static auto* all = new Algorithms;
  return *all;
}

/// Returns the largest power of two, at most 16, to which all matrices of an operand are aligned.
/// 16 bytes suffice for vectors; with a larger limit, the algorithm could depend on the address.
uint32_t alignment(const void* at, int64_t apart, int64_t bytes) {
  const auto all = reinterpret_cast<uintptr_t>(at) | static_cast<uintptr_t>(apart * bytes) | 16;
  return uint32_t{1} << std::countr_zero(all);
}

struct Alignments {
  Alignments(const Common& s, const GemmCall& p, const Batch& batch)
      : a(alignment(p.a, batch.a, 2)),
        b(alignment(p.b, batch.b, 2)),
        add(p.add == nullptr ? alignment(p.c, batch.c, s.bytes_c())
                             : alignment(p.add, batch.add, s.bytes_c())),
        c(alignment(p.c, batch.c, s.bytes_c())),
        bias(alignment(p.rounded_bias, batch.bias, 2)),
        aux(alignment(p.aux(), batch.aux, 2)) {}
  uint32_t a, b, add, c, bias, aux;
};

/// Returns whether one cublasLt call can compute the product and its epilogue, with pointers
/// aligned as cublasLt requires.
bool suits(const Common& s, const GemmCall& p, const Alignments& at) {
  if (p.k == 0 || !lt_epilogue(p)) return false;
  if (p.bias != nullptr && (p.rounded_bias == nullptr || at.bias < 16)) return false;
  return p.aux() == nullptr || (at.aux == 16 && s.ldc % 8 == 0);
}

int64_t bucket(int64_t rows) {
  constexpr int64_t kStep = 128;
  if (rows > kStep) return (rows + kStep - 1) / kStep * kStep;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
}

/// Returns the largest product in p's bucket; p itself if the batch has several products. Only a
/// size that counts rows of operands in memory is rounded up, since longer rows might exceed their
/// leading dimension.
GemmCall largest(const Common& s, GemmCall p, const Batch& batch) {
  if (batch.count > 1) return p;
  if (!s.transpose_a) p.m = bucket(p.m);
  if (s.transpose_a && !s.transpose_b) p.k = bucket(p.k);
  return p;
}

std::optional<Algorithm> ask(const Lane& lane, LtCall& call, const Alignments& at) {
  cublasLtMatmulPreferenceOpaque_t preference;
  bool all = cublasLtMatmulPreferenceInit(&preference) == CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    all = all && cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof value) ==
                     CUBLAS_STATUS_SUCCESS;
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(lane.workspace_bytes));
  // Where a sum is split among blocks, its parts are float32. Without this preference the library
  // may store the parts in the type of the result, which rounds every part to bfloat16.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, at.b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, at.a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, at.add);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, at.c);
  cublasLtMatmulHeuristicResult_t first = {};
  int offered = 0;
  all = all &&
        cublasLtMatmulAlgoGetHeuristic(reinterpret_cast<cublasLtHandle_t>(lane.handle),
                                       &call.operation, &call.a, &call.b, &call.c, &call.d,
                                       &preference, 1, &first, &offered) == CUBLAS_STATUS_SUCCESS;
  if (!all || offered == 0 || first.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return Algorithm{first.algo, first.workspaceSize};
}

/// Returns the heuristic's first choice for exactly this product.
std::optional<Algorithm> offered_for(const Lane& lane, const Common& s, GemmCall p,
                                     const Batch& batch, const Alignments& at) {
  int device = 0;
  if (!worked(cudaGetDevice(&device), "gemm")) return std::nullopt;
  const Key key = {device,
                   s.transpose_a,
                   s.transpose_b,
                   p.m,
                   p.n,
                   p.k,
                   s.lda,
                   s.ldb,
                   s.ldc,
                   s.wide_c,
                   *lt_epilogue(p),
                   at.a,
                   at.b,
                   at.add,
                   at.c,
                   at.bias,
                   at.aux,
                   batch.count,
                   batch.a,
                   batch.b,
                   batch.c,
                   batch.add,
                   batch.bias,
                   batch.aux,
                   lane.workspace_bytes};
  Algorithms& all = algorithms();
  const std::lock_guard lock(all.mutex);
  const auto [found, is_new] = all.of.try_emplace(key);
  if (!is_new) return found->second;
  // The heuristic reads only the alignment of these pointers.
  const auto place = [](uint32_t at_bytes) { return reinterpret_cast<void*>(uintptr_t{at_bytes}); };
  if (p.rounded_bias != nullptr) p.rounded_bias = place(at.bias);
  if (p.before_gelu != nullptr) p.before_gelu = place(at.aux);
  if (p.gelu_at != nullptr) p.gelu_at = place(at.aux);
  LtCall call;
  if (describe(call, s, p, batch) == CUBLAS_STATUS_SUCCESS) found->second = ask(lane, call, at);
  return found->second;
}

/// Returns the algorithm of p's bucket if it can run `p`, else the heuristic's choice for `p`
/// alone.
std::optional<Algorithm> algorithm_for(const Lane& lane, LtCall& call, const Common& s,
                                       const GemmCall& p, const Batch& batch,
                                       const Alignments& at) {
  const GemmCall most = largest(s, p, batch);
  if (most.m == p.m && most.k == p.k) return offered_for(lane, s, p, batch, at);
  if (auto found = offered_for(lane, s, most, batch, at)) {
    cublasLtMatmulHeuristicResult_t result = {};
    if (cublasLtMatmulAlgoCheck(reinterpret_cast<cublasLtHandle_t>(lane.handle), &call.operation,
                                &call.a, &call.b, &call.c, &call.d, &found->algo,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= static_cast<size_t>(lane.workspace_bytes)) {
      found->workspace_bytes = result.workspaceSize;
      return found;
    }
  }
  return offered_for(lane, s, p, batch, at);
}

}  // namespace

bool multiply_by_lt(const Lane& lane, const Common& s, const GemmCall& p, const Batch& batch) {
  const Alignments at(s, p, batch);
  LtCall call;
  if (!suits(s, p, at) || describe(call, s, p, batch) != CUBLAS_STATUS_SUCCESS) return false;
  const auto found = algorithm_for(lane, call, s, p, batch, at);
  if (!found) return false;
  void* workspace = nullptr;
  if (found->workspace_bytes > 0) {
    workspace = bytes_of(*lane.workspace, static_cast<int64_t>(found->workspace_bytes));
    if (workspace == nullptr) return true;
  }
  const float beta = p.add != nullptr ? 1 : s.beta;
  const cublasStatus_t status = cublasLtMatmul(
      reinterpret_cast<cublasLtHandle_t>(lane.handle), &call.operation, &s.alpha, p.b, &call.a, p.a,
      &call.b, &beta, p.add != nullptr ? p.add : p.c, &call.c, p.c, &call.d, &found->algo,
      workspace, found->workspace_bytes, static_cast<cudaStream_t>(lane.stream));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  accepted(status, "gemm");
  return true;
}

}  // namespace moe::kernels::cuda
