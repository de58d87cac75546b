// Collective ops of one rank through a Communicator.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/exec/buffers.h"
#include "engine/exec/collective_layout.h"
#include "engine/exec/expert_mover.h"

namespace moe {

struct CollectiveDone {
  CommTimes times;
  Bytes bytes = 0;  // sent by this rank to others
};

/// One collective op of one rank, laid out once and called every step. T is the float type of the
/// run.
template <class T>
class CollectiveOp {
 public:
  /// rank: this one's among all. Requires: a legal plan.
  CollectiveOp(const Graph& graph, OpId op, const RankBuffers& buffers, void* scratch,
               int64_t rank);
  /// One chunk; called by every rank's lane in the same order with the lane's communicator of all
  /// ranks, an op's chunks in ascending order, others' between them. Throws as the Communicator
  /// does.
  CollectiveDone call(Communicator& all, int64_t chunk = 0, int64_t num_chunks = 1);

 private:
  CommTimes all_reduce(Communicator& comm, const std::string& what, ElementRange range);

  std::string name_;
  void* scratch_;
  std::unique_ptr<CollectiveLayout<T>> layout_;  // or
  std::unique_ptr<ExpertMover<T>> mover_;
};

}  // namespace moe
