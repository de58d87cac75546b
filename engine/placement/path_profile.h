// Estimates how popular each expert of the next MoE layer will be, from the experts that tokens
// chose in the layers before (Lina, USENIX ATC 2023, section 5.1). A path is a token's first
// choices in the last PathOptions::path layers, say L; so layer L (from 0) is the first with an
// estimate, or layer 1 with PathOptions::shorter. A profile, made in advance from recorded choices,
// states for each path how probable each expert is in the next layer. The estimate is the sum of
// these probabilities over the tokens of a batch (Eq. 1). Invariant: a probability is stored as its
// mass, a whole number of 1 / kMassOne, so sums do not depend on how tokens are split among ranks.
// Placing by an estimate is in two_phase.h.
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
  int64_t layers = 1;   // number of MoE layers
  int64_t experts = 1;  // per layer
  int64_t path = 3;     // number of layers in a path
  int64_t keep = 1;     // probabilities kept per path, the largest; in the paper k of the gate
  /// What happens to a token whose path is not in the profile (the paper leaves this open). false:
  /// it adds nothing to an estimate. true: the longest known end of its path is used instead, so
  /// that early layers are estimated from shorter paths.
  bool shorter = false;
  bool operator==(const PathOptions&) const = default;
};
/// Throws UserError naming "popularity.<field>", the value and what is allowed. A path and the
/// expert after it must fit into 63 bits, bit_width(experts) bits per layer.
void check(const PathOptions& options);

/// The paths of one rank's tokens in one batch, extended layer by layer.
class TokenPaths {
 public:
  /// Throws like check(options), and when tokens is negative.
  TokenPaths(const PathOptions& options, int64_t tokens);
  /// Starts a new batch, in which no token has chosen an expert yet.
  void clear();
  /// Adds the choices in the next layer [tokens, k], first choice first; with -1 (no choice) no
  /// path goes through that layer. Throws UserError for a wrong length or expert.
  void add(std::span<const int32_t> choices, int64_t k);
  /// Returns the code of each token's path [tokens], the last layer in the lowest bits; a layer
  /// without a choice has 0.
  std::span<const uint64_t> codes() const { return codes_; }

 private:
  PathOptions options_;
  int bits_;
  uint64_t mask_;
  std::vector<uint64_t> codes_;
};

constexpr int64_t kMassOne = int64_t{1} << 31;

/// The estimate for one batch and layer: of one rank's tokens, or of all ranks after add().
struct Estimate {
  std::vector<int64_t> mass;  // [experts], the sum over tokens of their kept probabilities
  int64_t tokens = 0;         // N_t, the number of all tokens
  int64_t known = 0;          // the number of tokens whose path is in the profile
  void add(const Estimate& other);
};
/// Returns n_e of Eq. 1, the number of devices that each expert should have: devices * mass /
/// tokens. The sum is at most `devices`; with normalise it is exactly that unless all masses are 0.
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
  /// Returns whether any path leads to the layer, so that it can be estimated.
  bool covers(int64_t layer) const;
  int64_t num_paths(int64_t layer) const;
  /// Returns the entries kept for a path, most probable first; empty when the path is not known.
  std::vector<Kept> at(int64_t layer, std::span<const int32_t> path) const;
  /// Returns one rank's part of Eq. 1. paths: the tokens' choices before `layer`.
  Estimate estimate(int64_t layer, const TokenPaths& paths) const;

  /// Returns the profile as text, one line per path; parse(text()) is the same profile. parse
  /// throws UserError naming the line.
  std::string text() const;
  static PathProfile parse(std::string_view text);
  bool operator==(const PathProfile& other) const;

 private:
  friend class PathCounts;
  struct Slot {
    uint64_t path = 0;  // 0: empty slot
    Kept first;         // the most probable entry of the path
    uint32_t row = 0;   // number of the path in `paths`
  };
  /// The paths of one length that lead to one layer.
  struct Table {
    std::vector<uint64_t> paths;  // ascending
    std::vector<Kept> kept;       // [paths, keep]
    /// Hash table over paths with open addressing, of a size that is a power of two; empty when
    /// there is no path.
    std::vector<Slot> slots;
    void index(int64_t keep);
    /// Returns null for a path that is not in the table, and for 0.
    const Slot* find(uint64_t path) const;
  };
  explicit PathProfile(const PathOptions& options);
  Table& table(int64_t layer, int64_t length);
  const Table& table(int64_t layer, int64_t length) const;
  int64_t shortest() const { return options_.shorter ? 1 : options_.path; }

  PathOptions options_;
  std::vector<Table> tables_;  // [layers, path]
};

/// Collects choices of any number of batches and makes a profile of them.
class PathCounts {
 public:
  /// Throws like check(options).
  explicit PathCounts(const PathOptions& options);
  /// Adds the choices of one rank's tokens in `layer` [tokens, k], with their paths before it. All
  /// k choices of a token count equally. Throws like TokenPaths::add, and for a layer out of range.
  void add(int64_t layer, const TokenPaths& before, std::span<const int32_t> choices, int64_t k);
  /// Makes the profile. Of equal probabilities that of the lower expert is kept.
  PathProfile profile() const;

 private:
  /// Counts of each (path, expert), in sorted runs: a hash table would be no faster at these sizes.
  struct Counts {
    std::vector<std::pair<uint64_t, int64_t>> counted;  // ascending
    std::vector<uint64_t> pending;
    /// Merges `pending` into `counted`. key_bits: the number of bits used in a key.
    void flush(int key_bits);
    /// As many pending as counted keys: all merges together then move each key a few times.
    bool is_full() const;
  };
  void keep_most_probable(const Counts& counts, PathProfile::Table& table) const;

  PathOptions options_;
  std::vector<Counts> counts_;  // [layers, path]
};

/// Adds, for the tokens of one rank and batch, the transitions from the expert chosen in one layer
/// (as source) to the expert chosen in the next (as expert). before, after: first choices [tokens];
/// -1: no choice. Throws UserError for an expert out of range or lists of different length.
void add_transitions(std::span<const int32_t> before, std::span<const int32_t> after,
                     ExpertCounts& transitions);
/// Lina, figure 9: the share of all tokens whose next expert is among the `top` most popular ones
/// of the tokens with the same expert before; 0 without tokens.
double locality(const ExpertCounts& transitions, int64_t top);

}  // namespace moe
