// One rank's memory as the plan lays it out: an arena that tensors of a step share, storage that
// persists across steps, and a scratch area a lane. Buffers of the arena hold garbage until an op
// writes them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "engine/plan.h"

namespace moe {

/// Uninitialised, aligned to kAlignment (to a huge page where it is that large).
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

/// Bytes of a tensor with floats of `element_bytes` (0: as they are); index tensors and the loss
/// keep their size.
Bytes tensor_bytes(const Tensor& tensor, Bytes element_bytes);

class RankBuffers {
 public:
  /// Throws UserError when the plan's memory was made for another element size.
  RankBuffers(const Plan& plan, Bytes element_bytes);

  /// Null for an invalid id.
  void* at(TensorId tensor) const;
  void* scratch(LaneId lane) const { return scratch_.data() + scratch_offset_[lane.index()]; }
  /// All tensors that persist across steps.
  std::span<std::byte> persistent() const {
    return {persistent_.data(), static_cast<size_t>(persistent_.size())};
  }
  /// Makes the arena's pages present; called on the thread that will use them.
  void touch();
  /// What this rank really holds.
  Bytes allocated() const { return arena_.size() + persistent_.size() + scratch_.size(); }

 private:
  const Plan& plan_;
  std::vector<Bytes> scratch_offset_;  // by lane
  Storage arena_, persistent_, scratch_;
};

/// For tests: makes a use of a buffer outside its tensor's life show. A tensor is filled with NaN
/// (an index tensor with 0x80 bytes) before the op that writes it, unless it takes over a live
/// input, and after its last reader on this timing; joined tensors together, before the op with
/// which their block starts and after the last use of any. Calls of different lanes may overlap.
class Poison {
 public:
  Poison(const Plan& plan, const RankBuffers& buffers, Bytes element_bytes);
  void start_step();
  void before(OpId op);
  /// Requires: called before the op is marked as finished.
  void after(OpId op);

 private:
  void fill(TensorId tensor);
  void fill_joined(size_t block);
  /// Blocks of the arena that hold joined tensors of the op.
  std::set<size_t> joined_blocks(const Op& op) const;

  const Plan& plan_;
  const RankBuffers& buffers_;
  Bytes element_bytes_;
  std::vector<int32_t> num_readers_;  // by tensor; -1: never poisoned after use
  std::vector<std::atomic<int32_t>> readers_left_;
  std::vector<int32_t> num_users_;  // by joined block: ops that read or write one of its tensors
  std::vector<std::atomic<int32_t>> users_left_;
};

}  // namespace moe
