// The host memory of one rank, as the plan lays it out: an arena whose bytes the tensors of a step
// share, storage for the tensors that persist across steps, and a scratch area per lane. A tensor
// in the arena holds garbage until an op writes it. Where each tensor is placed is decided in
// schedule/memory.h, not here; memory of a device is in device/buffers.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "engine/plan.h"

namespace moe {

/// Owns uninitialised memory, aligned to kAlignment, or to a huge page if it has at least the size
/// of one. Throws RunError when the system cannot allocate it.
class Storage {
 public:
  explicit Storage(Bytes bytes);
  std::byte* data() const { return data_.get(); }
  Bytes size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  Bytes bytes_;
  std::unique_ptr<std::byte[], Free> data_;
};

/// Bytes of `tensor` when each of its floats has `element_bytes` (0: the size of their dtype).
/// Index tensors and the loss keep the size of their dtype.
Bytes tensor_bytes(const Tensor& tensor, Bytes element_bytes);

class RankBuffers {
 public:
  /// Throws UserError when the plan's memory was laid out for floats of fewer bytes than
  /// `element_bytes`.
  RankBuffers(const Plan& plan, Bytes element_bytes);

  /// Address of a tensor; null for an invalid id.
  void* at(TensorId tensor) const;
  void* scratch(LaneId lane) const { return scratch_.data() + scratch_offset_[lane.index()]; }
  /// The bytes of all tensors that persist across steps.
  std::span<std::byte> persistent() const {
    return {persistent_.data(), static_cast<size_t>(persistent_.size())};
  }
  /// Writes zeros to the arena and the scratch areas, so that the system allocates their pages.
  /// Called on the thread that will use them.
  void touch();
  Bytes allocated() const { return arena_.size() + persistent_.size() + scratch_.size(); }

 private:
  const Plan& plan_;
  std::vector<Bytes> scratch_offset_;  // indexed by lane
  Storage arena_, persistent_, scratch_;
};

/// For tests: makes the use of a buffer outside its tensor's lifetime visible. A tensor is filled
/// with NaN (an index tensor with 0x80 bytes) before the op that writes it, unless that op writes
/// in place over a live input, and again when its last reader has finished in this step. Tensors of
/// a joined block (Buffer::joined) are filled together: before the first op that writes into the
/// block, and when the last op that uses it has finished. Ops of different lanes may call at the
/// same time.
class Poison {
 public:
  Poison(const Plan& plan, const RankBuffers& buffers, Bytes element_bytes);
  void start_step();
  void before(OpId op);
  /// Fills the tensors whose last reader is `op`. Requires: called before the op is marked as
  /// finished in Progress.
  void after(OpId op);

 private:
  void fill(TensorId tensor);
  void fill_joined(size_t block);
  /// The joined blocks of the arena that hold an input or output of `op`.
  std::set<size_t> joined_blocks(const Op& op) const;

  const Plan& plan_;
  const RankBuffers& buffers_;
  Bytes element_bytes_;
  std::vector<int32_t> num_readers_;  // indexed by tensor; -1: not filled after its last use
  std::vector<std::atomic<int32_t>> readers_left_;
  std::vector<int32_t> num_users_;  // indexed by joined block: ops that use one of its tensors
  std::vector<std::atomic<int32_t>> users_left_;
};

}  // namespace moe
