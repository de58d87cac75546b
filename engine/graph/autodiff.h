// Reverse-mode differentiation of a graph: walks the forward ops backwards and lets each OpDef's
// gradient rule emit ops. A weight's gradient is an op of its own (is_dw), apart from the gradient
// of the activation, so that a schedule may move it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// What a gradient rule sees. Ops that it emits inherit segment, layer and part of the forward op
/// and have phase backward.
class GradContext {
 public:
  GradContext(Graph& graph, OpId current, std::vector<TensorId>& grads,
              const std::vector<bool>& needs)
      : graph_(graph), current_(current), grads_(grads), needs_(needs) {}

  Graph& graph() { return graph_; }
  const Op& op() const { return graph_.op(current_); }
  /// True when some parameter lies upstream of this tensor (or it is one).
  bool needs(TensorId tensor) const;
  /// The gradient of a tensor as far as it is summed up; invalid when none has arrived yet.
  TensorId grad(TensorId tensor) const;
  /// Emits a backward op named "<forward op>.<suffix>".
  OpId emit(std::string_view kind, std::string_view suffix, std::vector<TensorId> inputs,
            Attrs attrs = {}, bool is_dw = false);
  OpId emit(const OpDef& def, std::string_view suffix, std::vector<TensorId> inputs,
            Attrs attrs = {}, bool is_dw = false);
  /// Adds a partial gradient; emits an `add` op where one is already there.
  void add(TensorId tensor, TensorId partial);
  /// Replaces the gradient by one that has taken grad(tensor) in as its accumulator.
  void set(TensorId tensor, TensorId total);

 private:
  Graph& graph_;
  OpId current_;
  std::vector<TensorId>& grads_;
  const std::vector<bool>& needs_;
};

/// Appends the backward of the sum of all losses: `loss` and the outputs of every other op whose
/// gradient rule starts from nothing (OpDef::loss). Returns (parameter, its gradient)
/// for every parameter that the losses depend on, in the order in which the gradients become
/// complete. Requires: ops in program order (compact() after an edit).
std::vector<std::pair<TensorId, TensorId>> autodiff(Graph& graph, TensorId loss);

}  // namespace moe
