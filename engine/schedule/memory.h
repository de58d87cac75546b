// Buffers by liveness and happens-before: two tensors share storage only when every use of one
// happens before the other is written, on any timing that the schedule allows.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct Buffer {
  Bytes offset = 0;  // in the arena; in persistent storage for parameters, states and inputs
  Bytes bytes = 0;   // rounded up to kAlignment
  bool persistent = false;
  TensorId alias_of;  // the tensor whose storage this one took over, or invalid
};

constexpr Bytes kAlignment = 64;

struct MemoryPlan {
  std::vector<Buffer> buffers;  // by tensor
  Bytes arena_bytes = 0;
  Bytes persistent_bytes = 0;
  Bytes scratch_bytes = 0;  // the largest scratch of one op a lane
  /// The most bytes alive at once when ops run one by one in lane order: what must exist.
  Bytes liveness_bytes = 0;
  Bytes peak_bytes() const { return arena_bytes + persistent_bytes + scratch_bytes; }
};

/// element_bytes: 0 takes each tensor's dtype; 4 or 8 sizes floating-point tensors for execution in
/// float or double (index tensors stay i32, the loss is a double).
MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                       Bytes element_bytes = 0);

/// The largest tensors alive at the peak, largest first, as "name 12.0 MiB" lines.
std::vector<std::string> peak_holders(const Graph& graph, const Schedule& schedule,
                                      const LaneOrders& orders, const MemoryPlan& plan,
                                      size_t count);

}  // namespace moe
