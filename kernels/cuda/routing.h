// Routing on the device: from scores to the index maps that dispatch and combine read, as
// engine/routing's top_k and switch gates give them: ties to the lower expert, places asked for in
// GShard order (the first choice of every token, then the second, ...), then numbered by token.
// The same drops as the CPU's, bit for bit the same maps; integer sums in a fixed order, no
// atomics. Compiled only: it has run on the host's emulation and never on a GPU.
// route_top_k of the device table is these three functions in a row.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace moe::kernels::cuda {

constexpr int64_t kMaxRoutedExperts = 1024;

struct RouteShape {
  int64_t tokens, experts, k, capacity;
};

/// Device memory. RoutingMaps of engine/routing/gate.h says more; there columns is k.
struct DeviceMaps {
  int32_t* expert;       // [tokens, k]
  int32_t* choice_slot;  // [tokens, k]
  int32_t* slot_choice;  // [experts, capacity], -1 where it stays empty
  int32_t* counts;       // [experts], used_before among them
  int64_t first_token = 0;
  bool part = false;
};

/// Bytes of `work` for route.
int64_t route_work_bytes(RouteShape shape);

/// expert [tokens,k] = the k best of scores [tokens,experts], best first. The CPU refuses scores
/// that hold a NaN; here all choices of such a token are kNanScores, for the caller to see.
/// Keeps an error and does nothing unless k <= experts.
void top_k(int32_t* expert, const float* scores, RouteShape shape, Stream stream);

/// The other maps from maps.expert, where negative means no choice and a token's choices differ.
/// used_before [experts] (null: nothing) is what earlier parts of the batch took.
/// Keeps an error and does nothing unless experts <= kMaxRoutedExperts and every slot and choice,
/// first_token's counted, has an int32 number.
void route(DeviceMaps maps, const int32_t* used_before, RouteShape shape, void* work,
           Stream stream);

/// weight [tokens,k] by the rule, as gate_weights of engine/routing.
void route_weights(float* weight, const float* scores, DeviceMaps maps, WeightRule rule,
                   RouteShape shape, Stream stream);

}  // namespace moe::kernels::cuda
