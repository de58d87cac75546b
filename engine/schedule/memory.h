// Buffers by liveness and happens-before: two tensors share storage only when every use of one
// happens before the other is written, on any timing that the schedule allows.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct Buffer {
  Bytes offset = 0;         // in the arena, or in persistent storage
  Bytes bytes = 0;          // rounded up to kAlignment; exact where ops join the tensor with others
  bool persistent = false;  // parameters, states and inputs, and what is joined with one
  TensorId alias_of;        // the tensor whose storage this one took over, or invalid
  int32_t joined = -1;      // index into MemoryPlan::joined, -1: the tensor shares with nobody
};

constexpr Bytes kAlignment = 64;

/// Storage of tensors that ops join (graph/joined.h), in use until the last use of any of them.
/// None of them takes over other storage, or is taken over.
struct JoinedBlock {
  std::vector<TensorId> members;
  Bytes offset = 0;
  Bytes bytes = 0;
  bool persistent = false;
  /// The last op that, on any timing, is the first to write a member or is over before that one
  /// begins; invalid where persistent.
  OpId start;
};

struct MemoryPlan {
  std::vector<Buffer> buffers;  // by tensor
  std::vector<JoinedBlock> joined;
  Bytes arena_bytes = 0;
  Bytes persistent_bytes = 0;
  Bytes scratch_bytes = 0;  // the largest scratch of one op per lane
  /// The most bytes alive at once when ops run one by one in lane order: what must exist.
  Bytes liveness_bytes = 0;
  Bytes peak_bytes() const { return arena_bytes + persistent_bytes + scratch_bytes; }
};

/// element_bytes: 0 takes each tensor's dtype; 4 or 8 sizes floating-point tensors for execution in
/// float or double (index tensors stay i32, the loss is a double). Throws RunError naming the
/// tensors when ops join tensors and no op stands before all that write them.
MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                       Bytes element_bytes = 0);

/// The largest tensors alive at the peak, largest first, as "name 12.0 MiB" lines.
std::vector<std::string> peak_holders(const Graph& graph, const Schedule& schedule,
                                      const LaneOrders& orders, const MemoryPlan& plan,
                                      size_t count);

}  // namespace moe
