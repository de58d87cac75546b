// The workloads W0 to W7 of the token-imbalance benchmark that was proposed for Megatron-LM (issue
// 6757, pull request 7488 of NVIDIA/Megatron-LM; routing_for_step of
// benchmarks/moe/token_imbalance/benchmark.py, commit f5c50249). Choices are a function of
// workload, seed and step alone, bit for bit those of that file: the generator is PyTorch's on CPUs
// (MT19937), seeded with the first four bytes of the SHA-256 of "workload|seed|step", steps from 0,
// and a token takes the first k of a random permutation of its pool. So all ranks and all layers
// have the same choices. A token's choices are in ascending order of experts, and of W0 in turn. Of
// W4 the file describes uneven numbers of tokens per rank, but its generator gives every rank as
// many; here too.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/routing/routing_model.h"

namespace moe {

struct TokenImbalance {
  const char *name, *doc;
};
const std::vector<TokenImbalance>& token_imbalances();

/// Returns the routing model of one of token_imbalances(). Requires: the name is one of theirs. The
/// model throws UserError for k > experts, and where a pool has fewer than k experts.
RoutingModel token_imbalance(std::string_view name, uint64_t seed);

}  // namespace moe
