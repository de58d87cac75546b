// Reverse-mode differentiation of a graph: visits the forward ops backwards and calls the gradient
// rule of each OpDef, which emits backward ops. The gradient of a weight (is_dw) and the gradient
// of an activation are separate ops, so that a schedule can move the first. Rules are in ops/.
#pragma once

#include <utility>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

/// The argument of a gradient rule. Ops that the rule emits through it have phase backward and the
/// segment, layer and part of the forward op.
class GradContext {
 public:
  GradContext(Graph& graph, OpId current, std::vector<TensorId>& grads,
              const std::vector<bool>& needs)
      : graph_(graph), current_(current), grads_(grads), needs_(needs) {}

  Graph& graph() { return graph_; }
  const Op& op() const { return graph_.op(current_); }
  /// Whether the tensor needs a gradient: it is a parameter or depends on one.
  bool needs(TensorId tensor) const;
  /// Returns the sum of the tensor's gradients so far; an invalid id when there is none yet.
  TensorId grad(TensorId tensor) const;
  /// Emits a backward op named "<forward op>.<suffix>".
  OpId emit(std::string_view kind, std::string_view suffix, std::vector<TensorId> inputs,
            Attrs attrs = {}, bool is_dw = false);
  OpId emit(const OpDef& def, std::string_view suffix, std::vector<TensorId> inputs,
            Attrs attrs = {}, bool is_dw = false);
  /// Adds `partial` to the tensor's gradient; emits an `add` op if there is a gradient already.
  void add(TensorId tensor, TensorId partial);
  /// Replaces the tensor's gradient by `total`, whose op must have added grad(tensor) to it.
  void set(TensorId tensor, TensorId total);

 private:
  Graph& graph_;
  OpId current_;
  std::vector<TensorId>& grads_;
  const std::vector<bool>& needs_;
};

/// Appends the backward of the sum of all losses: `loss` (an invalid id where another pipeline rank
/// has it) and the first output of every other op with OpDef::loss. Returns pairs (parameter, its
/// gradient) for every parameter that the losses depend on, in the order in which the gradients are
/// complete. Throws UserError when no op produces `loss` or an op is one part of a batch. Requires:
/// ops in program order.
std::vector<std::pair<TensorId, TensorId>> autodiff(Graph& graph, TensorId loss);

}  // namespace moe
