// How a gate's scores and weights are computed. Gates and models are described by them, so they are
// apart from the table of kernels.
#pragma once

#include <cstdint>

namespace moe::kernels {

/// How the weights of a token's choices are computed from the scores p of the gate: the score
/// itself (kProb), the score divided by the sum over the token's choices (kRenorm), or 1 (kOne).
enum class WeightRule : int32_t { kProb, kRenorm, kOne };
/// How scores p are computed from logits: softmax over experts, or elementwise sigmoid.
enum class ScoreRule : int32_t { kSoftmax, kSigmoid };

}  // namespace moe::kernels
