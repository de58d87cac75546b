// The embedding and its gradients; gradients are summed over tokens in ascending order.
#include "kernels/cuda/device.h"
#include "kernels/cuda/functions.h"

namespace moe::kernels::cuda {
namespace {

// Rows of dwte per block: the block reads the token ids once for all of them.
constexpr int kVocabRows = 8;

template <class T, int N>
__global__ void embedding_kernel(T* x, const int32_t* ids, const float* wte, const float* wpe,
                                 int64_t seq, int64_t hidden) {
  const int64_t t = blockIdx.x;
  const float* token = ids[t] < 0 ? nullptr : wte + ids[t] * hidden;
  const float* place = wpe ? wpe + t % seq * hidden : nullptr;
  for (int64_t c = threadIdx.x * N; c < hidden; c += kThreads * N) {
    const auto a = load_or_zero<N>(token, c), b = load_or_zero<N>(place, c);
    store(x + t * hidden + c, numbers<N>([&](int j) { return a.at[j] + b.at[j]; }));
  }
}

/// Returns how many threads of the block have `wanted` set, and writes to *rank how many of these
/// have a lower number than this thread. `shared` has kWarps elements and may be used again
/// afterwards.
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

constexpr int kListed = 4 * kThreads, kAhead = 4;

/// Adds columns c to c + N - 1 of the rows of dx to their rows of dwte, in the order of the list;
/// kAhead rows of dx are read at once, and a row of dwte once for tokens that follow each other.
template <class T, int N>
__device__ void add_listed(float* dwte, const T* dx, const int* token_at, const int* row_at,
                           int count, int64_t c, int64_t hidden) {
  int row = -1;
  Numbers<N> sum{};
  for (int i = 0; i < count; i += kAhead) {
    Numbers<N> grad[kAhead];
    for (int k = 0; k < kAhead; ++k)
      if (i + k < count) grad[k] = load<N>(dx + token_at[i + k] * hidden + c);
    for (int k = 0; k < kAhead; ++k) {
      if (i + k >= count) break;
      if (row_at[i + k] != row) {
        if (row >= 0) store(dwte + row * hidden + c, sum);
        row = row_at[i + k];
        sum = load<N>(dwte + row * hidden + c);
      }
      for (int j = 0; j < N; ++j) sum.at[j] += grad[k].at[j];
    }
  }
  if (row >= 0) store(dwte + row * hidden + c, sum);
}

/// A block owns kVocabRows rows of dwte and reads all ids. It lists the tokens of its rows in
/// order; then each thread adds its columns of these tokens' rows of dx.
template <class T, int N>
__global__ void embedding_dwte_kernel(float* dwte, const int32_t* ids, const T* dx,
                                      const float* acc, int64_t tokens, int64_t vocab,
                                      int64_t hidden) {
  __shared__ int shared[kWarps], token_at[kListed], row_at[kListed];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kVocabRows;
  const int64_t last = first + kVocabRows < vocab ? first + kVocabRows : vocab;
  for (int64_t v = first; v < last; ++v)
    for (int64_t c = threadIdx.x * N; c < hidden; c += kThreads * N)
      store(dwte + v * hidden + c, acc ? load<N>(acc + v * hidden + c) : Numbers<N>{});
  for (int64_t chunk = 0; chunk < tokens; chunk += kListed) {
    int count = 0;
    for (int64_t from = chunk; from < chunk + kListed && from < tokens; from += kThreads) {
      const int64_t t = from + threadIdx.x;
      const int id = t < tokens ? ids[t] : -1;
      const bool mine = id >= first && id < last;
      int at;
      const int found = rank_in_block(mine, &at, shared);
      if (mine) {
        token_at[count + at] = static_cast<int>(t);
        row_at[count + at] = id;
      }
      count += found;
    }
    __syncthreads();
    for (int64_t c = threadIdx.x * N; c < hidden; c += kThreads * N)
      add_listed<T, N>(dwte, dx, token_at, row_at, count, c, hidden);
    // rank_in_block() of the next iteration has a barrier before the lists are overwritten.
  }
}

template <class T, int N>
__global__ void embedding_dwpe_kernel(float* dwpe, const T* dx, const float* acc, int64_t n,
                                      int64_t elements) {
  for (int64_t i = thread_number() * N; i < n; i += num_threads() * N) {
    Numbers<N> sum{};
    for (int64_t j = i; j < elements; j += n) {
      const auto grad = load<N>(dx + j);
      for (int k = 0; k < N; ++k) sum.at[k] += grad.at[k];
    }
    const auto before = acc ? load<N>(acc + i) : Numbers<N>{};
    store(dwpe + i, numbers<N>([&](int k) { return before.at[k] + sum.at[k]; }));
  }
}

template <class T>
void embedding(T* x, const int32_t* ids, const float* wte, const float* wpe, int64_t tokens,
               int64_t seq, int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    launch(embedding_kernel<T, at_once>, tokens, kThreads, stream, x, ids, wte, wpe, seq, hidden);
  };
  in_packs<T>(run, hidden, x, wte, wpe);
}

template <class T>
void embedding_dwte(float* dwte, const int32_t* ids, const T* dx, const float* acc, int64_t tokens,
                    int64_t vocab, int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    launch(embedding_dwte_kernel<T, at_once>, blocks_of(vocab, kVocabRows), kThreads, stream, dwte,
           ids, dx, acc, tokens, vocab, hidden);
  };
  in_packs<T>(run, hidden, dwte, dx, acc);
}

template <class T>
void embedding_dwpe(float* dwpe, const T* dx, const float* acc, int64_t tokens, int64_t seq,
                    int64_t hidden, Stream stream) {
  const auto run = [&](auto at_once) {
    constexpr int N = at_once;
    const int64_t n = seq * hidden;
    launch(embedding_dwpe_kernel<T, N>, stride_blocks(n / N), kThreads, stream, dwpe, dx, acc, n,
           tokens * hidden);
  };
  in_packs<T>(run, hidden, dwpe, dx, acc);
}

}  // namespace

template <class T>
void embedding_kernels(KernelTable<T>& table) {
  table.embedding = embedding<T>;
  table.embedding_dwte = embedding_dwte<T>;
  table.embedding_dwpe = embedding_dwpe<T>;
}
template void embedding_kernels(KernelTable<float>&);
template void embedding_kernels(KernelTable<Bf16>&);

}  // namespace moe::kernels::cuda
