// Estimates how popular each expert of the next MoE layer will be, from the experts that tokens
// chose in the layers before (Lina, USENIX ATC 2023, section 5.1). A path is a token's first
// choices in the last PathOptions::path layers, say L; so layer L (from 0) is the first with an
// estimate, or layer 1 with PathOptions::shorter. A profile, made in advance from recorded choices,
// states for each path how probable each expert is in the next layer. The estimate is the sum of
// these probabilities over the tokens of a batch (Eq. 1). Invariant: a probability is stored as its
// mass, an integer in units of 1 / kMassOne, so sums do not depend on which rank has which tokens.
// Placing by an estimate is in two_phase.h.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/routing/expert_counts.h"

namespace moe {

struct PathOptions {
  int64_t layers = 1;   // number of MoE layers
  int64_t experts = 1;  // per layer
  int64_t path = 3;     // number of layers in a path
  int64_t keep = 1;     // the most experts stored per path; in the paper as many as the gate's k
  /// What happens to a token whose path is not in the profile (the paper leaves this open). false:
  /// it adds nothing to an estimate. true: the longest end of the path that is in the profile is
  /// used instead, so that early layers are estimated from shorter paths.
  bool shorter = false;
  bool operator==(const PathOptions&) const = default;
};
/// Throws UserError that begins "popularity.<field> = <value>" and states what is allowed. Limits
/// `path`: its experts and the one after them take bit_width(experts) bits each, 63 in all.
void check(const PathOptions& options);

/// The paths of one rank's tokens in one batch, extended layer by layer.
class TokenPaths {
 public:
  /// Throws like check(options), and when `tokens` is not from 0 to 2^40.
  TokenPaths(const PathOptions& options, int64_t tokens);
  /// Starts a new batch, in which no token has chosen an expert yet.
  void clear();
  /// Adds the choices in the next layer [tokens, k], each token's first choice first. Only first
  /// choices belong to paths; no path goes through a layer in which the first choice is -1 (none).
  /// Throws UserError for a wrong length or expert.
  void add(std::span<const int32_t> choices, int64_t k);
  /// Returns the code of each token's path [tokens]: per layer expert + 1, or 0 without a choice;
  /// the last layer is in the lowest bits.
  std::span<const uint64_t> codes() const { return codes_; }

 private:
  PathOptions options_;
  int bits_;
  uint64_t mask_;
  std::vector<uint64_t> codes_;
};

constexpr int64_t kMassOne = int64_t{1} << 31;

/// How popular each expert of one layer is estimated to be for one batch: for the tokens of one
/// rank or, after add() of the other ranks' estimates, of all ranks.
struct Estimate {
  std::vector<int64_t> mass;  // [experts], the sum over tokens of the expert's stored mass
  int64_t tokens = 0;         // N_t, the number of all tokens
  int64_t known = 0;          // the number of tokens whose path is in the profile
  void add(const Estimate& other);
};
/// Returns n_e of Eq. 1, the number of devices that each expert should have: devices * mass /
/// tokens. Their sum is at most `devices`, and with normalise equal to it unless all masses are 0.
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
  /// Returns the experts stored for a path before `layer`, most probable first; empty when the
  /// profile lacks the path.
  std::vector<Kept> at(int64_t layer, std::span<const int32_t> path) const;
  /// Returns the estimate for one rank's tokens. paths: the tokens' choices before `layer`.
  Estimate estimate(int64_t layer, const TokenPaths& paths) const;

  bool operator==(const PathProfile& other) const;

 private:
  friend class PathCounts;
  struct Slot {
    uint64_t path = 0;  // code of the path; 0 if this slot of the hash table is empty
    Kept first;         // the most probable expert after the path
    uint32_t row = 0;   // index of the path in `paths`
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
  /// Makes the profile. Of equally probable experts the lower is stored.
  PathProfile profile() const;

 private:
  /// How often each (path, expert) occurred, as a sorted list: a hash table would be no faster.
  struct Counts {
    std::vector<std::pair<uint64_t, int64_t>> counted;  // ascending
    std::vector<uint64_t> pending;
    /// Merges `pending` into `counted`. key_bits: the number of bits used in a key.
    void flush(int key_bits);
    /// Returns whether at least as many keys are pending as counted, and at least 2^16. With merges
    /// only at such times, each key is moved only a few times in total.
    bool is_full() const;
  };
  void keep_most_probable(const Counts& counts, PathProfile::Table& table) const;

  PathOptions options_;
  std::vector<Counts> counts_;  // [layers, path]
};

}  // namespace moe
