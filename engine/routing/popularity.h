// The popularity of experts under a workload in one step and layer; implements the entries of
// workloads() (workload.h). Every value is a pure function of setting, query and rank. How tokens
// draw their experts by popularity is in sampler.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "engine/base/rng.h"
#include "engine/routing/workload.h"

namespace moe {

/// The random streams of a workload, one per purpose.
enum class RandomStream : uint64_t {
  kOrder = 1,
  kShape,
  kDrift,
  kHot,
  kTokens,
  kFollow,
  kMore,
  kActive,
  kScores,
  kSources,
  kIds
};

/// Returns the key of a stream from the seed, the purpose and the numbers `on` it depends on.
inline uint32_t stream_key(uint64_t seed, RandomStream stream, std::initializer_list<int64_t> on) {
  uint32_t key = hash32(static_cast<uint64_t>(stream), hash32(seed, seed >> 32));
  for (const int64_t value : on) key = hash32(static_cast<uint64_t>(value), key);
  return key;
}

/// The probabilities with which the tokens of one rank choose experts.
struct Popularity {
  std::vector<double> share;       // [experts], indexed by class; sums to 1
  std::vector<int32_t> expert_of;  // [experts], the expert of each class
};

/// The entry of workloads() with index `row`, and a value for each of its options, in their order.
struct WorkloadSetting {
  size_t row = 0;
  std::vector<double> values;
  uint64_t seed = 0;

  double value(std::string_view option) const;
  /// Returns whether choices in a layer depend on the layer before.
  bool chained() const { return value("top1") > 0; }
};

/// Returns a share of tokens (`mass`: top1 or top2) for the transition to layer `layer` >= 1: 1 -
/// (1 - mass) (1 - rise)^(layer - 1).
double risen(double mass, double rise, int64_t layer);

Popularity popularity(const WorkloadSetting& setting, const RoutingQuery& query, int64_t rank);
/// Returns whether ranks differ in popularity.
bool differs_by_source(const WorkloadSetting& setting);
/// Returns how many tokens of the rank choose experts; the rank's last tokens do not choose.
int64_t active_tokens(const WorkloadSetting& setting, const RoutingQuery& query, int64_t rank);

/// Returns a pseudo-random permutation of 0 .. n-1, which depends only on n and key.
std::vector<int32_t> permutation(int64_t n, uint32_t key);

}  // namespace moe
