#include "engine/graph/verify.h"

#include <algorithm>
#include <unordered_set>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/joined.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

bool is_source(TensorKind kind) {
  return kind == TensorKind::kInput || kind == TensorKind::kParam || kind == TensorKind::kState;
}

/// Checks all ops in program order; one member function per rule.
class Verifier {
 public:
  explicit Verifier(const Graph& graph)
      : graph_(graph),
        producers_(graph.producers()),
        produced_(graph.tensors().size()),
        overwritten_by_(graph.tensors().size()) {}

  void run() {
    check_size();
    for (const Tensor& tensor : graph_.tensors()) check_name("tensor", tensor_names_, tensor.name);
    for (const OpId id : graph_.op_ids()) {
      const Op& op = graph_.op(id);
      check_name("op", op_names_, op.name);
      check_inputs(graph_, op);
      check_reads(op);
      check_outputs(op);
      check_mutations(id, op);
    }
  }

 private:
  void check_name(const char* what, std::unordered_set<std::string_view>& names,
                  const std::string& name) {
    if (name.empty() || name.find_first_of(" \t\r\n,=(){}") != std::string::npos) {
      throw user_error("{} name '{}' is empty or holds a space or one of ,=(){{}}", what, name);
    }
    if (!names.insert(name).second) throw user_error("two {}s are named '{}'", what, name);
  }

  void check_reads(const Op& op) {
    for (const TensorId t : op.inputs) {
      if (!t.valid()) continue;
      const Tensor& tensor = graph_.tensor(t);
      // A transfer that overwrites tensors moves their updated values.
      const bool moves = graph_.def(op).mutates_from >= 0;
      if (overwritten_by_[t.index()].valid() && !moves) {
        throw user_error("op '{}' reads tensor '{}' after op '{}' has overwritten it", op.name,
                         tensor.name, graph_.op(overwritten_by_[t.index()]).name);
      }
      if (is_source(tensor.kind) || produced_[t.index()]) continue;
      if (!producers_[t.index()].valid()) {
        throw user_error("op '{}' reads tensor '{}', which no op produces", op.name, tensor.name);
      }
      throw user_error("op '{}' reads tensor '{}' before op '{}' produces it", op.name, tensor.name,
                       graph_.op(producers_[t.index()]).name);
    }
  }

  void check_outputs(const Op& op) {
    const std::vector<TensorSpec> specs = graph_.def(op).infer(graph_, op);
    check_made(graph_, op, specs.size());
    if (specs.size() != op.outputs.size()) {
      throw user_error("op '{}' ({}) has {} outputs, but its shape rule gives {}", op.name,
                       graph_.def(op).name, op.outputs.size(), specs.size());
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      const TensorId t = op.outputs[i];
      if (!t.valid() || t.index() >= graph_.tensors().size()) {
        throw user_error("op '{}' ({}): output {} is not a tensor of this graph", op.name,
                         graph_.def(op).name, i);
      }
      const Tensor& tensor = graph_.tensor(t);
      MOE_CHECK(
          tensor.stored_rows == specs[i].stored_rows,
          "op '{}': output '{}' has room for {} stored rows, but the op's shape rule gives {}",
          op.name, tensor.name, tensor.stored_rows, specs[i].stored_rows);
      if (tensor.shape != specs[i].shape || tensor.dtype != specs[i].dtype) {
        throw user_error("op '{}' ({}): output '{}' is {} {}, but the op's shape rule gives {} {}",
                         op.name, graph_.def(op).name, tensor.name, name_of(tensor.dtype),
                         shape_text(tensor.shape), name_of(specs[i].dtype),
                         shape_text(specs[i].shape));
      }
      if (is_source(tensor.kind)) {
        throw user_error(
            "op '{}' produces tensor '{}', but an op must not produce a tensor of kind {}", op.name,
            tensor.name, name_of(tensor.kind));
      }
      if (produced_[t.index()]) {
        throw user_error("tensor '{}' must have one producer, but op '{}' is a second one",
                         tensor.name, op.name);
      }
      produced_[t.index()] = true;
    }
  }

  void check_mutations(OpId id, const Op& op) {
    for (const int m : mutated_inputs(graph_, op)) {
      const TensorId t = op.inputs[static_cast<size_t>(m)];
      const Tensor& tensor = graph_.tensor(t);
      if (tensor.kind != TensorKind::kParam && tensor.kind != TensorKind::kState) {
        throw user_error(
            "op '{}' overwrites tensor '{}' of kind {}; allowed are parameters and states", op.name,
            tensor.name, name_of(tensor.kind));
      }
      if (std::count(op.inputs.begin(), op.inputs.end(), t) > 1) {
        throw user_error(
            "op '{}' overwrites tensor '{}', but also reads this tensor as another input", op.name,
            tensor.name);
      }
      overwritten_by_[t.index()] = id;
    }
  }

  void check_size() const {
    double bytes = 0;
    for (size_t i = 0; i < graph_.tensors().size(); ++i) {
      bytes += static_cast<double>(graph_.bytes(TensorId(static_cast<int64_t>(i))));
    }
    check_bytes(bytes, [this] {
      return fmt::format("the set of all {} tensors", graph_.tensors().size());
    });
  }

  const Graph& graph_;
  std::vector<OpId> producers_;
  std::vector<bool> produced_;
  std::vector<OpId> overwritten_by_;
  std::unordered_set<std::string_view> op_names_, tensor_names_;
};

}  // namespace

void verify(const Graph& graph, std::string_view stage) {
  try {
    Verifier(graph).run();
    check_joined(graph);
  } catch (const UserError& error) {
    throw user_error("{}: graph '{}': {}", stage, graph.name, error.what());
  }
}

}  // namespace moe
