// How popular experts are under a workload in one step and layer: the rows behind workloads().
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "engine/base/rng.h"
#include "engine/routing/workload.h"

namespace moe {

/// Streams of a workload's random numbers.
enum class RandomStream : uint64_t {
  kOrder = 1,
  kShape,
  kDrift,
  kHot,
  kTokens,
  kFollow,
  kMore,
  kActive
};

/// A stream's key by seed, what it is for, and what it depends on.
inline uint32_t stream_key(uint64_t seed, RandomStream stream, std::initializer_list<int64_t> on) {
  uint32_t key = hash32(static_cast<uint64_t>(stream), hash32(seed, seed >> 32));
  for (const int64_t value : on) key = hash32(static_cast<uint64_t>(value), key);
  return key;
}

/// What one rank's tokens choose by.
struct Popularity {
  std::vector<double> share;       // [experts] by class, sums to 1
  std::vector<int32_t> expert_of;  // [experts] class -> expert
};

/// A workload's row with the values of its options, in the row's order.
struct WorkloadSetting {
  size_t row = 0;
  std::vector<double> values;
  uint64_t seed = 0;

  double value(std::string_view option) const;
  /// Whether layers depend on each other.
  bool chained() const { return value("top1") > 0; }
};

/// A mass of the next expert in layer `layer` >= 1: 1 - (1 - mass) (1 -
/// rise)^(layer - 1).
double risen(double mass, double rise, int64_t layer);

Popularity popularity(const WorkloadSetting& setting, const RoutingQuery& query, int64_t rank);
/// Whether ranks differ in popularity.
bool differs_by_source(const WorkloadSetting& setting);
/// How many of the rank's tokens choose; the others are at its end.
int64_t active_tokens(const WorkloadSetting& setting, const RoutingQuery& query, int64_t rank);

/// A permutation of 0 .. n-1.
std::vector<int32_t> permutation(int64_t n, uint32_t key);

}  // namespace moe
