// What is computed from a routing: weights, checksum, drops.
#include "engine/routing/gate.h"

namespace moe {
namespace {

constexpr uint64_t kFnvPrime = 1099511628211ull;

uint64_t fnv1a(uint64_t hash, uint8_t byte) {
  return (hash ^ byte) * kFnvPrime;
}

}  // namespace

template <class T>
void gate_weights(T* weight, const T* scores, const RoutingMaps& maps, kernels::WeightRule rule,
                  T scale) {
  for (int64_t t = 0; t < maps.tokens; ++t) {
    const T* row = scores + t * maps.experts;
    const int32_t* expert = maps.expert + t * maps.columns;
    T sum = 1;
    if (rule == kernels::WeightRule::kRenorm) {
      sum = 0;
      for (int64_t j = 0; j < maps.columns; ++j) sum += expert[j] >= 0 ? row[expert[j]] : T{0};
    }
    for (int64_t j = 0; j < maps.columns; ++j) {
      const int64_t choice = t * maps.columns + j;
      if (maps.choice_slot[choice] < 0) {
        weight[choice] = 0;
      } else {
        weight[choice] = scale * (rule == kernels::WeightRule::kOne ? T{1} : row[expert[j]] / sum);
      }
    }
  }
}

template void gate_weights(float*, const float*, const RoutingMaps&, kernels::WeightRule, float);
template void gate_weights(double*, const double*, const RoutingMaps&, kernels::WeightRule, double);

uint64_t assignment_checksum(uint64_t so_far, const RoutingMaps& maps, AssignmentCode code) {
  if (code == AssignmentCode::kChoices) {
    for (int64_t i = 0; i < maps.tokens * maps.columns; ++i) {
      const int drop = maps.choice_slot[i] < 0 ? 0x80 : 0;
      so_far = fnv1a(so_far, static_cast<uint8_t>(maps.expert[i] | drop));
    }
    return so_far;
  }
  std::vector<uint8_t> taken(static_cast<size_t>(maps.experts));
  for (int64_t t = 0; t < maps.tokens; ++t) {
    taken.assign(taken.size(), 0);
    for (int64_t i = t * maps.columns; i < (t + 1) * maps.columns; ++i) {
      if (maps.choice_slot[i] >= 0) taken[static_cast<size_t>(maps.expert[i])] = 1;
    }
    for (const uint8_t byte : taken) so_far = fnv1a(so_far, byte);
  }
  return so_far;
}

int64_t dropped(const RoutingMaps& maps, AssignmentCode code) {
  int64_t count = 0;
  for (int64_t t = 0; t < maps.tokens; ++t) {
    bool taken = false;
    for (int64_t i = t * maps.columns; i < (t + 1) * maps.columns; ++i) {
      taken |= maps.choice_slot[i] >= 0;
      if (code == AssignmentCode::kChoices) count += maps.expert[i] >= 0 && maps.choice_slot[i] < 0;
    }
    if (code == AssignmentCode::kTaken) count += !taken;
  }
  return count;
}

}  // namespace moe
