// Routing on the device: from scores to the index maps that dispatch and combine read. The maps are
// bit for bit those of the gates top_k and switch in engine/routing, with the same drops: ties go
// to the lower expert, slots are given in GShard order (first the first choice of every token, then
// the second, ...), and an expert's slots are numbered in the order of its tokens. Sums are
// integers in a fixed order, without atomics. Run only by an emulation on the CPU so far, never on
// a GPU. route_top_k() of the device table calls the three functions here, one after the other.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace moe::kernels::cuda {

constexpr int64_t kMaxRoutedExperts = 1024;

struct RouteShape {
  int64_t tokens, experts, k, capacity;
};

/// Arrays in device memory, as RoutingMaps in engine/routing/gate.h; its `columns` is k here.
struct DeviceMaps {
  int32_t* expert;       // [tokens, k]
  int32_t* choice_slot;  // [tokens, k]
  int32_t* slot_choice;  // [experts, capacity], -1 for a free slot
  int32_t* counts;       // [experts], including used_before
  int64_t first_token = 0;
  bool part = false;
};

/// Returns the bytes of `work` that route() needs.
int64_t route_work_bytes(RouteShape shape);

/// expert [tokens,k] = the k best of scores [tokens,experts], the best first. The CPU refuses
/// scores that contain a NaN; here all choices of such a token become kNanScores, which the caller
/// must check. Unless k <= experts, keeps an error (errors.h) and does nothing.
void top_k(int32_t* expert, const float* scores, RouteShape shape, Stream stream);

/// Computes the other maps from maps.expert, in which a negative number means no choice; the
/// choices of a token must differ. used_before [experts] (null means none) is the number of slots
/// that earlier parts of the batch used. Keeps an error (errors.h) and does nothing if experts >
/// kMaxRoutedExperts or numbers of slots or choices exceed int32.
void route(DeviceMaps maps, const int32_t* used_before, RouteShape shape, void* work,
           Stream stream);

/// Computes weight [tokens,k] by `rule`, as gate_weights() in engine/routing does.
void route_weights(float* weight, const float* scores, DeviceMaps maps, WeightRule rule,
                   RouteShape shape, Stream stream);

}  // namespace moe::kernels::cuda
