// Routing on the device: from scores to the index maps that dispatch and combine read. The maps are
// bit for bit those of the gates top_k and switch in engine/routing, with the same drops: ties go
// to the lower expert, slots are given in GShard order (first the first choice of every token, then
// the second, ...), and an expert's slots are numbered in the order of its tokens.
//
// There are two launches, in which each block has a chunk of kChunk tokens. The first computes
// scores, chooses experts, computes weights, and counts the choices by column (a token's j-th
// choice is in column j), expert and chunk. In the second, each block sums the counts of the chunks
// before its own. Of an expert's choices in one column, the first ones in the order of tokens get
// slots, so the counts alone say how many before a chunk got one. Inside the chunk, an expert's
// tokens are bits of words and the earlier ones are counted by popc.
//
// A block handles as many columns at once as its threads and its shared arrays allow. There, each
// column has a cell for each expert: those of the i-th column begin at i * experts.
#include <algorithm>

#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/score_rows.h"

namespace moe::kernels::cuda {
namespace {

constexpr int64_t kMaxRoutedExperts = 1024;
constexpr int kRouters = 1024;  // threads per block, and cells
constexpr int kChunk = 128;     // tokens per block
constexpr int kWords = kChunk / kWarp;
constexpr int kSummers = 8;  // threads that add a cell's counts
static_assert(kMaxRoutedExperts <= kRouters);

using Count = uint8_t;       // of a column, expert and chunk
constexpr int kCounts = 16;  // that a thread reads at once, 16 bytes
static_assert(kChunk < 256);

/// What both kernels need to know besides the routing.
struct Layout {
  Count* counts;   // [k, experts, chunks]
  int64_t chunks;  // a multiple of kCounts
  int columns;     // most columns that a block handles at once
};

/// Bit i of word w of a cell: token w * kWarp + i of the chunk has chosen its expert in its column.
using Marks = unsigned[kWords][kRouters];

/// Returns the expert of column j for a token of the chunk that begins with token `first`, or -1.
__device__ int32_t chosen(const TopKRouting& r, int64_t first, int token, int j) {
  return first + token < r.tokens && j < r.k ? r.expert[(first + token) * r.k + j] : -1;
}
/// Sets the marks of `columns` columns from column j on. All threads of the block must call it. It
/// waits for all of them once, before it sets marks; they must wait again before they read these.
__device__ void mark(Marks& marks, const TopKRouting& r, int64_t first, int j, int columns) {
  const int own = static_cast<int>(threadIdx.x), token = own % kChunk, column = own / kChunk;
  const int experts = static_cast<int>(r.experts);
  const int32_t expert = column < columns ? chosen(r, first, token, j + column) : -1;
  for (int cell = own; cell < columns * experts; cell += static_cast<int>(blockDim.x))
    for (auto& word : marks) word[cell] = 0;
  __syncthreads();
  const unsigned same = __match_any_sync(kAllLanes, expert);
  if (expert >= 0 && __ffs(static_cast<int>(same)) - 1 == lane())
    marks[token / kWarp][column * experts + expert] = same;
}

/// Returns an integer that is ordered as the score; kTaken is below all.
constexpr int32_t kTaken = -0x7fffffff - 1;
__device__ int32_t ordered(float score) {
  const auto bits = static_cast<int32_t>(__float_as_uint(score + 0.0f));  // -0 becomes 0
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ float in_order(int32_t place) {
  return __uint_as_float(static_cast<unsigned>(place < 0 ? place ^ 0x7fffffff : place));
}

/// Computes the scores of token t, whose row the lanes of R have, if there are logits; and its
/// choices with their weights, as gate_weights() in engine/routing has them for kept ones.
template <class R>
__device__ void choose(const TopKRouting& r, int64_t t) {
  const int64_t cols = t < r.tokens ? r.experts : 0, choices = t < r.tokens ? r.k : 0;
  const float* const from = (r.logits ? r.logits : r.scores) + t * r.experts;
  float scores[R::kEach];
  R::columns(cols, [&](int64_t e, int i) { scores[i] = from[e]; });
  if (r.logits) {
    score_row<R>(r.score, cols, [&](int64_t, int i) -> float& { return scores[i]; });
    R::columns(cols, [&](int64_t e, int i) { r.scores[t * r.experts + e] = scores[i]; });
  }
  int32_t left[R::kEach];
  int nan = 0;
  for (int32_t& score : left) score = kTaken;
  R::columns(cols, [&](int64_t, int i) {
    nan |= isnan(scores[i]);
    left[i] = ordered(scores[i]);
  });
  nan = (__ballot_sync(kAllLanes, nan) >> (lane() - R::first()) &
         kAllLanes >> (kWarp - R::kLanes)) != 0;
  float sum = 0, own = 0;  // of all choices, and of the last that this lane writes
  for (int64_t j = 0; j < r.k; ++j) {
    int32_t best = kTaken, at = 0x7fffffff;
    for (int i = 0; i < R::kEach; ++i)
      if (left[i] > best) {
        best = left[i];
        at = R::first() + i * R::kLanes;
      }
    for (int step = R::kLanes / 2; step > 0; step /= 2) {
      const int32_t other = __shfl_xor_sync(kAllLanes, best, step);
      const int32_t other_at = __shfl_xor_sync(kAllLanes, at, step);
      if (other > best || (other == best && other_at < at)) {
        best = other;
        at = other_at;
      }
    }
    for (int i = 0; i < R::kEach; ++i)
      if (R::first() + i * R::kLanes == at) left[i] = kTaken;
    const float score = in_order(best);
    sum += score;
    if (j >= choices || j % R::kLanes != R::first()) continue;
    r.expert[t * r.k + j] = nan ? kNanScores : at;
    r.weight[t * r.k + j] = r.rule == WeightRule::kOne ? 1 : score;
    own = score;
  }
  for (int64_t j = R::first(); j < choices && r.rule == WeightRule::kRenorm; j += R::kLanes)
    r.weight[t * r.k + j] = (j + R::kLanes < choices ? r.weight[t * r.k + j] : own) / sum;
}

/// Threads that choose, fewer where each needs many registers.
template <class R>
constexpr int kChoosers = R::kEach > 8 ? kRouters / 2 : kRouters;

/// Computes expert, weight (also of choices that will be dropped) and counts [k, experts, chunks].
template <class R>
__global__ void __launch_bounds__(kChoosers<R>, 1) choose_kernel(TopKRouting r, Layout layout) {
  __shared__ Marks marks;
  const int own = static_cast<int>(threadIdx.x), k = static_cast<int>(r.k);
  const int experts = static_cast<int>(r.experts);
  const int64_t first = blockIdx.x * int64_t{kChunk};
  for (int i = own / R::kLanes; i < kChunk; i += kChoosers<R> / R::kLanes) choose<R>(r, first + i);
  for (int j = 0, columns; j < k; j += columns) {
    columns = k - j < layout.columns ? k - j : layout.columns;
    __syncthreads();
    mark(marks, r, first, j, columns);
    __syncthreads();
    for (int cell = own; cell < columns * experts; cell += kChoosers<R>) {
      int count = 0;
      for (const auto& word : marks) count += __popc(word[cell]);
      layout.counts[(j * experts + cell) * layout.chunks + blockIdx.x] = static_cast<Count>(count);
    }
  }
}

struct Sums {
  int32_t before, all;  // choices in the chunks before this one, and in all
};
/// Returns the sum of the first n counts of a word.
__device__ int32_t sum_word(unsigned word, int n) {
  if (n < 4) word = n > 0 ? word & ((1u << n * 8) - 1) : 0;
  const unsigned pairs = (word & 0xff00ffu) + (word >> 8 & 0xff00ffu);
  return static_cast<int32_t>((pairs & 0xffffu) + (pairs >> 16));
}
/// Returns the sums of a cell, whose counts kSummers lanes add; null stands for none.
__device__ Sums sum_counts(const TopKRouting& r, const Count* count) {
  const int chunks = static_cast<int>((r.tokens + kChunk - 1) / kChunk);
  const int chunk = static_cast<int>(blockIdx.x);
  Sums sum = {0, 0};
  for (int c = lane() % kSummers * kCounts; c < chunks && count; c += kSummers * kCounts) {
    const uint4 all = *reinterpret_cast<const uint4*>(count + c);
    const unsigned words[] = {all.x, all.y, all.z, all.w};
    for (int w = 0; w < 4; ++w) {
      sum.before += sum_word(words[w], chunk - c - w * 4);
      sum.all += sum_word(words[w], chunks - c - w * 4);
    }
  }
  return {warp_sum(sum.before, kSummers), warp_sum(sum.all, kSummers)};
}
/// Returns how many tokens before token `token` of the chunk have a mark in the cell.
__device__ int count_earlier(const Marks& marks, int cell, int token) {
  int earlier = 0;
  for (int w = 0; w < kWords; ++w) {
    const int bits = token - w * kWarp;
    const unsigned mask = bits >= kWarp ? kAllLanes : bits > 0 ? (1u << bits) - 1 : 0;
    earlier += __popc(marks[w][cell] & mask);
  }
  return earlier;
}

/// What a thread knows of its expert after some columns.
struct Slots {
  int64_t chosen;  // choices in all chunks, and slots that earlier parts used
  int32_t used;    // slots of earlier parts and chunks

  /// Adds a column, and returns how many of this chunk's choices in it may get a slot.
  __device__ int32_t add(Sums sum, int64_t capacity) {
    const int64_t free = capacity > chosen ? capacity - chosen : 0;
    const auto before = static_cast<int32_t>(sum.before < free ? sum.before : free);
    used += before;
    chosen += sum.all;
    return static_cast<int32_t>(free) - before;
  }
};

__device__ void clear_free(const TopKRouting& r, const int32_t* filled) {
  const auto slots = static_cast<uint32_t>(r.experts * r.capacity);
  for (int64_t s = thread_number(); s < slots; s += num_threads()) {
    const uint32_t e = static_cast<uint32_t>(s) / static_cast<uint32_t>(r.capacity);
    const int64_t place = s - e * r.capacity;
    if (place >= filled[e] || (r.used_before && place < r.used_before[e])) r.slot_choice[s] = -1;
  }
}

/// Computes the other maps. Each thread has an expert, and a choice of each kRouters of the chunk.
__global__ void __launch_bounds__(kRouters, 1) place_kernel(TopKRouting r, Layout layout) {
  __shared__ Marks marks;
  // By cell: the sums, and what Slots::add returned. By expert: Slots::used, and the slots in use
  // at the end.
  __shared__ Sums sums[kRouters];
  __shared__ int32_t room[kRouters], used[kRouters], filled[kRouters];
  const int own = static_cast<int>(threadIdx.x), k = static_cast<int>(r.k), token = own % kChunk;
  const int experts = static_cast<int>(r.experts);
  const int64_t first = blockIdx.x * int64_t{kChunk};
  const int32_t used_before = own < experts && r.used_before ? r.used_before[own] : 0;
  for (int column = own / kChunk, begin = 0; begin < k; begin += kRouters / kChunk) {
    const int32_t expert = chosen(r, first, token, begin + column);
    Slots slots = {used_before, used_before};
    int64_t slot = 0;
    bool kept = false;
    for (int j = 0, columns; j < k; j += columns) {
      columns = k - j < layout.columns ? k - j : layout.columns;
      for (int i = 0; i < columns * experts; i += kRouters / kSummers) {
        const int cell = i + own / kSummers;
        const bool some = cell < columns * experts;
        const Count* const from = layout.counts + (j * experts + cell) * layout.chunks;
        const Sums sum = sum_counts(r, some ? from : nullptr);
        if (some && own % kSummers == 0) sums[cell] = sum;
      }
      mark(marks, r, first, j, columns);
      for (int i = 0; i < columns && own < experts; ++i)
        room[i * experts + own] = slots.add(sums[i * experts + own], r.capacity);
      used[own] = slots.used;
      filled[own] = static_cast<int32_t>(slots.chosen < r.capacity ? slots.chosen : r.capacity);
      __syncthreads();
      for (int i = 0; i < columns && expert >= 0; ++i) {
        const int cell = i * experts + expert, earlier = count_earlier(marks, cell, token);
        if (j + i == begin + column) kept = earlier < room[cell];
        slot += earlier < room[cell] ? earlier : room[cell];
      }
      if (j + columns < k || begin + kRouters / kChunk < k) __syncthreads();
    }
    if (expert == -1) continue;
    const int64_t choice = (first + token) * k + begin + column;
    if (kept) slot += expert * r.capacity + used[expert];
    if (kept)
      r.slot_choice[slot] = static_cast<int32_t>(r.first_token * k + choice);
    else
      r.weight[choice] = 0;
    r.choice_slot[choice] = kept ? static_cast<int32_t>(slot) : -1;
  }
  if (blockIdx.x == 0 && own < experts) r.counts[own] = filled[own];
  if (!r.part) clear_free(r, filled);
}

constexpr int64_t padded_chunks(int64_t tokens) {
  return blocks_of(tokens, kChunk * kCounts) * kCounts;
}

}  // namespace

int64_t top_k_work_bytes(int64_t tokens, int64_t experts, int64_t k) {
  return k * experts * padded_chunks(tokens) * static_cast<int64_t>(sizeof(Count));
}

void route_top_k(const TopKRouting& r, Stream stream) {
  constexpr int64_t kMaxNumber = 0x7fffffff;
  const int64_t slots = r.experts * r.capacity, choices = (r.first_token + r.tokens) * r.k;
  if (r.k > r.experts)
    return keep_error("cuda: top_k got k = " + std::to_string(r.k) +
                      " choices per token; at most the number of experts, " +
                      std::to_string(r.experts) + ", is allowed");
  if (r.experts > kMaxRoutedExperts || slots > kMaxNumber || choices > kMaxNumber)
    return keep_error("cuda: route got " + std::to_string(r.experts) + " experts, " +
                      std::to_string(slots) + " slots and " + std::to_string(choices) +
                      " choices up to the last token; at most 1024 experts, 2^31 - 1 slots and "
                      "2^31 - 1 choices are allowed");
  const int64_t chunks = blocks_of(r.tokens, kChunk);
  const int64_t columns = std::min<int64_t>(kRouters / kChunk, kRouters / r.experts);
  const Layout layout = {static_cast<Count*>(r.work), padded_chunks(r.tokens),
                         static_cast<int>(columns)};
  in_rows(r.experts, [&]<class R>(R) {
    if constexpr (R::kEach > 0) launch(choose_kernel<R>, chunks, kChoosers<R>, stream, r, layout);
  });
  launch(place_kernel, chunks > 0 ? chunks : 1, kRouters, stream, r, layout);
}

}  // namespace moe::kernels::cuda
