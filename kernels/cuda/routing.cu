// Routing on the device: from scores to the index maps that dispatch and combine read. The maps are
// bit for bit those of the gates top_k and switch in engine/routing, with the same drops: ties go
// to the lower expert, slots are given in GShard order (first the first choice of every token, then
// the second, ...), and an expert's slots are numbered in the order of its tokens.
//
// There are two launches, in which each block has a chunk of kChunk tokens. The first chooses
// experts, computes weights, and counts the choices by chunk, column (a token's j-th choice is in
// column j) and expert. In the second, each block sums the counts of the chunks before its own. Of
// an expert's choices in one column, the first ones in the order of tokens get slots, so the counts
// alone say how many before a chunk got one. Inside the chunk, an expert's tokens are bits of words
// and the earlier ones are counted by popc.
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/score_rows.h"

namespace moe::kernels::cuda {
namespace {

constexpr int64_t kMaxRoutedExperts = 1024;
constexpr int kRouters = 1024;  // threads per block, one per expert
constexpr int kChunk = 128;     // tokens per block
constexpr int kWords = kChunk / kWarp;
constexpr int kMostParts = 16;  // threads that add an expert's counts
static_assert(kMaxRoutedExperts <= kRouters);

/// Returns the number of choices of the chunk that begins with token `first`.
__device__ int choices_in(const TopKRouting& r, int64_t first) {
  const int64_t tokens = r.tokens - first < kChunk ? r.tokens - first : kChunk;
  return static_cast<int>(tokens * r.k);
}

/// Bit i of word w of an expert: token w * kWarp + i of the chunk has chosen it in the column.
using Marks = unsigned[kWords][kRouters];

__device__ void clear_marks(Marks& marks) {
  for (unsigned e = threadIdx.x; e < kRouters; e += blockDim.x)
    for (int w = 0; w < kWords; ++w) marks[w][e] = 0;
}
/// Returns the expert of column j for the token whose choice this thread marks: the last kChunk
/// threads have one each. -1 if there is none.
__device__ int32_t to_mark(const TopKRouting& r, int64_t first, int64_t j) {
  const int64_t i = int64_t{threadIdx.x} - (blockDim.x - kChunk);
  return i >= 0 && first + i < r.tokens ? r.expert[(first + i) * r.k + j] : -1;
}
__device__ void mark(Marks& marks, int32_t expert) {
  const int word = warp() - static_cast<int>(blockDim.x - kChunk) / kWarp;
  if (word < 0) return;
  const unsigned same = __match_any_sync(kAllLanes, expert);
  if (expert >= 0 && __ffs(static_cast<int>(same)) - 1 == lane()) marks[word][expert] = same;
}

/// Returns an integer that is ordered as the score; kTaken is below all.
constexpr int32_t kTaken = -0x7fffffff - 1;
__device__ int32_t ordered(float score) {
  const auto bits = static_cast<int32_t>(__float_as_uint(score + 0.0f));  // -0 becomes 0
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

/// Writes the k best experts of token t, whose row the lanes of R have.
template <class R>
__device__ void choose(const TopKRouting& r, int64_t t) {
  int32_t left[R::kEach];
  int nan = 0;
  for (int32_t& score : left) score = kTaken;
  R::columns(t < r.tokens ? r.experts : 0, [&](int64_t e, int i) {
    const float score = r.scores[t * r.experts + e];
    nan |= isnan(score);
    left[i] = ordered(score);
  });
  nan = (__ballot_sync(kAllLanes, nan) >> (lane() - R::first()) &
         kAllLanes >> (kWarp - R::kLanes)) != 0;
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
    if (R::first() == 0 && t < r.tokens) r.expert[t * r.k + j] = nan ? kNanScores : at;
  }
}

/// The weight of a choice of token t, as gate_weights() in engine/routing has it for kept ones.
__device__ float weight_of(const TopKRouting& r, int64_t t, int32_t expert) {
  if (expert < 0 || r.rule == WeightRule::kOne) return expert < 0 ? 0.0f : 1.0f;
  const float* row = r.probabilities + t * r.experts;
  float sum = r.rule == WeightRule::kRenorm ? 0 : 1;
  for (int64_t j = 0; j < r.k && r.rule == WeightRule::kRenorm; ++j)
    sum += row[r.expert[t * r.k + j]];
  return row[expert] / sum;
}

/// Threads that choose, fewer where each needs many registers.
template <class R>
constexpr int kChoosers = R::kEach > 8 ? kRouters / 2 : kRouters;

/// Computes expert, weight (also of choices that will be dropped) and counts [chunk, k, experts].
template <class R>
__global__ void __launch_bounds__(kChoosers<R>, 1) choose_kernel(TopKRouting r, uint16_t* counts) {
  __shared__ Marks marks;
  const int own = static_cast<int>(threadIdx.x), k = static_cast<int>(r.k);
  const int64_t chunk = blockIdx.x, first = chunk * kChunk;
  for (unsigned i = threadIdx.x / R::kLanes; i < kChunk; i += blockDim.x / R::kLanes)
    choose<R>(r, first + i);
  __syncthreads();
  for (int c = own; c < choices_in(r, first); c += kChoosers<R>)
    r.weight[first * r.k + c] = weight_of(r, first + c / k, r.expert[first * r.k + c]);
  for (int64_t j = 0; j < r.k; ++j) {
    clear_marks(marks);
    __syncthreads();
    mark(marks, to_mark(r, first, j));
    __syncthreads();
    for (int64_t e = own; e < r.experts; e += kChoosers<R>) {
      int count = 0;
      for (int w = 0; w < kWords; ++w) count += __popc(marks[w][e]);
      counts[(chunk * k + j) * r.experts + e] = static_cast<uint16_t>(count);
    }
  }
}

struct Sums {
  int32_t before, all;  // choices in the chunks before this one, and in all

  __device__ void add(Sums more) {
    before += more.before;
    all += more.all;
  }
};
/// Adds the counts of every `parts`-th chunk from chunk `from` on; `count` has those of chunk 0.
__device__ Sums sum_counts(const TopKRouting& r, const uint16_t* count, int from, int parts) {
  const int chunks = static_cast<int>((r.tokens + kChunk - 1) / kChunk);
  const int chunk = static_cast<int>(blockIdx.x);
  Sums sum = {0, 0};
  for (int c = from; c < chunks; c += parts) {
    const int32_t n = count[c * r.k * r.experts];
    sum.add({c < chunk ? n : 0, n});
  }
  return sum;
}
/// Returns how many tokens before token `token` of the chunk have chosen the expert.
__device__ int count_earlier(const Marks& marks, int32_t expert, int token) {
  int earlier = 0;
  for (int w = 0; w < kWords; ++w) {
    const int bits = token - w * kWarp;
    const unsigned mask = bits >= kWarp ? kAllLanes : bits > 0 ? (1u << bits) - 1 : 0;
    earlier += __popc(marks[w][expert] & mask);
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
__global__ void __launch_bounds__(kRouters, 1) place_kernel(TopKRouting r, const uint16_t* counts) {
  __shared__ Marks marks;
  __shared__ Sums part[kRouters];
  // By expert: what Slots::add returned, Slots::used, and the slots in use at the end.
  __shared__ int32_t room[kRouters], used[kRouters], filled[kRouters];
  const int own = static_cast<int>(threadIdx.x), k = static_cast<int>(r.k);
  const int experts = static_cast<int>(r.experts);
  const int parts = kRouters / experts < kMostParts ? kRouters / experts : kMostParts;
  const int64_t first = blockIdx.x * int64_t{kChunk};
  const int here = choices_in(r, first);
  const int32_t used_before = own < experts && r.used_before ? r.used_before[own] : 0;
  for (int begin = 0; begin == 0 || begin < here; begin += kRouters) {
    const int choice = begin + own, token = choice / k, column = choice % k;
    const int32_t expert = choice < here ? r.expert[first * k + choice] : -1;
    Slots slots = {used_before, used_before};
    int64_t slot = 0;
    bool kept = false;
    for (int j = 0; j < k; ++j) {
      clear_marks(marks);
      const int32_t marked = to_mark(r, first, j);
      if (own < parts * experts)
        part[own] = sum_counts(r, counts + j * experts + own % experts, own / experts, parts);
      __syncthreads();
      mark(marks, marked);
      if (own < experts) {
        for (int i = 1; i < parts; ++i) part[own].add(part[i * experts + own]);
        room[own] = slots.add(part[own], r.capacity);
        used[own] = slots.used;
      }
      __syncthreads();
      if (expert >= 0) {
        const int earlier = count_earlier(marks, expert, token);
        if (column == j) kept = earlier < room[expert];
        slot += earlier < room[expert] ? earlier : room[expert];
      }
      __syncthreads();
    }
    filled[own] = static_cast<int32_t>(slots.chosen < r.capacity ? slots.chosen : r.capacity);
    if (choice >= here) continue;
    if (kept) slot += expert * r.capacity + used[expert];
    if (kept)
      r.slot_choice[slot] = static_cast<int32_t>((r.first_token + first) * k + choice);
    else
      r.weight[first * k + choice] = 0;
    r.choice_slot[first * k + choice] = kept ? static_cast<int32_t>(slot) : -1;
  }
  if (blockIdx.x == 0 && own < experts) r.counts[own] = filled[own];
  __syncthreads();
  if (!r.part) clear_free(r, filled);
}

}  // namespace

int64_t top_k_work_bytes(int64_t tokens, int64_t experts, int64_t k) {
  return blocks_of(tokens, kChunk) * k * experts * static_cast<int64_t>(sizeof(uint16_t));
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
  auto* counts = static_cast<uint16_t*>(r.work);
  in_rows(r.experts, [&]<class R>(R) {
    if constexpr (R::kEach > 0) launch(choose_kernel<R>, chunks, kChoosers<R>, stream, r, counts);
  });
  launch(place_kernel, chunks > 0 ? chunks : 1, kRouters, stream, r, counts);
}

}  // namespace moe::kernels::cuda
