// How popular each expert of the next MoE layer will be, estimated from the experts that tokens
// chose in the layers before (Lina, USENIX ATC 2023, section 5.1): an offline profile of sample
// paths, and the sum of Eq. 1 over a batch. A path is a token's first choices in the `path` layers
// before the estimated one, so the first layer with an estimate is layer `path` (from 0). Masses
// are whole numbers of 1 / kMassOne: a sum does not depend on how tokens are split among ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/routing/expert_counts.h"

namespace moe {

struct PathOptions {
  int64_t layers = 1;   // MoE layers
  int64_t experts = 1;  // a layer
  int64_t path = 3;     // layers of a path
  int64_t keep = 1;     // probabilities kept a path, the largest ones: k of the gate in the paper
  /// A token whose path the profile does not know: false, it adds nothing to an estimate (the paper
  /// does not say); true, the longest end of its path that is known stands for it. Then early
  /// layers have estimates as well, from shorter paths.
  bool shorter = false;
  bool operator==(const PathOptions&) const = default;
};
/// Throws UserError naming "popularity.<field>", the value and what is allowed: a path and the
/// expert after it are coded in 63 bits, bit_width(experts) a layer.
void check(const PathOptions& options);

/// The paths of one rank's tokens in one batch, from layer to layer.
class TokenPaths {
 public:
  /// Throws as check(options), and for less than no token.
  TokenPaths(const PathOptions& options, int64_t tokens);
  /// A new batch: no token has chosen yet.
  void clear();
  /// What the tokens chose in the next layer [tokens, k], first choice first; -1: none, then no
  /// path goes through that layer. Throws UserError for a wrong length or expert.
  void add(std::span<const int32_t> choices, int64_t k);
  /// [tokens]: the path of each, the last layer in the lowest bits; 0 where a layer has no choice.
  std::span<const uint64_t> codes() const { return codes_; }

 private:
  PathOptions options_;
  int bits_;
  uint64_t mask_;
  std::vector<uint64_t> codes_;
};

constexpr int64_t kMassOne = int64_t{1} << 31;

/// Of one batch and layer; of one rank's tokens, or of all after adding them up.
struct Estimate {
  std::vector<int64_t> mass;  // [experts], the sum over tokens of their kept probabilities
  int64_t tokens = 0;         // N_t: all of them
  int64_t known = 0;          // those with a known path
  void add(const Estimate& other);
};
/// Eq. 1: n_e, how many of the devices each expert should have: devices * mass / tokens. They add
/// up to at most `devices`; normalise: to exactly that, where there is any mass.
std::vector<double> wanted_devices(const Estimate& estimate, int64_t devices,
                                   bool normalise = false);

class PathProfile {
 public:
  struct Kept {
    int32_t expert = -1;
    uint32_t mass = 0;  // probability * kMassOne
    bool operator==(const Kept&) const = default;
  };

  const PathOptions& options() const { return options_; }
  /// Whether any path leads to the layer, so that it can be estimated.
  bool covers(int64_t layer) const;
  int64_t num_paths(int64_t layer) const;
  /// What is kept for a path, most probable first; empty where it is not known.
  std::vector<Kept> at(int64_t layer, std::span<const int32_t> path) const;
  /// The part of Eq. 1 that one rank's tokens make. paths: what they chose before `layer`.
  Estimate estimate(int64_t layer, const TokenPaths& paths) const;

  /// Text, one line a path; parse(text()) is the same profile. parse throws UserError naming the
  /// line.
  std::string text() const;
  static PathProfile parse(std::string_view text);
  bool operator==(const PathProfile& other) const;

 private:
  friend class PathCounts;
  struct Slot {
    uint64_t path = 0;  // 0: empty
    Kept first;         // of the row
    uint32_t row = 0;
  };
  /// Paths of one length that lead to one layer.
  struct Table {
    std::vector<uint64_t> paths;  // ascending
    std::vector<Kept> kept;       // [paths, keep]
    std::vector<Slot> slots;      // open addressing over paths, a power of two; empty: no path
    void index(int64_t keep);
    /// Null for a path that is not there, and for 0.
    const Slot* find(uint64_t path) const;
  };
  explicit PathProfile(const PathOptions& options);
  Table& table(int64_t layer, int64_t length);
  const Table& table(int64_t layer, int64_t length) const;
  int64_t shortest() const { return options_.shorter ? 1 : options_.path; }

  PathOptions options_;
  std::vector<Table> tables_;  // [layers, path]
};

/// Collects choices of any number of batches for a profile.
class PathCounts {
 public:
  /// Throws as check(options).
  explicit PathCounts(const PathOptions& options);
  /// What one rank's tokens chose in `layer` [tokens, k], and their paths before. Every choice of a
  /// token counts alike. Throws as TokenPaths::add, and for a layer out of range.
  void add(int64_t layer, const TokenPaths& before, std::span<const int32_t> choices, int64_t k);
  /// Of equal probabilities the lower expert's is kept.
  PathProfile profile() const;

 private:
  /// (path, expert) -> how often, kept as sorted runs: hashing would be no faster at these sizes.
  struct Counts {
    std::vector<std::pair<uint64_t, int64_t>> counted;  // ascending
    std::vector<uint64_t> pending;
    /// pending becomes part of counted. key_bits: what keys take.
    void flush(int key_bits);
    /// As many as are counted, so that all merging together moves each key a few times.
    bool is_full() const;
  };
  void keep_most_probable(const Counts& counts, PathProfile::Table& table) const;

  PathOptions options_;
  std::vector<Counts> counts_;  // [layers, path]
};

/// Of tokens by the expert chosen in one layer (source) how many choose each expert in the next
/// (expert): adds those of one rank and batch. before, after [tokens] first choices; -1: none.
/// Throws UserError for an expert out of range or lists that differ in length.
void add_transitions(std::span<const int32_t> before, std::span<const int32_t> after,
                     ExpertCounts& transitions);
/// Lina, figure 9: the share of tokens that go on to one of the `top` experts that are most popular
/// among the tokens with the same expert before; over all tokens. 0 without tokens.
double locality(const ExpertCounts& transitions, int64_t top);

}  // namespace moe
