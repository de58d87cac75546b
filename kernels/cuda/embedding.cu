// The embedding and its gradients; sums run over tokens in ascending order.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

constexpr int kVocabRows = 8;  // of dwte a block: the token ids are read once for all of them

template <class V>
__global__ void embedding_kernel(V* x, const int32_t* ids, const V* wte, const V* wpe, int64_t seq,
                                 int64_t hidden) {
  const int64_t t = blockIdx.x;
  const V* token = wte + ids[t] * hidden;
  const V* place = wpe + t % seq * hidden;
  for (int64_t c = threadIdx.x; c < hidden; c += kThreads)
    x[t * hidden + c] = plus(token[c], place[c]);
}

/// Numbers the threads of a block whose `wanted` is set, in thread order, from 0; `shared` holds
/// kWarps values and is free again afterwards. Returns how many there are.
__device__ int rank_in_block(bool wanted, int* rank, int* shared) {
  const unsigned mask = __ballot_sync(kAllLanes, wanted);
  if (lane() == 0) shared[warp()] = __popc(mask);
  __syncthreads();
  int before = __popc(mask & ((1u << lane()) - 1)), all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp()) before += shared[w];
    all += shared[w];
  }
  __syncthreads();
  *rank = before;
  return all;
}

/// A block owns kVocabRows rows of dwte and goes through all ids: it lists those of its rows in
/// order, then each thread adds its columns of the listed tokens. No two threads share an element.
__global__ void embedding_dwte_kernel(float* dwte, const int32_t* ids, const float* dx,
                                      const float* acc, int64_t tokens, int64_t vocab,
                                      int64_t hidden) {
  __shared__ int shared[kWarps];
  __shared__ int64_t token_at[kThreads];
  __shared__ int64_t row_at[kThreads];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kVocabRows;
  const int64_t last = first + kVocabRows < vocab ? first + kVocabRows : vocab;
  for (int64_t v = first; v < last; ++v)
    for (int64_t c = threadIdx.x; c < hidden; c += kThreads)
      dwte[v * hidden + c] = acc ? acc[v * hidden + c] : 0.0f;
  for (int64_t chunk = 0; chunk < tokens; chunk += kThreads) {
    const int64_t t = chunk + threadIdx.x;
    const int64_t id = t < tokens ? ids[t] : -1;
    const bool mine = id >= first && id < last;
    int at;
    const int count = rank_in_block(mine, &at, shared);
    if (mine) {
      token_at[at] = t;
      row_at[at] = id;
    }
    __syncthreads();
    for (int i = 0; i < count; ++i)
      for (int64_t c = threadIdx.x; c < hidden; c += kThreads)
        dwte[row_at[i] * hidden + c] += dx[token_at[i] * hidden + c];
    // The next chunk's ranking waits for all threads before the lists are written again.
  }
}

__global__ void embedding_dwpe_kernel(float* dwpe, const float* dx, const float* acc, int64_t n,
                                      int64_t elements) {
  for (int64_t i = thread_number(); i < n; i += num_threads()) {
    float sum = 0;
    for (int64_t j = i; j < elements; j += n) sum += dx[j];
    dwpe[i] = (acc ? acc[i] : 0.0f) + sum;
  }
}

}  // namespace

void embedding(float* x, const int32_t* ids, const float* wte, const float* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream stream) {
  if (vectorable(hidden, x, wte, wpe)) {
    launch(embedding_kernel<float4>, tokens, kThreads, stream, reinterpret_cast<float4*>(x), ids,
           reinterpret_cast<const float4*>(wte), reinterpret_cast<const float4*>(wpe), seq,
           hidden / 4);
  } else {
    launch(embedding_kernel<float>, tokens, kThreads, stream, x, ids, wte, wpe, seq, hidden);
  }
}

void embedding_dwte(float* dwte, const int32_t* ids, const float* dx, const float* acc,
                    int64_t tokens, int64_t vocab, int64_t hidden, Stream stream) {
  launch(embedding_dwte_kernel, blocks_of(vocab, kVocabRows), kThreads, stream, dwte, ids, dx, acc,
         tokens, vocab, hidden);
}

void embedding_dwpe(float* dwpe, const float* dx, const float* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream stream) {
  const int64_t n = seq * hidden;
  launch(embedding_dwpe_kernel, stride_blocks(n), kThreads, stream, dwpe, dx, acc, n,
         tokens * hidden);
}

}  // namespace moe::kernels::cuda
