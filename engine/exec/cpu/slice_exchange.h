// A reduce-scatter or all-gather of one rank: the message that carries the slices of the op's
// tensors (ops/slices.h). A slice_length() of every tensor, one after the other, is a block; the
// message has one block per member, in the members' order. Slices are padded with zeros to their
// full length.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/exec/collective_layout.h"

namespace moe {

/// The op is laid out once and called every step. T is the float type of the run.
template <class T>
class SliceExchange {
 public:
  /// `scratch` has room for the message; it is used only within a call. `rank` is the number of
  /// this rank among all ranks. Requires: a legal plan; a kReduceScatter or kAllGather.
  SliceExchange(const Graph& graph, OpId op, const CollectiveMemory& memory, void* scratch,
                int64_t rank);

  /// The elements of a block that belong to a chunk.
  ElementRange elements(int64_t chunk, int64_t num_chunks) const;
  /// Transfers these elements of every block. `what` names the op in errors.
  CommTimes call(Communicator& all, const std::string& what, ElementRange range);
  /// Bytes that this rank sends for these elements: in a ring of N, (N-1)/N of the message.
  Bytes bytes(ElementRange range) const {
    return (group_.size - 1) * (range.last - range.first) * static_cast<Bytes>(sizeof(T));
  }

 private:
  /// A tensor of `n` elements, and of a reduce-scatter the slice of its sum.
  struct Part {
    T* whole;
    T* slice;
    int64_t n;
  };

  template <class F>
  void each_slice(int64_t place, ElementRange range, F f) const;
  void pack(int64_t place, ElementRange range);
  void unpack(int64_t place, ElementRange range);

  Group group_;
  int64_t place_;  // number of this rank within its group
  bool scatters_;
  std::vector<Part> parts_;
  int64_t block_ = 0;  // elements of a block
  T* message_;
};

}  // namespace moe
