// Runs the collective ops of one CPU rank through a Communicator. Which bytes they send is in
// exec/collective_layout.h, exec/dispatch/row_exchange.h, exec/expert_mover.h, slice_exchange.h and
// activation_exchange.h.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/exec/buffers.h"
#include "engine/exec/collective_layout.h"
#include "engine/exec/cpu/activation_exchange.h"
#include "engine/exec/cpu/slice_exchange.h"
#include "engine/exec/dispatch/row_exchange.h"
#include "engine/exec/expert_mover.h"

namespace moe {

struct CollectiveDone {
  CommTimes times;
  Bytes bytes = 0;  // sent by this rank to other ranks
};

/// One collective op of one rank, laid out once and called every step. T is the float type of the
/// run.
template <class T>
class CollectiveOp {
 public:
  /// `rank` is the number of this rank among those of its pipeline rank. Requires: a legal plan.
  CollectiveOp(const Plan& plan, OpId op, const RankBuffers& buffers, void* scratch, int64_t rank);
  /// Transfers one chunk. Called by every rank's lane in the same order, with the lane's
  /// communicator of all ranks. The chunks of an op come in ascending order; chunks of other ops
  /// may come between them. Throws as the Communicator does.
  CollectiveDone call(Communicator& all, int64_t chunk = 0, int64_t num_chunks = 1);

 private:
  CommTimes all_reduce(Communicator& comm, const std::string& what, ElementRange range);
  CollectiveDone hand_off(Communicator& all);

  std::string name_;
  void* scratch_;
  /// A transfer between pipeline ranks: the tensor that this rank sends, receives or adds.
  struct Handoff {
    int64_t distance = 0;  // to the other rank
    T* sent = nullptr;
    T* received = nullptr;
    int64_t n = 0;
    Pieces pieces;
  };

  // One of these is set, the others are null, but for rows_ beside layout_.
  std::unique_ptr<Handoff> handoff_;
  std::unique_ptr<CollectiveLayout<T>> layout_;
  std::unique_ptr<RowExchange<T>> rows_;
  std::unique_ptr<ExpertMover<T>> mover_;
  std::unique_ptr<SliceExchange<T>> slices_;
  std::unique_ptr<ActivationExchange<T>> activations_;
};

}  // namespace moe
