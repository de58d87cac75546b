// Causal attention in bfloat16 by cuDNN's fused kernels: one operation graph per direction, built
// from the ops in which the library recognises attention, those of cudnn-frontend 1.32. How a graph
// is run is in attention_library.cpp.
#pragma once

#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/kernels.h"

namespace moe::kernels::cuda {

enum class Direction : bool { kForward, kBackward };

/// Ids of tensors in the graphs. Scores are multiplied by kScale; masked scores are kHidden.
enum CudnnId : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kContext,
  kLse,  // lse: logarithm of the sum of exponentials of a row
  kDquery,
  kDkey,
  kDvalue,
  kDcontext,
  kDelta,  // [batch, heads, seq, 1], the sum over a row of dcontext * context
  kScale,
  kHidden,
  kOne
};

/// Returns whether this version of cuDNN (cudnnGetVersion) is used for the shape: cuDNN must
/// support it, and no fault of the version that affects it is known.
bool cudnn_takes(size_t version, AttentionShape shape);
CudnnGraph attention_graph(const CudnnCalls& calls, AttentionShape shape, Direction direction);

}  // namespace moe::kernels::cuda
