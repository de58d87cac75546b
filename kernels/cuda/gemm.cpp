// GEMM by cuBLAS. gemm computes in float32: pedantic math keeps TF32 and emulation by narrower
// types out, whatever the environment says. gemm_bf16 and gemm_mixed round float32 operands to
// bfloat16 and sum their products in float32 on the tensor cores, which pedantic math would keep
// them from; gemm_mixed also takes and gives bfloat16.
// cuBLAS gives the same bits for the same sizes on the same device as long as a handle serves one
// stream; streams that shared one would also share its workspace. Hence handles for each device
// and stream, and beside them the memory of the rounded operands.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cast.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int64_t kRowNumbers = 8;  // rounded rows begin at 16 bytes, as tensor cores want them

/// What one stream of one device keeps. A block of memory that has become too small stays until
/// the stream ends: work under way and recordings, which streams outlive, may still use it. A new
/// one has at least twice its bytes, so those that stay have together no more than it has.
struct Kept {
  cublasHandle_t exact = nullptr, tensor = nullptr;
  std::vector<void*> blocks;
  int64_t bytes = 0;  // of the last block
};

struct Streams {
  std::mutex mutex;
  std::map<std::pair<int, Stream>, Kept> of;
};

/// Never destroyed: a process may end after the driver has gone.
Streams& streams() {
  static auto* all = new Streams;
  return *all;
}

bool accepted(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  keep_error(std::string("cuda: ") + what + ": " + cublasGetStatusString(status));
  return false;
}

/// Of the calling thread's device; null with an error kept. It stays where it is until the stream
/// ends; one thread at a time gives work to a stream.
Kept* kept_of(Stream stream) {
  int device = 0;
  if (!worked(cudaGetDevice(&device), "gemm")) return nullptr;
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  return &all.of[{device, stream}];
}

/// Makes the handle when it is first asked for; false with an error kept.
bool ready(cublasHandle_t& handle, cublasMath_t math, Stream stream) {
  if (handle != nullptr) return true;
  if (!accepted(cublasCreate(&handle), "gemm: cublasCreate")) return false;
  if (accepted(cublasSetStream(handle, static_cast<cudaStream_t>(stream)),
               "gemm: cublasSetStream") &&
      accepted(cublasSetMathMode(handle, math), "gemm: cublasSetMathMode"))
    return true;
  cublasDestroy(std::exchange(handle, nullptr));
  return false;
}

/// At least so many bytes; null with an error kept.
void* room(Kept& kept, int64_t bytes) {
  if (bytes > kept.bytes) {
    const int64_t more = std::max(bytes, 2 * kept.bytes);
    void* block = nullptr;
    const std::string what = "gemm: allocate " + std::to_string(more) + " bytes";
    if (!worked(cudaMalloc(&block, static_cast<size_t>(more)), what.c_str())) return nullptr;
    kept.blocks.push_back(block);
    kept.bytes = more;
  }
  return kept.blocks.back();
}

/// Sizes of an operand in bfloat16, and how many numbers apart its rows begin.
struct Rounded {
  Rounded(int64_t rows_, int64_t cols_)
      : rows(rows_), cols(cols_), stride((cols_ + kRowNumbers - 1) / kRowNumbers * kRowNumbers) {}
  int64_t numbers() const { return rows * stride; }
  int64_t rows, cols, stride;
};

/// How cuBLAS finds an operand.
struct Operand {
  const void* data;
  int64_t stride;
};

Operand as_it_is(EitherIn in, int64_t stride) {
  return {in.data, stride};
}
Operand rounded_into(uint16_t* to, const Rounded& sizes, EitherIn in, int64_t stride,
                     Stream stream) {
  cast_to_bf16(to, sizes.stride, static_cast<const float*>(in.data), stride, sizes.rows, sizes.cols,
               stream);
  return {to, sizes.stride};
}

cublasOperation_t operation(bool transpose) {
  return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

void forget_gemm(Stream stream) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (auto at = all.of.begin(); at != all.of.end();) {
    if (at->first.second != stream) {
      ++at;
      continue;
    }
    for (const cublasHandle_t handle : {at->second.exact, at->second.tensor})
      if (handle != nullptr) accepted(cublasDestroy(handle), "end_stream: cublasDestroy");
    // Waits for what the device still does with it.
    for (void* const block : at->second.blocks) worked(cudaFree(block), "end_stream: gemm");
    at = all.of.erase(at);
  }
}

/// cuBLAS is column-major: it sees the transpose of each matrix, so c' = op(b)' * op(a)'.
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
          const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
          int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  Kept* const kept = kept_of(stream);
  if (kept == nullptr || !ready(kept->exact, CUBLAS_PEDANTIC_MATH, stream)) return;
  accepted(cublasSgemm_64(kept->exact, operation(transpose_b), operation(transpose_a), n, m, k,
                          &alpha, b, ldb, a, lda, &beta, c, ldc),
           "gemm");
}

void gemm_bf16(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c,
               int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  if (k == 0)  // there is nothing to round
    return gemm(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, stream);
  Kept* const kept = kept_of(stream);
  if (kept == nullptr || !ready(kept->tensor, CUBLAS_DEFAULT_MATH, stream)) return;
  const Rounded left = transpose_a ? Rounded(k, m) : Rounded(m, k);
  const Rounded right = transpose_b ? Rounded(n, k) : Rounded(k, n);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(uint16_t));
  auto* const a16 =
      static_cast<uint16_t*>(room(*kept, kBytes * (left.numbers() + right.numbers())));
  if (a16 == nullptr) return;
  uint16_t* const b16 = a16 + left.numbers();
  cast_to_bf16(a16, left.stride, a, lda, left.rows, left.cols, stream);
  cast_to_bf16(b16, right.stride, b, ldb, right.rows, right.cols, stream);
  accepted(cublasGemmEx_64(kept->tensor, operation(transpose_b), operation(transpose_a), n, m, k,
                           &alpha, b16, CUDA_R_16BF, right.stride, a16, CUDA_R_16BF, left.stride,
                           &beta, c, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
           "gemm_bf16");
}

void gemm_mixed(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                EitherIn a, int64_t lda, EitherIn b, int64_t ldb, float beta, EitherOut c,
                int64_t ldc, Stream stream) {
  if (m == 0 || n == 0) return;
  Kept* const kept = kept_of(stream);
  if (kept == nullptr || !ready(kept->tensor, CUBLAS_DEFAULT_MATH, stream)) return;
  const Rounded left = transpose_a ? Rounded(k, m) : Rounded(m, k);
  const Rounded right = transpose_b ? Rounded(n, k) : Rounded(k, n);
  const bool round_a = a.wide && k > 0, round_b = b.wide && k > 0;
  const int64_t numbers = (round_a ? left.numbers() : 0) + (round_b ? right.numbers() : 0);
  uint16_t* to = nullptr;
  if (numbers > 0) {
    to = static_cast<uint16_t*>(room(*kept, numbers * static_cast<int64_t>(sizeof(uint16_t))));
    if (to == nullptr) return;
  }
  const Operand x = round_a ? rounded_into(to, left, a, lda, stream) : as_it_is(a, lda);
  if (round_a) to += left.numbers();
  const Operand y = round_b ? rounded_into(to, right, b, ldb, stream) : as_it_is(b, ldb);
  accepted(cublasGemmEx_64(kept->tensor, operation(transpose_b), operation(transpose_a), n, m, k,
                           &alpha, y.data, CUDA_R_16BF, y.stride, x.data, CUDA_R_16BF, x.stride,
                           &beta, c.data, c.wide ? CUDA_R_32F : CUDA_R_16BF, ldc,
                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
           "gemm_mixed");
}

}  // namespace moe::kernels::cuda
