// Draws the experts of one rank's tokens in one layer by popularity, and where layers depend on
// each other by the chain of first choices (workload.h). A draw depends on keys and the token's
// number alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/routing/popularity.h"

namespace moe {

/// Walker's alias table: a class in proportion to its share from 32 random bits, in constant time.
class AliasTable {
 public:
  /// share [n], n >= 1, sums to 1.
  explicit AliasTable(std::span<const double> share);
  /// Without a branch, which could not be foreseen.
  int32_t draw(uint32_t bits) const {
    const uint64_t at = uint64_t{bits} * cells_.size();
    const auto own = static_cast<int32_t>(at >> 32);
    const Cell& cell = cells_[static_cast<size_t>(own)];
    const int32_t otherwise = -static_cast<int32_t>((at & 0xFFFFFFFF) >= cell.below);
    return own ^ ((own ^ cell.otherwise) & otherwise);
  }
  /// [n]: how often each class is drawn from hash32(0, key) to hash32(tokens - 1, key).
  std::vector<int64_t> count(int64_t tokens, uint32_t key) const;

 private:
  struct Cell {
    uint64_t below;  // of 2^32: the cell's own class
    int32_t otherwise;
  };
  std::vector<Cell> cells_;
};

/// How the class of a first choice follows from that of the layer before: with probability `same`
/// it stays, with `beside` it is neighbour(class), else it is drawn by `fresh`, which is such that
/// popularity stays `share`.
struct ChainStep {
  double same = 0, beside = 0;
  std::vector<double> fresh;
};
/// Classes in pairs by popularity; the last of an odd number is its own.
inline int64_t neighbour(int64_t c, int64_t n) {
  return (c ^ 1) < n ? c ^ 1 : c;
}
/// The step whose mass on the same class, as a mean over tokens, is top1 and on it or its neighbour
/// top2; as near as can be where independent choices give more, or popularity could not stay.
ChainStep chain_step(const std::vector<double>& share, double top1, double top2);

/// The choices of one layer, for all ranks that share a popularity. Tokens are drawn
/// together, one layer or column after the other, those that are not settled yet in a list that
/// shrinks.
class Sampler {
 public:
  Sampler(const WorkloadSetting& setting, const RoutingQuery& query, Popularity popularity);

  /// How often the first `tokens` tokens of a rank choose each expert, into counts [experts].
  void count(int64_t rank, int64_t tokens, std::span<int64_t> counts) const;
  /// Their choices [tokens, k].
  void choose(int64_t rank, std::span<int32_t> choices) const;

 private:
  struct Keys {
    std::vector<uint32_t> first;  // by layer up to the query's; without a chain the last
    std::vector<uint32_t> more;   // by choice
  };
  struct Transition {
    uint64_t same, same_or_neighbour;  // of 2^32
    uint64_t stretch;                  // 2^24 over the rest of 1
    AliasTable fresh;
  };
  Keys keys_of(int64_t rank) const;
  /// Classes [tokens, k] of a rank's choices.
  void draw(int64_t rank, std::span<int32_t> classes) const;
  void draw_first(const Keys& keys, std::span<int32_t> classes) const;
  void draw_more(size_t column, uint32_t key, std::span<int32_t> classes) const;
  int32_t left_class(double u, std::span<const int32_t> taken) const;

  const WorkloadSetting& setting_;
  RoutingQuery query_;
  Popularity popularity_;
  AliasTable table_;
  std::vector<Transition>
      transitions_;  // by layer from 1; one for all without `rise`; empty: no chain
};

}  // namespace moe
