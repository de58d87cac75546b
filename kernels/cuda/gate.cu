// The computations of a gate. A row's bits depend neither on other rows nor on how many there are.
#include "kernels/cuda/functions.h"
#include "kernels/cuda/score_rows.h"

namespace moe::kernels::cuda {
namespace {

// A block computes the logits of kTile tokens for kColumns * E experts from tiles of kDepth columns
// of x and w in shared memory. It has kGroups groups of kColumns * kColumns threads. A group adds
// the products of its own columns of each tile; each of its threads has kColumns tokens times E
// experts. Then the sums of the groups are added in their order.
constexpr int kTile = 64, kDepth = 32, kColumns = 8, kGroups = 4, kShare = kDepth / kGroups;
static_assert(kGroups * kColumns * kColumns == kThreads && kColumns * kColumns == kTile);

/// Packs of a tile, kRows rows of kDepth columns, that a thread reads ahead into registers and then
/// puts into shared memory, where a column is contiguous. Pack i has columns of row i % kRows.
template <class T, int kRows>
struct Tile {
  static constexpr int N = kPack<T>, kPacks = kDepth * kRows / N;
  uint4 bits[(kPacks + kThreads - 1) / kThreads];

  __device__ void read(const T* x, int64_t row, int64_t rows, int64_t c, int64_t cols,
                       bool aligned) {
    int i = static_cast<int>(threadIdx.x);
    for (uint4& pack : bits) {
      pack = make_uint4(0, 0, 0, 0);
      const int64_t r = row + i % kRows, from = c + i / kRows * N;
      const T* const at = x + r * cols + from;
      i += kThreads;
      if (r >= rows || from >= cols) continue;
      if (aligned) {
        pack = *reinterpret_cast<const uint4*>(at);
        continue;
      }
      unsigned words[4] = {};
      for (int j = 0; j < N; ++j) {
        const unsigned word = from + j < cols ? __float_as_uint(load<1>(at + j).at[0]) : 0;
        words[j * 4 / N] |= N == 4 || j % 2 == 1 ? word : word >> 16;
      }
      pack = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  __device__ void put(float (*to)[kRows]) const {
    int i = static_cast<int>(threadIdx.x);
    for (const uint4& pack : bits) {
      const unsigned words[] = {pack.x, pack.y, pack.z, pack.w};
      for (int j = 0; j < N && i < kPacks; ++j) {
        const unsigned word = words[j * 4 / N];
        to[i / kRows * N + j][i % kRows] = __uint_as_float(N == 4       ? word
                                                           : j % 2 == 0 ? word << 16
                                                                        : word & 0xffff0000u);
      }
      i += kThreads;
    }
  }
};

/// The i-th of a thread's N rows or experts, of which all threads have kColumns * N: vectors of 4,
/// where N is at least 4, that lie side by side in shared memory.
template <int N>
__device__ int nth(int thread, int i) {
  constexpr int kVector = N < 4 ? N : 4;
  return i / kVector * kVector * kColumns + thread * kVector + i % kVector;
}
template <int N>
__device__ Numbers<N> load_own(const float* from, int thread) {
  constexpr int kVector = N < 4 ? 1 : 4;
  Numbers<N> all;
  for (int i = 0; i < N; i += kVector) {
    const auto some = load<kVector>(from + nth<N>(thread, i));
    for (int j = 0; j < kVector; ++j) all.at[i + j] = some.at[j];
  }
  return all;
}

template <class T, int E>
__global__ void __launch_bounds__(kThreads, 2)
    gate_logits_kernel(float* logits, const T* x, const float* w, const float* bias, int64_t tokens,
                       int64_t experts, int64_t hidden, bool aligned) {
  constexpr int kExperts = kColumns * E;
  __shared__ struct alignas(16) { float x[2][kDepth][kTile], w[2][kDepth][kExperts]; } tile;
  const int64_t groups = (experts + kExperts - 1) / kExperts;
  const int64_t first_token = blockIdx.x / groups * kTile;
  const int64_t first_expert = blockIdx.x % groups * kExperts;
  const int thread = static_cast<int>(threadIdx.x), group = thread / kTile;
  const int down = thread / kColumns % kColumns, across = thread % kColumns;
  Tile<T, kTile> next_x;
  Tile<float, kExperts> next_w;
  const auto read_ahead = [&](int64_t c) {
    next_x.read(x, first_token, tokens, c, hidden, aligned);
    next_w.read(w, first_expert, experts, c, hidden, aligned);
  };
  float sum[kColumns][E] = {};
  read_ahead(0);
  for (int64_t c = 0, half = 0; c < hidden; c += kDepth, half ^= 1) {
    next_x.put(tile.x[half]);
    next_w.put(tile.w[half]);
    __syncthreads();
    if (c + kDepth < hidden) read_ahead(c + kDepth);
    for (int i = group * kShare; i < (group + 1) * kShare; ++i) {
      const auto a = load_own<kColumns>(tile.x[half][i], down);
      const auto b = load_own<E>(tile.w[half][i], across);
      for (int t = 0; t < kColumns; ++t)
        for (int e = 0; e < E; ++e) sum[t][e] += a.at[t] * b.at[e];
    }
  }
  auto* const all = reinterpret_cast<float(*)[kExperts]>(&tile);
  for (int g = 0; g < kGroups; ++g) {
    __syncthreads();
    for (int t = 0; t < kColumns && group == g; ++t)
      for (int e = 0; e < E; ++e) {
        float& to = all[nth<kColumns>(down, t)][nth<E>(across, e)];
        to = g == 0 ? sum[t][e] : to + sum[t][e];
      }
  }
  __syncthreads();
  for (int i = thread; i < kTile * kExperts; i += kThreads) {
    const int64_t token = first_token + i / kExperts, expert = first_expert + i % kExperts;
    const float logit = all[i / kExperts][i % kExperts];
    if (token < tokens && expert < experts)
      logits[token * experts + expert] = bias ? logit + bias[expert] : logit;
  }
}

/// The lanes of a row, to = p; numbers that do not fit into registers stay in p.
template <class R>
__global__ void gate_scores_kernel(float* p, const float* logits, ScoreRule rule, int64_t tokens,
                                   int64_t experts) {
  const int64_t t = warp_number() * R::kRows + lane() / R::kLanes;
  const int64_t cols = t < tokens ? experts : 0;  // all lanes take part in sums
  const float* const from = logits + t * experts;
  float* const to = p + t * experts;
  float held[R::kEach > 0 ? R::kEach : 1];
  const auto number = [&](int64_t e, int i) -> float& { return R::kEach > 0 ? held[i] : to[e]; };
  R::columns(cols, [&](int64_t e, int i) { number(e, i) = from[e]; });
  score_row<R>(rule, cols, number);
  if (R::kEach > 0) R::columns(cols, [&](int64_t e, int i) { to[e] = held[i]; });
}

template <class R>
__global__ void gate_dlogits_kernel(float* dlogits, const float* dweight, const float* p,
                                    const int32_t* expert, WeightRule weight, ScoreRule score,
                                    int64_t tokens, int64_t experts, int64_t k) {
  const int64_t t = warp_number() * R::kRows + lane() / R::kLanes;
  const int64_t cols = t < tokens ? experts : 0, choices = t < tokens ? k : 0;
  const float* const row = p + t * experts;
  const float* const grad = dweight + t * k;
  const int32_t* const choice = expert + t * k;
  float* const to = dlogits + t * experts;
  float held[R::kEach > 0 ? R::kEach : 1];
  // The gradient of a score: the sum over its choices, in their order.
  const auto dp = [&](int64_t e, int i) -> float& { return R::kEach > 0 ? held[i] : to[e]; };
  R::columns(cols, [&](int64_t e, int i) { dp(e, i) = 0; });
  float chosen = 0, dot = 0;  // chosen: divisor of kRenorm; dot: sum of dweight * weight
  for (int64_t j = 0; j < choices && weight == WeightRule::kRenorm; ++j)
    if (choice[j] >= 0) chosen += row[choice[j]];
  for (int64_t j = 0; j < choices && weight == WeightRule::kRenorm; ++j)
    if (choice[j] >= 0) dot += grad[j] * row[choice[j]] / chosen;
  for (int64_t j = 0; j < choices && weight != WeightRule::kOne; ++j) {
    const float one = weight == WeightRule::kProb ? grad[j] : (grad[j] - dot) / chosen;
    R::columns(cols, [&](int64_t e, int i) {
      if (e == choice[j]) dp(e, i) += one;
    });
  }
  float mean = 0;  // sum of dp * p over experts
  R::columns(cols, [&](int64_t e, int i) { mean += dp(e, i) * row[e]; });
  mean = warp_sum(mean, R::kLanes);
  R::columns(cols, [&](int64_t e, int i) {
    to[e] = weight == WeightRule::kOne     ? 0
            : score == ScoreRule::kSoftmax ? row[e] * (dp(e, i) - mean)
                                           : dp(e, i) * row[e] * (1 - row[e]);
  });
}

template <class T>
void gate_logits(float* logits, const T* x, const float* w, const float* bias, int64_t tokens,
                 int64_t experts, int64_t hidden, Stream stream) {
  const bool aligned = vectorable<kPack<T>>(hidden, x) && vectorable(hidden, w);
  const auto run = [&]<int E>(std::integral_constant<int, E>) {
    launch(gate_logits_kernel<T, E>, blocks_of(tokens, kTile) * blocks_of(experts, kColumns * E),
           kThreads, stream, logits, x, w, bias, tokens, experts, hidden, aligned);
  };
  if (experts <= 2 * kColumns) return run(std::integral_constant<int, 2>());
  if (experts <= 4 * kColumns) return run(std::integral_constant<int, 4>());
  run(std::integral_constant<int, 8>());
}

}  // namespace

template <class T>
void gate_kernels(KernelTable<T>& table) {
  table.gate_logits = gate_logits<T>;
}
template void gate_kernels(KernelTable<float>&);
template void gate_kernels(KernelTable<Bf16>&);

void gate_scores(float* p, const float* logits, ScoreRule rule, int64_t tokens, int64_t experts,
                 Stream stream) {
  in_rows(experts, [&]<class R>(R) {
    launch(gate_scores_kernel<R>, blocks_of(tokens, kWarps * R::kRows), kThreads, stream, p, logits,
           rule, tokens, experts);
  });
}

void gate_dlogits(float* dlogits, const float* dweight, const float* p, const int32_t* expert,
                  WeightRule weight, ScoreRule score, int64_t tokens, int64_t experts, int64_t k,
                  Stream stream) {
  in_rows(experts, [&]<class R>(R) {
    launch(gate_dlogits_kernel<R>, blocks_of(tokens, kWarps * R::kRows), kThreads, stream, dlogits,
           dweight, p, expert, weight, score, tokens, experts, k);
  });
}

}  // namespace moe::kernels::cuda
