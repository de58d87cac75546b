// Draws the experts of one rank's tokens in one layer by popularity and, where layers depend on
// each other, by the chain of first choices (workload.h). Invariant: a draw depends only on keys
// and the token's number. Popularity itself is in popularity.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/routing/popularity.h"

namespace moe {

/// Walker's alias table: draws a class by its share from 32 random bits, in constant time.
class AliasTable {
 public:
  /// share: [n], n >= 1, sums to 1.
  explicit AliasTable(std::span<const double> share);
  /// Returns a class. Has no branch, because the processor could not predict one.
  int32_t draw(uint32_t bits) const {
    const uint64_t at = uint64_t{bits} * cells_.size();
    const auto own = static_cast<int32_t>(at >> 32);
    const Cell& cell = cells_[static_cast<size_t>(own)];
    const int32_t otherwise = -static_cast<int32_t>((at & 0xFFFFFFFF) >= cell.below);
    return own ^ ((own ^ cell.otherwise) & otherwise);
  }
  /// Returns how often each class is drawn by hash32(0, key) to hash32(tokens - 1, key): [n].
  std::vector<int64_t> count(int64_t tokens, uint32_t key) const;

 private:
  struct Cell {
    uint64_t below;  // threshold out of 2^32 for the cell's own class
    int32_t otherwise;
  };
  std::vector<Cell> cells_;
};

/// How the class of a first choice follows from the class in the layer before: with probability
/// `same` it stays, with `beside` it becomes neighbour(class), otherwise it is drawn by `fresh`.
/// `fresh` is chosen so that the popularity remains `share`.
struct ChainStep {
  double same = 0, beside = 0;
  std::vector<double> fresh;
};
/// Returns the class paired with class c of n: 0 with 1, 2 with 3, ...; the last class of an odd
/// number is its own neighbour.
inline int64_t neighbour(int64_t c, int64_t n) {
  return (c ^ 1) < n ? c ^ 1 : c;
}
/// Returns the step for which, on average over tokens, a share top1 keeps its class and a share
/// top2 keeps it or goes to its neighbour. Returns the nearest possible step when already
/// independent choices give larger shares, or when the popularity could not stay the same.
ChainStep chain_step(const std::vector<double>& share, double top1, double top2);

/// Draws the choices in one layer, for all ranks that share a popularity. All tokens of a rank are
/// drawn together: the first choices layer by layer, from the last layer back, then one further
/// choice after the other; a shrinking list holds the tokens that have no class yet.
class Sampler {
 public:
  Sampler(const WorkloadSetting& setting, const RoutingQuery& query, Popularity popularity);

  /// Writes how often the first `tokens` tokens of a rank choose each expert into counts [experts].
  void count(int64_t rank, int64_t tokens, std::span<int64_t> counts) const;
  /// Writes the choices of a rank's tokens: [tokens, k].
  void choose(int64_t rank, std::span<int32_t> choices) const;

 private:
  struct Keys {
    std::vector<uint32_t> first;  // per layer up to the query's; without a chain only the query's
    std::vector<uint32_t> more;   // per choice after the first
  };
  struct Transition {
    uint64_t same, same_or_neighbour;  // thresholds out of 2^32
    uint64_t stretch;                  // 2^24 divided by the remaining probability
    AliasTable fresh;
  };
  Keys keys_of(int64_t rank) const;
  /// Writes the classes of a rank's choices: [tokens, k].
  void draw(int64_t rank, std::span<int32_t> classes) const;
  void draw_first(const Keys& keys, std::span<int32_t> classes) const;
  void draw_more(size_t column, uint32_t key, std::span<int32_t> classes) const;
  int32_t left_class(double u, std::span<const int32_t> taken) const;

  const WorkloadSetting& setting_;
  RoutingQuery query_;
  Popularity popularity_;
  AliasTable table_;
  /// The transitions to layers 1, 2, ... up to the query's; a single one for all layers when `rise`
  /// is 0; empty for layer 0 or without a chain.
  std::vector<Transition> transitions_;
};

}  // namespace moe
