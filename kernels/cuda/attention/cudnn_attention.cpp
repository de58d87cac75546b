#include "kernels/cuda/attention/cudnn_attention.h"

namespace moe::kernels::cuda {
namespace {

using Tensor = CudnnGraph::Tensor;
using Sizes = CudnnGraph::Sizes;

/// Adds the ops of attention to a graph. The axes of tensors are [batch, heads, seq, column].
class Attention {
 public:
  Attention(CudnnGraph& graph, AttentionShape s)
      : g_(graph),
        heads_{s.batch, s.heads, s.seq, s.head_dim},
        scores_{s.batch, s.heads, s.seq, s.seq},
        row_{s.batch, s.heads, s.seq, 1},
        scale_(graph.scalar(kScale)) {}

  void forward() {
    const Tensor scaled = scaled_scores(in_qkv(kQuery), in_qkv_transposed(kKey));
    const Tensor scores = hide(scaled);
    const Tensor most = g_.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, g_.between(row_));
    const Tensor less = g_.binary(CUDNN_POINTWISE_SUB, scores, most, g_.between(scores_));
    const Tensor weights = g_.unary(CUDNN_POINTWISE_EXP, less, g_.between(scores_));
    const Tensor sum = g_.reduce(CUDNN_REDUCE_TENSOR_ADD, weights, g_.between(row_));
    const Tensor log = g_.unary(CUDNN_POINTWISE_LOG, sum, g_.between(row_));
    g_.binary(CUDNN_POINTWISE_ADD, most, log, rows(kLse));
    const Tensor probabilities =
        g_.binary(CUDNN_POINTWISE_DIV, weights, sum, g_.between(scores_, CUDNN_DATA_BFLOAT16));
    g_.matmul(probabilities, in_qkv(kValue), in_context(kContext));
  }

  /// dquery is one product, of the gradient of scores and the keys; kernels that add to dquery from
  /// several blocks, in any order, would give different bits on every run.
  void backward() {
    const Tensor query = in_qkv(kQuery), key = in_qkv_transposed(kKey);
    const Tensor dcontext = in_context(kDcontext);
    const Tensor terms =
        g_.binary(CUDNN_POINTWISE_MUL, dcontext, in_context(kContext), g_.between(heads_));
    const Tensor sum = g_.reduce(CUDNN_REDUCE_TENSOR_ADD, terms, g_.between(row_));
    // In the graph that cudnn-frontend builds for attention, and for which cuDNN has kernels, there
    // is a factor for dropout at this place. It is 1 here.
    const Tensor delta = g_.binary(CUDNN_POINTWISE_MUL, sum, g_.scalar(kOne), rows(kDelta));

    const Tensor less =
        g_.binary(CUDNN_POINTWISE_SUB, scaled_scores(query, key), rows(kLse), g_.between(scores_));
    const Tensor p = g_.unary(CUDNN_POINTWISE_EXP, hide(less), g_.between(scores_));
    g_.matmul(narrow_transposed(p), dcontext, in_qkv(kDvalue));

    const Tensor dp = g_.matmul(dcontext, in_qkv_transposed(kValue), g_.between(scores_));
    const Tensor apart = g_.binary(CUDNN_POINTWISE_SUB, dp, delta, g_.between(scores_));
    const Tensor weighted = g_.binary(CUDNN_POINTWISE_MUL, apart, p, g_.between(scores_));
    const Tensor ds = g_.binary(CUDNN_POINTWISE_MUL, weighted, scale_, g_.between(scores_));
    g_.matmul(narrow_transposed(ds), query, in_qkv(kDkey));
    const Tensor upright = g_.reshape(key, g_.between(heads_, qkv_strides(), CUDNN_DATA_FLOAT));
    g_.matmul(ds, upright, in_qkv(kDquery));
  }

 private:
  static Sizes transposed(const Sizes& s) { return {s[0], s[1], s[3], s[2]}; }
  int64_t hidden() const { return heads_[1] * heads_[3]; }
  Sizes qkv_strides() const { return {heads_[2] * 3 * hidden(), heads_[3], 3 * hidden(), 1}; }
  /// Returns a tensor that is a block of columns of qkv or of its gradient.
  Tensor in_qkv(int64_t id) { return g_.real(id, CUDNN_DATA_BFLOAT16, heads_, qkv_strides()); }
  Tensor in_qkv_transposed(int64_t id) {
    return g_.real(id, CUDNN_DATA_BFLOAT16, transposed(heads_), transposed(qkv_strides()));
  }
  Tensor in_context(int64_t id) {
    return g_.real(id, CUDNN_DATA_BFLOAT16, heads_, {heads_[2] * hidden(), heads_[3], hidden(), 1});
  }
  Tensor rows(int64_t id) {
    return g_.real(id, CUDNN_DATA_FLOAT, row_, {row_[1] * row_[2], row_[2], 1, 1});
  }
  Tensor scaled_scores(const Tensor& query, const Tensor& key) {
    const Tensor scores = g_.matmul(query, key, g_.between(scores_));
    return g_.binary(CUDNN_POINTWISE_MUL, scores, scale_, g_.between(scores_));
  }
  /// Returns the scores, with kHidden where the key comes after the query.
  Tensor hide(const Tensor& scores) {
    const Tensor row = g_.index(scores, 2), column = g_.index(scores, 3);
    const Tensor seen =
        g_.binary(CUDNN_POINTWISE_CMP_GE, row, column, g_.between(scores_, CUDNN_DATA_BOOLEAN));
    return g_.select(seen, scores, g_.scalar(kHidden), g_.between(scores_));
  }
  Tensor narrow_transposed(const Tensor& scores) {
    const Sizes strides = transposed(CudnnGraph::packed(scores_));
    return g_.reshape(scores, g_.between(scores_, strides, CUDNN_DATA_BFLOAT16));
  }

  CudnnGraph& g_;
  Sizes heads_, scores_, row_;
  Tensor scale_;
};

}  // namespace

bool cudnn_takes(size_t version, AttentionShape s) {
  // cuDNN's release notes list faults in 16-bit attention before 9.10.2.
  constexpr size_t kOldest = 91002;
  // Up to cuDNN 9.15.0, the gradient is wrong for tiles of keys that the sequence does not fill;
  // cudnn-frontend 1.32 avoids this by a mask of lengths.
  constexpr size_t kOnlyWholeTiles = 91500;
  constexpr int64_t kTile = 128, kLargestHead = 128, kWholeVectors = 8;
  if (version < kOldest || (version <= kOnlyWholeTiles && s.seq % kTile != 0)) return false;
  // In cuDNN 9.28 the gradient for a sequence of one row crashes the process.
  return is_plain(s) && s.seq > 1 && s.head_dim <= kLargestHead && s.head_dim % kWholeVectors == 0;
}

CudnnGraph attention_graph(const CudnnCalls& calls, AttentionShape shape, Direction direction) {
  CudnnGraph graph(calls);
  Attention attention(graph, shape);
  direction == Direction::kForward ? attention.forward() : attention.backward();
  return graph;
}

}  // namespace moe::kernels::cuda
