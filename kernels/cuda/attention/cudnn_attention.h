// Causal attention in bfloat16 by cuDNN's fused kernels, as one operation graph each way, of the
// ops that the library knows as attention: those of cudnn-frontend 1.32.
#pragma once

#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/kernels.h"

namespace moe::kernels::cuda {

enum class Direction : bool { kForward, kBackward };

/// Tensors of the graphs. Scores are multiplied by kScale, those that the mask hides are kHidden.
enum CudnnId : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kContext,
  kLse,  // lse: logarithm of a row's sum of exponentials
  kDquery,
  kDkey,
  kDvalue,
  kDcontext,
  kDelta,  // [batch, heads, seq, 1], a row's sum of dcontext * context
  kScale,
  kHidden,
  kOne
};

/// Whether graphs of that shape have been found sound in a library of that version
/// (cudnnGetVersion).
bool cudnn_takes(size_t version, AttentionShape shape);
CudnnGraph attention_graph(const CudnnCalls& calls, AttentionShape shape, Direction direction);

}  // namespace moe::kernels::cuda
