// Which blocks of storage may be in use at the same time, as one bit row per block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Storage that one tensor, or a chain of tensors in place of each other, needs.
struct Block {
  OpId start;                 // the op that first writes it
  std::vector<int32_t> over;  // by chain: ops of it that must be over before it is free
  Bytes bytes = 0;
  Bytes offset = 0;
};

/// Two blocks interfere unless every use of one is over, on any timing, when the other is first
/// written. O(blocks^2 / 64 + blocks * chains * log(ops)).
class Interference {
 public:
  /// Requires: blocks sorted by (chain, index) of their start.
  Interference(const HappensBefore& hb, std::span<const Block> blocks);
  bool between(size_t a, size_t b) const { return (rows_[a * words_ + b / 64] >> (b % 64)) & 1; }

 private:
  void find_free_from(const HappensBefore& hb);
  void sweep_chain(const HappensBefore& hb, size_t chain);
  void add_started_before_free(size_t block, const std::vector<uint64_t>& alive);

  std::span<const Block> blocks_;
  size_t num_chains_, words_;
  std::vector<size_t> first_;       // by chain: its first block; one more at the end
  std::vector<int32_t> start_;      // by block: index of its start on its chain
  std::vector<int32_t> free_from_;  // by block and chain: first op of the chain that finds it free
  std::vector<uint64_t> rows_;
};

}  // namespace moe
