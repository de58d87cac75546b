// The place of a choice is the number of earlier choices of the same expert. It is computed in
// three launches: each block counts the choices of its chunk (kChunk choices) per expert; one
// thread per expert sums the counts of the chunks before each chunk; each block adds the places
// inside its chunk, by matching lanes and by going through warps in order. This is done twice: in
// GShard order to decide which get a slot, then in token order to number slots.
#include "kernels/cuda/device.h"
#include "kernels/cuda/device_functions.h"
#include "kernels/cuda/routing.h"

namespace moe::kernels::cuda {
namespace {

constexpr int32_t kDropped = -1;
constexpr int kChunk = kThreads;  // choices per block

/// The order of the choices, and which choices count.
struct Sequence {
  const int32_t* expert;
  // Null: all choices count; otherwise choice_slot, in which dropped choices do not count.
  const int32_t* kept;
  int64_t tokens, k;

  __device__ int64_t choice(int64_t i) const { return kept ? i : i % tokens * k + i / tokens; }
  /// Returns the expert of the i-th choice, or -1 if there is none or it does not count.
  __device__ int32_t expert_of(int64_t i) const {
    if (i >= tokens * k) return -1;
    const int64_t c = choice(i);
    return kept && kept[c] == kDropped ? -1 : expert[c];
  }
};

__global__ void top_k_kernel(int32_t* expert, const float* scores, int64_t tokens, int64_t experts,
                             int64_t k) {
  const int64_t t = warp_number();
  if (t >= tokens) return;  // the whole warp returns
  const float* row = scores + t * experts;
  int nan = 0;
  for (int64_t e = lane(); e < experts; e += kWarp) nan |= isnan(row[e]);
  nan = __ballot_sync(kAllLanes, nan) != 0;
  // Score and expert of choice j - 1. Left for choice j: lower scores, and equal ones of experts
  // with a higher index.
  float last = INFINITY;
  int32_t last_expert = -1;
  for (int64_t j = 0; j < k; ++j) {
    float best = -INFINITY;
    int32_t at = 0x7fffffff;
    for (int64_t e = lane(); e < experts && !nan; e += kWarp) {
      const bool left = row[e] < last || (row[e] == last && e > last_expert);
      if (left && (row[e] > best || at == 0x7fffffff)) {
        best = row[e];
        at = static_cast<int32_t>(e);
      }
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, step);
      const int32_t other_at = __shfl_xor_sync(kAllLanes, at, step);
      if (other > best || (other == best && other_at < at)) {
        best = other;
        at = other_at;
      }
    }
    last = best;
    last_expert = at;
    if (lane() == 0) expert[t * k + j] = nan ? kNanScores : at;
  }
}

/// counts[chunk, e] = choices of expert e in the chunk. Each warp uses its own row of in_warp.
__global__ void count_kernel(int32_t* counts, Sequence sequence, int64_t experts) {
  __shared__ int32_t in_warp[kWarps][kMaxRoutedExperts];
  for (int64_t e = lane(); e < experts; e += kWarp) in_warp[warp()][e] = 0;
  __syncwarp();  // __match_any_sync does not order memory accesses
  const int32_t expert = sequence.expert_of(thread_number());
  const unsigned same = __match_any_sync(kAllLanes, expert);
  if (expert >= 0 && __ffs(static_cast<int>(same)) - 1 == lane())
    in_warp[warp()][expert] = __popc(same);
  __syncthreads();
  for (int64_t e = threadIdx.x; e < experts; e += kThreads) {
    int32_t sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += in_warp[w][e];
    counts[blockIdx.x * experts + e] = sum;
  }
}

/// Replaces counts[chunk, e] by the number of choices of e before the chunk, including used_before.
/// total[e] = the number after all chunks, at most the capacity.
__global__ void scan_kernel(int32_t* counts, int32_t* total, const int32_t* used_before,
                            int64_t chunks, int64_t experts, int64_t capacity) {
  const int64_t e = thread_number();
  if (e >= experts) return;
  int64_t sum = used_before ? used_before[e] : 0;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int32_t here = counts[chunk * experts + e];
    counts[chunk * experts + e] = static_cast<int32_t>(sum);
    sum += here;
  }
  total[e] = static_cast<int32_t>(sum < capacity ? sum : capacity);
}

/// Computes choice_slot of the sequence's choices from `before` [chunks, experts]. slot_choice is
/// null in the first of the two rounds, which only decides which choices are dropped; in the
/// second, this part's choices are numbered from first_choice on.
__global__ void place_kernel(int32_t* choice_slot, int32_t* slot_choice, const int32_t* before,
                             Sequence sequence, int64_t first_choice, int64_t experts,
                             int64_t capacity) {
  __shared__ int32_t in_warp[kWarps][kMaxRoutedExperts];
  for (int64_t e = lane(); e < experts; e += kWarp) in_warp[warp()][e] = 0;
  __syncwarp();  // __match_any_sync does not order memory accesses
  const int32_t expert = sequence.expert_of(thread_number());
  const unsigned same = __match_any_sync(kAllLanes, expert);
  if (expert >= 0 && __ffs(static_cast<int>(same)) - 1 == lane())
    in_warp[warp()][expert] = __popc(same);
  __syncthreads();
  if (thread_number() >= sequence.tokens * sequence.k) return;
  const int64_t choice = sequence.choice(thread_number());
  if (expert < 0) {
    choice_slot[choice] = kDropped;
    return;
  }
  int64_t place = before[blockIdx.x * experts + expert];
  for (int w = 0; w < warp(); ++w) place += in_warp[w][expert];
  place += __popc(same & ((1u << lane()) - 1));
  const int64_t slot = expert * capacity + place;
  choice_slot[choice] = place < capacity ? static_cast<int32_t>(slot) : kDropped;
  if (slot_choice && place < capacity)
    slot_choice[slot] = static_cast<int32_t>(first_choice + choice);
}

__global__ void clear_kernel(int32_t* slot_choice, int64_t slots) {
  for (int64_t s = thread_number(); s < slots; s += num_threads()) slot_choice[s] = -1;
}

__global__ void weights_kernel(float* weight, const float* scores, const int32_t* expert,
                               const int32_t* choice_slot, WeightRule rule, RouteShape shape) {
  const int64_t t = thread_number();
  if (t >= shape.tokens) return;
  const float* row = scores + t * shape.experts;
  const int64_t first = t * shape.k;
  float sum = rule == WeightRule::kRenorm ? 0 : 1;
  for (int64_t j = 0; j < shape.k && rule == WeightRule::kRenorm; ++j)
    sum += expert[first + j] >= 0 ? row[expert[first + j]] : 0.0f;
  for (int64_t j = 0; j < shape.k; ++j) {
    float w = 0;
    if (choice_slot[first + j] >= 0)
      w = rule == WeightRule::kOne ? 1.0f : row[expert[first + j]] / sum;
    weight[first + j] = w;
  }
}

int64_t num_chunks(RouteShape shape) {
  return blocks_of(shape.tokens * shape.k, kChunk);
}

}  // namespace

int64_t route_work_bytes(RouteShape shape) {
  return num_chunks(shape) * shape.experts * static_cast<int64_t>(sizeof(int32_t));
}

void top_k(int32_t* expert, const float* scores, RouteShape shape, Stream stream) {
  if (shape.k > shape.experts)
    return keep_error("cuda: top_k got k = " + std::to_string(shape.k) +
                      " choices per token; at most the number of experts, " +
                      std::to_string(shape.experts) + ", is allowed");
  launch(top_k_kernel, blocks_of(shape.tokens, kWarps), kThreads, stream, expert, scores,
         shape.tokens, shape.experts, shape.k);
}

void route(DeviceMaps maps, const int32_t* used_before, RouteShape shape, void* work,
           Stream stream) {
  constexpr int64_t kMaxNumber = 0x7fffffff;
  const int64_t slots = shape.experts * shape.capacity;
  if (shape.experts > kMaxRoutedExperts || slots > kMaxNumber ||
      (maps.first_token + shape.tokens) * shape.k > kMaxNumber)
    return keep_error("cuda: route got " + std::to_string(shape.experts) + " experts, " +
                      std::to_string(slots) + " slots and " +
                      std::to_string((maps.first_token + shape.tokens) * shape.k) +
                      " choices up to the last token; at most 1024 experts, 2^31 - 1 slots and "
                      "2^31 - 1 choices are allowed");
  const int64_t chunks = num_chunks(shape);
  auto* before = static_cast<int32_t*>(work);
  if (!maps.part)
    launch(clear_kernel, stride_blocks(slots), kThreads, stream, maps.slot_choice, slots);
  // In the second round each thread reads from choice_slot whether its choice was dropped, and then
  // overwrites the entry with the slot.
  for (const int32_t* kept :
       {static_cast<const int32_t*>(nullptr), static_cast<const int32_t*>(maps.choice_slot)}) {
    const Sequence sequence = {maps.expert, kept, shape.tokens, shape.k};
    launch(count_kernel, chunks, kThreads, stream, before, sequence, shape.experts);
    launch(scan_kernel, blocks_of(shape.experts, kThreads), kThreads, stream, before, maps.counts,
           used_before, chunks, shape.experts, shape.capacity);
    launch(place_kernel, chunks, kThreads, stream, maps.choice_slot,
           kept ? maps.slot_choice : nullptr, before, sequence, maps.first_token * shape.k,
           shape.experts, shape.capacity);
  }
}

void route_weights(float* weight, const float* scores, DeviceMaps maps, WeightRule rule,
                   RouteShape shape, Stream stream) {
  launch(weights_kernel, blocks_of(shape.tokens, kThreads), kThreads, stream, weight, scores,
         maps.expert, maps.choice_slot, rule, shape);
}

int64_t top_k_work_bytes(int64_t tokens, int64_t experts, int64_t k) {
  return route_work_bytes({tokens, experts, k, 0});
}

void route_top_k(const TopKRouting& r, Stream stream) {
  const RouteShape shape = {r.tokens, r.experts, r.k, r.capacity};
  const DeviceMaps maps = {r.expert, r.choice_slot, r.slot_choice, r.counts, r.first_token, r.part};
  top_k(r.expert, r.scores, shape, stream);
  route(maps, r.used_before, shape, r.work, stream);
  route_weights(r.weight, r.probabilities, maps, r.rule, shape, stream);
}

}  // namespace moe::kernels::cuda
