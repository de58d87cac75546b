// Graph: the program of one step, the same for every rank (SPMD) of a pipeline rank. It is a value:
// nodes refer to each other by ids into vectors, not by pointers. It has two kinds of edges: data
// edges (an op reads a tensor) and mutation edges (an op that overwrites a tensor runs after its
// other readers).
// Invariants, checked by verify(): every tensor has at most one producer; ops are in a topological
// order (the program order); every op satisfies the shape rule of its OpDef (op_def.h).
// Lanes and the order of execution are in schedule/; buffers and devices are in exec/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/grid.h"
#include "engine/base/ids.h"
#include "engine/base/names.h"
#include "engine/base/units.h"
#include "engine/graph/row_use.h"

namespace moe {

enum class DType : uint8_t { kF16, kBF16, kF32, kF64, kI32 };
constexpr std::array<const char*, 5> names_of(DType) {
  return {"f16", "bf16", "f32", "f64", "i32"};
}
Bytes dtype_bytes(DType dtype);
/// Returns the bytes per element in a run whose floats have `element_bytes` bytes: for floats of up
/// to 4 bytes element_bytes (0 means the size of `dtype`), for other types their own size.
Bytes dtype_bytes(DType dtype, Bytes element_bytes);
/// Returns the type of parameters with their gradients and states, and of the gate's scores and
/// weights, in a model with activations of type `dtype`: f32 for bf16, otherwise `dtype`.
inline DType wide_dtype(DType dtype) {
  return dtype == DType::kBF16 ? DType::kF32 : dtype;
}

/// What a tensor is for. Parameters and states persist across steps. Inputs are filled by the
/// trainer before each step. Activations and gradients exist within one step only.
enum class TensorKind : uint8_t { kInput, kParam, kState, kActivation, kGradient };
constexpr std::array<const char*, 5> names_of(TensorKind) {
  return {"input", "param", "state", "activation", "gradient"};
}
/// kRecompute: ops of the forward that run once more, right before the backward of their block
/// (passes/recompute_blocks.cpp).
enum class Phase : uint8_t { kForward, kRecompute, kBackward, kUpdate };
constexpr std::array<const char*, 4> names_of(Phase) {
  return {"forward", "recompute", "backward", "update"};
}
enum class Segment : uint8_t {
  kEmbed,
  kAttn,
  kGate,
  kDispatch,
  kExpert,
  kCombine,
  kMlp,
  kHead,
  kUpdate,
  kHandoff
};
constexpr std::array<const char*, 10> names_of(Segment) {
  return {"embed",   "attn", "gate", "dispatch", "expert",
          "combine", "mlp",  "head", "update",   "handoff"};
}

using Shape = std::vector<int64_t>;
int64_t num_elements(const Shape& shape);
/// Returns the shape as text, such as "[4,128]".
std::string shape_text(const Shape& shape);

struct Tensor {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  TensorKind kind = TensorKind::kActivation;
  Held held;  // of a parameter, its gradient and its states
  /// For rows in blocks of slots ([E,C,..] or [El,P,C,..]), if not 0: only the rows in use are
  /// stored, block after block, and there is room for this number of rows. The shape still states
  /// the blocks with their capacity. See ops/stored_rows.h.
  int64_t stored_rows = 0;
};
/// Returns the number of elements that the storage of the tensor has.
int64_t stored_elements(const Tensor& tensor);

class OpTable;
struct OpDef;

/// An index into the OpTable.
using OpKind = Id<struct OpKindTag>;

struct Op {
  std::string name;              // unique in the graph, such as "b1.attn.qkv.dw"
  OpKind kind;                   // invalid: the op was removed; compact() drops it
  std::vector<TensorId> inputs;  // an invalid id is an optional input that is absent
  std::vector<TensorId> outputs;
  Attrs attrs;  // without those that are members of `rows`
  RowUse rows;
  Phase phase = Phase::kForward;
  Segment segment = Segment::kEmbed;
  int32_t layer = -1;  // block index, -1 outside blocks
  int32_t part = -1;   // which part of a cut, -1 when the op was not cut
  /// The micro-batch of the step, from 0 (schedule/unroll.h); 0 for an op that runs once per step.
  int32_t micro = 0;
  /// The pipeline rank that runs the op; of a transfer between two in a step's graph
  /// (schedule/join.h), the one that sends.
  int32_t pipeline_rank = 0;
  /// True if the op computes the gradient of a parameter. Only all-reduces, updates and ops that
  /// add to this gradient read it.
  bool is_dw = false;
  /// Of an op that autodiff made: the first output of the op whose gradient it computes a part of.
  /// Invalid if that tensor no longer exists.
  TensorId of;
};

/// The ids of a graph's ops from number `first` to below `end` that are not removed, in program
/// order. Ops that are added while a loop goes through them are among them if `end` allows it.
class OpIds {
 public:
  OpIds(const std::vector<Op>& ops, size_t first, size_t end) : ops_(ops), at_(first), end_(end) {}
  OpIds begin() const { return *this; }
  std::nullptr_t end() const { return nullptr; }
  OpId operator*() const { return OpId(static_cast<int64_t>(at_)); }
  void operator++() { ++at_; }
  /// Goes to the next op that is not removed; returns whether there is one.
  bool operator!=(std::nullptr_t) {
    const size_t end = std::min(end_, ops_.size());
    while (at_ < end && !ops_[at_].kind.valid()) ++at_;
    return at_ < end;
  }

 private:
  const std::vector<Op>& ops_;
  size_t at_, end_;
};

class Graph {
 public:
  /// Requires: `table` outlives every copy of the graph (in practice it is static data).
  explicit Graph(const OpTable& table) : table_(&table) {}

  std::string name;
  /// Number of ranks that run this program, of each pipeline rank: data parallel, with experts
  /// spread over groups of ranks.
  int64_t num_ranks = 1;

  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Op& op(OpId id) const { return ops_[id.index()]; }
  Op& op(OpId id) { return ops_[id.index()]; }
  const Tensor& tensor(TensorId id) const { return tensors_[id.index()]; }
  Tensor& tensor(TensorId id) { return tensors_[id.index()]; }
  const OpDef& def(OpId id) const;
  const OpDef& def(const Op& op) const;
  const OpTable& table() const { return *table_; }
  size_t num_ops() const { return ops_.size(); }
  OpIds op_ids(size_t first = 0, size_t end = SIZE_MAX) const { return {ops_, first, end}; }

  TensorId add_tensor(Tensor tensor);
  /// Appends an op and creates its outputs by the shape rule. `kind`: the name of its kind; `name`:
  /// its own name. The outputs are named "<op>", "<op>:1", ...; their kind is gradient in the
  /// backward and activation otherwise. The caller sets other members by op(id). Throws UserError
  /// for an unknown kind and wrong inputs.
  OpId add_op(std::string_view kind, std::string name, std::vector<TensorId> inputs,
              Attrs attrs = {}, Phase phase = Phase::kForward);
  OpId add_op(const OpDef& def, std::string name, std::vector<TensorId> inputs, Attrs attrs = {},
              Phase phase = Phase::kForward);
  /// Appends an op unchanged; its outputs are existing tensors of this graph.
  OpId append(Op op);
  /// Drops all but the first num_ops ops and the first num_tensors tensors. Requires: no op that is
  /// kept refers to a dropped tensor.
  void truncate(size_t num_ops, size_t num_tensors);
  /// Marks the op as removed; compact() then drops it.
  void remove(OpId id) { ops_[id.index()].kind = OpKind(); }
  bool removed(OpId id) const { return !ops_[id.index()].kind.valid(); }

  /// Returns output i of the op, by default its first.
  TensorId out(OpId id, size_t i = 0) const { return ops_[id.index()].outputs[i]; }
  /// Returns the op or tensor of this name; an invalid id when there is none.
  OpId find_op(std::string_view name) const;
  TensorId find_tensor(std::string_view name) const;
  /// Returns the producer of each tensor; an invalid id for inputs, parameters and states.
  std::vector<OpId> producers() const;
  /// Returns the bytes of all elements of the tensor's shape; its storage may have fewer
  /// (stored_elements).
  Bytes bytes(TensorId id) const;

 private:
  const OpTable* table_;
  std::vector<Op> ops_;
  std::vector<Tensor> tensors_;
};

/// Returns all attributes of the op, those of its RowUse among them, as add_op() takes them.
Attrs all_attrs(const Op& op);
int64_t attr_int(const Op& op, std::string_view key, int64_t default_value = 0);
double attr_double(const Op& op, std::string_view key, double default_value = 0);
std::string attr_string(const Op& op, std::string_view key, std::string default_value = "");

/// Direct edges between ops: data edges and mutation edges. preds and succs are indexed by op; each
/// list is sorted and without duplicates.
struct Dependencies {
  std::vector<std::vector<OpId>> preds;
  std::vector<std::vector<OpId>> succs;
};
Dependencies dependencies(const Graph& graph);

using Edge = std::pair<OpId, OpId>;

/// Returns all ops that are not removed, each after its predecessors in `deps` and more_edges. If
/// several ops can be next, takes the first in program order. Throws UserError naming a cycle.
std::vector<OpId> topological_order(const Graph& graph, const Dependencies& deps,
                                    std::span<const Edge> more_edges = {});

/// For every op, the set of ops that it reaches along edges, as one row of bits per op. The
/// constructor throws UserError naming the ops of a cycle.
class Reachability {
 public:
  Reachability(const Graph& graph, const Dependencies& deps, std::span<const Edge> more_edges = {});
  bool reaches(OpId from, OpId to) const;
  /// Whether there is no path between a and b in either direction.
  bool independent(OpId a, OpId b) const { return !reaches(a, b) && !reaches(b, a); }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

/// Returns the graph without removed ops and without unused activations and gradients, with its ops
/// in a topological order that keeps the present order where possible (smallest present index
/// first). Throws UserError naming the ops of a cycle.
Graph compact(const Graph& graph);

/// Returns the graph with only the ops in `order`, in this order, and without unused activations
/// and gradients. Requires: `order` has no op twice.
Graph with_order(const Graph& graph, std::span<const OpId> order);

}  // namespace moe
