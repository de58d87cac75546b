// A collective of activations of one rank: gather_rows or scatter_rows (ops/group_rows.cpp), of a
// block of numbers per member, or shift_rows (ops/attend_ring.cpp). Along the axis that members
// join or divide, the rows of a member are neighbours, or two parts (cp); where axes before it are
// longer than 1, and of parts, blocks are packed into a message.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/collective_layout.h"

namespace moe {

/// The op is laid out once and called every step. T is the float type of the run.
template <class T>
class ActivationExchange {
 public:
  /// `scratch` has room for the message; it is used only within a call. Requires: a legal plan.
  ActivationExchange(const Graph& graph, OpId op, const CollectiveMemory& memory, void* scratch);
  /// `what` names the op in errors.
  CommTimes call(Communicator& all, const std::string& what);
  /// Bytes that this rank sends: in a ring of N, N-1 blocks.
  Bytes bytes() const {
    return (shifted_.empty() ? group_.size - 1 : 1) * block_ * static_cast<Bytes>(sizeof(T));
  }

 private:
  /// Calls f(whole, message, n) for each run of neighbours: their first elements in the whole
  /// tensor and in the message, and their number.
  template <class F>
  void each_run(F f) const;
  CommTimes shift(Communicator& comm, const std::string& what, int64_t place) const;

  /// A tensor that goes to the next rank, and the one that comes.
  struct Shifted {
    T *to_next, *from_before;
    Bytes bytes;
  };
  Group group_;
  bool scatters_;
  std::vector<Shifted> shifted_;  // empty unless the op is shift_rows
  T *part_ = nullptr, *whole_ = nullptr, *message_ = nullptr;
  int64_t block_ = 0;  // elements of a member
  int64_t outer_ = 1;  // by the axes before
  int64_t parts_ = 1;  // of the axis that a member has, the second from the end (cp)
};

}  // namespace moe
