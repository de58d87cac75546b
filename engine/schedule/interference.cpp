#include "engine/schedule/interference.h"

#include <algorithm>
#include <numeric>

namespace moe {

Interference::Interference(const HappensBefore& hb, std::span<const Block> blocks)
    : blocks_(blocks),
      num_chains_(hb.num_chains()),
      words_((blocks.size() + 63) / 64),
      first_(num_chains_ + 1),
      free_from_(blocks.size() * num_chains_),
      rows_(blocks.size() * words_) {
  start_.reserve(blocks.size());
  for (const Block& block : blocks) {
    start_.push_back(hb.index(block.start));
    ++first_[hb.chain(block.start) + 1];
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  find_free_from(hb);
  for (size_t c = 0; c < num_chains_; ++c) sweep_chain(hb, c);
}

void Interference::find_free_from(const HappensBefore& hb) {
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const std::vector<int32_t>& over = blocks_[b].over;
    const auto in_use_at = [&](OpId op) {
      const std::span<const int32_t> clock = hb.clock(op);
      for (size_t c = 0; c < num_chains_; ++c) {
        if (clock[c] < over[c]) return true;
      }
      return false;
    };
    for (size_t c = 0; c < num_chains_; ++c) {
      const std::vector<OpId>& chain = hb.chains().lanes[c];
      const auto found = std::partition_point(chain.begin(), chain.end(), in_use_at);
      free_from_[b * num_chains_ + c] = static_cast<int32_t>(found - chain.begin());
    }
  }
}

/// Computes the matrix rows of the blocks that start on `chain`. The row of block b has a bit for
/// each block that is not free yet when b starts, except for blocks that start only after b is
/// free.
void Interference::sweep_chain(const HappensBefore& hb, size_t chain) {
  const size_t n = blocks_.size();
  std::vector<uint64_t> alive(words_, ~uint64_t{0});
  std::vector<uint32_t> by_end(n);
  std::iota(by_end.begin(), by_end.end(), 0);
  const auto end = [&](uint32_t b) { return free_from_[b * num_chains_ + chain]; };
  std::sort(by_end.begin(), by_end.end(), [&](uint32_t a, uint32_t b) { return end(a) < end(b); });
  size_t ended = 0;
  for (size_t b = first_[chain]; b < first_[chain + 1]; ++b) {
    for (; ended < n && end(by_end[ended]) <= hb.index(blocks_[b].start); ++ended) {
      alive[by_end[ended] / 64] &= ~(uint64_t{1} << (by_end[ended] % 64));
    }
    add_started_before_free(b, alive);
  }
}

void Interference::add_started_before_free(size_t block, const std::vector<uint64_t>& alive) {
  uint64_t* row = &rows_[block * words_];
  for (size_t c = 0; c < num_chains_; ++c) {
    const auto begin = start_.begin() + static_cast<std::ptrdiff_t>(first_[c]);
    const auto end = start_.begin() + static_cast<std::ptrdiff_t>(first_[c + 1]);
    const auto cut = std::lower_bound(begin, end, free_from_[block * num_chains_ + c]);
    const size_t from = first_[c], to = static_cast<size_t>(cut - start_.begin());
    for (size_t w = from / 64; w * 64 < to; ++w) {
      uint64_t mask = ~uint64_t{0};
      if (w == from / 64) mask &= ~uint64_t{0} << (from % 64);
      if (to - w * 64 < 64) mask &= (uint64_t{1} << (to % 64)) - 1;
      row[w] |= alive[w] & mask;
    }
  }
  row[block / 64] &= ~(uint64_t{1} << (block % 64));
}

}  // namespace moe
