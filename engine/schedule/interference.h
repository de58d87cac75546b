// Interference: which blocks of storage may be in use at the same time, as a matrix of one bit per
// pair of blocks. Offsets of blocks are computed in memory.cpp, not here.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/schedule/schedule.h"

namespace moe {

/// Storage for one tensor, or for several tensors that use the same bytes in turn.
struct Block {
  OpId start;  // the op that writes the block first
  // Per chain (HappensBefore): how many of its ops must be over before the block is free.
  std::vector<int32_t> over;
  Bytes bytes = 0;
  Bytes offset = 0;
};

/// Two blocks interfere unless all uses of one are over when the other is first written, whatever
/// the timing of the run. Time: O(blocks^2 / 64 + blocks * chains * log(ops)).
class Interference {
 public:
  /// Requires: blocks sorted by HappensBefore::chain, then HappensBefore::index of their `start`.
  Interference(const HappensBefore& hb, std::span<const Block> blocks);
  bool between(size_t a, size_t b) const { return (rows_[a * words_ + b / 64] >> (b % 64)) & 1; }
  /// Calls f(b) for each block b that interferes with a.
  template <class F>
  void for_each(size_t a, F f) const {
    for (size_t w = 0; w < words_; ++w) {
      for (uint64_t bits = rows_[a * words_ + w]; bits != 0; bits &= bits - 1) {
        f(w * 64 + static_cast<size_t>(std::countr_zero(bits)));
      }
    }
  }

 private:
  void find_free_from(const HappensBefore& hb);
  void sweep_chain(const HappensBefore& hb, size_t chain);
  void add_started_before_free(size_t block, const std::vector<uint64_t>& alive);

  std::span<const Block> blocks_;
  size_t num_chains_, words_;
  std::vector<size_t> first_;   // per chain: its first block; at the end, the number of blocks
  std::vector<int32_t> start_;  // per block: index of its first op on its chain
  // Per block and chain: index of the first op of the chain that begins after the block is free.
  std::vector<int32_t> free_from_;
  std::vector<uint64_t> rows_;
};

}  // namespace moe
