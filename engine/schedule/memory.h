// The memory plan: where the tensors of a rank are stored. Persistent storage holds parameters,
// states and inputs; the arena holds all other tensors. Two tensors of the arena share bytes only
// if all uses of one happen before the other is written, whatever timing of the schedule occurs.
// Checking a memory plan is in storage.h.
#pragma once

#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/schedule/schedule.h"

namespace moe {

struct Buffer {
  Bytes offset = 0;         // in the arena, or in persistent storage
  Bytes bytes = 0;          // rounded up to kAlignment; exact if ops join the tensor with others
  bool persistent = false;  // parameters, states and inputs, and tensors joined with one of them
  TensorId alias_of;        // the tensor whose storage this one takes over, or invalid
  int32_t joined = -1;      // index into MemoryPlan::joined, or -1
};

constexpr Bytes kAlignment = 64;

/// Storage of tensors that ops join (graph/joined.h). It is in use until the last use of any
/// member. No member takes over the storage of another tensor (Buffer::alias_of), and no other
/// tensor takes over that of a member.
struct JoinedBlock {
  std::vector<TensorId> members;
  Bytes offset = 0;
  Bytes bytes = 0;
  bool persistent = false;
  /// The block is in use from the begin of this op on: the last op in HappensBefore::serial() that,
  /// in every timing, runs before all ops that write a member or is itself the first of these.
  /// Invalid if `persistent`.
  OpId start;
};

struct MemoryPlan {
  std::vector<Buffer> buffers;  // indexed by tensor
  std::vector<JoinedBlock> joined;
  Bytes arena_bytes = 0;
  Bytes persistent_bytes = 0;
  Bytes scratch_bytes = 0;  // sum over lanes of the largest scratch of an op
  /// The largest number of bytes of the arena in use at once when ops run one by one in the order
  /// of HappensBefore::serial(): a lower bound of arena_bytes.
  Bytes liveness_bytes = 0;
  Bytes peak_bytes() const { return arena_bytes + persistent_bytes + scratch_bytes; }
};

/// Returns the memory plan. With `element_bytes` = 0, sizes follow the dtype of each tensor; with 4
/// or 8, floating-point tensors are sized for execution in float or double (index tensors stay i32,
/// the loss is a double). Throws RunError naming the tensors if ops join tensors and no op is, or
/// comes before, all ops that write them.
MemoryPlan plan_memory(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
                       Bytes element_bytes = 0);
/// The same, where the order of the ops follows from more than the graph and its schedule.
MemoryPlan plan_memory(const Graph& graph, const HappensBefore& hb, const LaneOrders& orders,
                       Bytes element_bytes);

/// Bytes of the arena that are in use from the begin of `first` until all ops of `last` are over;
/// if `last` is empty, until the step ends.
struct StorageLife {
  Bytes bytes = 0;
  OpId first;
  std::vector<OpId> last;
};

/// Returns when each block of the arena is in use.
std::vector<StorageLife> storage_lives(const Graph& graph, const Schedule& schedule,
                                       const LaneOrders& orders, const MemoryPlan& plan);

/// A part of the planned memory of a rank by what it is for, such as "parameters".
struct PeakPart {
  std::string what;
  Bytes bytes;
};

/// What a rank's memory holds at its peak.
struct Peak {
  /// Largest first, none of 0 bytes; the sum is MemoryPlan::peak_bytes().
  std::vector<PeakPart> parts;
  /// At most `count` lines "name 12.0 MiB", largest first, of the persistent tensors and those of
  /// the arena that are in use at its peak (liveness_bytes).
  std::vector<std::string> holders;
};
Peak peak_of(const Graph& graph, const Schedule& schedule, const LaneOrders& orders,
             const MemoryPlan& plan, size_t count);

}  // namespace moe
