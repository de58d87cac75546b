// Graph: one rank's SPMD program of one training step. Values only: ids into vectors, no pointers
// in nodes. Data edges (who reads what) and mutation edges (an op that overwrites a tensor runs
// after every other reader of it) are the only truth of the graph; order lives in the Schedule.
// Invariants, held by verify(): every tensor has at most one producer; ops stand in a topological
// order (the program order); every op satisfies its OpDef's shape rule.
// Not here: lanes, order, buffers, devices.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/units.h"

namespace moe {

enum class DType : uint8_t { kF16, kBF16, kF32, kF64, kI32 };
Bytes dtype_bytes(DType dtype);
/// As it is executed: floats of up to 4 bytes take element_bytes; 0: each its own.
Bytes dtype_bytes(DType dtype, Bytes element_bytes);
/// What is kept in f32 where activations of the type are bf16: parameters, their gradients and
/// states, scores and weights. With f16 all are f16.
inline DType wide_dtype(DType dtype) {
  return dtype == DType::kBF16 ? DType::kF32 : dtype;
}
const char* dtype_name(DType dtype);

/// What a tensor is for. Parameters and states persist across steps; inputs are filled by the
/// trainer before a step; the rest lives within one step.
enum class TensorKind : uint8_t { kInput, kParam, kState, kActivation, kGradient };
enum class Phase : uint8_t { kForward, kBackward, kUpdate };
enum class Segment : uint8_t {
  kEmbed,
  kAttn,
  kGate,
  kDispatch,
  kExpert,
  kCombine,
  kMlp,
  kHead,
  kUpdate
};
const char* tensor_kind_name(TensorKind kind);
const char* phase_name(Phase phase);
/// embed attn gate dispatch expert combine mlp head update
const char* segment_name(Segment segment);

using Shape = std::vector<int64_t>;
int64_t num_elements(const Shape& shape);
/// "[4,128]".
std::string shape_text(const Shape& shape);

struct Tensor {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  TensorKind kind = TensorKind::kActivation;
  /// An expert's parameter: ranks hold different experts, so its gradient is summed over those that
  /// hold the same ones only; and the gradient and state tensors that belong to one.
  bool expert = false;
};

using AttrValue = std::variant<int64_t, double, std::string>;
using Attrs = std::map<std::string, AttrValue>;

class OpTable;
struct OpDef;

/// An index into the OpTable.
using OpKind = Id<struct OpKindTag>;

struct Op {
  std::string name;              // unique in the graph, as "b1.attn.qkv.dw"
  OpKind kind;                   // invalid: removed, dropped by compact()
  std::vector<TensorId> inputs;  // an invalid id is an optional input that is absent
  std::vector<TensorId> outputs;
  Attrs attrs;
  Phase phase = Phase::kForward;
  Segment segment = Segment::kEmbed;
  int32_t layer = -1;  // block index, -1 outside blocks
  int32_t part = -1;   // which partition, -1 when the op was not split
  /// A weight's gradient (or bias, gamma, beta): only all-reduce and update need it.
  bool is_dw = false;
};

class Graph {
 public:
  /// Requires: `table` outlives every copy of the graph (it is static data).
  explicit Graph(const OpTable& table) : table_(&table) {}

  std::string name;
  /// Ranks that run this program together (data parallel; experts are spread over groups of them).
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

  TensorId add_tensor(Tensor tensor);
  /// Appends an op by kind name and makes its outputs by the shape rule; they are named
  /// "<op>", "<op>:1", ... and are gradients in the backward, activations otherwise.
  /// Fields that are not arguments are set on op(id) by the caller.
  OpId add_op(std::string_view kind, std::string name, std::vector<TensorId> inputs,
              Attrs attrs = {}, Phase phase = Phase::kForward);
  OpId add_op(const OpDef& def, std::string name, std::vector<TensorId> inputs, Attrs attrs = {},
              Phase phase = Phase::kForward);
  /// Appends an op as it is, its outputs (tensors of this graph) included.
  OpId append(Op op);
  /// Drops the ops and tensors appended last, so that these many stay. Requires: none that stays
  /// names one that goes.
  void truncate(size_t num_ops, size_t num_tensors);
  /// Marks the op as removed until compact().
  void remove(OpId id) { ops_[id.index()].kind = OpKind(); }
  bool removed(OpId id) const { return !ops_[id.index()].kind.valid(); }

  /// The one output of an op with one output, or output i.
  TensorId out(OpId id, size_t i = 0) const { return ops_[id.index()].outputs[i]; }
  /// By name; invalid when there is none.
  OpId find_op(std::string_view name) const;
  TensorId find_tensor(std::string_view name) const;
  /// The producer of each tensor; invalid for inputs, parameters and states.
  std::vector<OpId> producers() const;
  Bytes bytes(TensorId id) const;

 private:
  const OpTable* table_;
  std::vector<Op> ops_;
  std::vector<Tensor> tensors_;
};

int64_t attr_int(const Op& op, std::string_view key, int64_t default_value = 0);
double attr_double(const Op& op, std::string_view key, double default_value = 0);
std::string attr_string(const Op& op, std::string_view key, std::string default_value = "");

/// Direct edges between ops: data edges and mutation edges, each list sorted and without doubles.
struct Dependencies {
  std::vector<std::vector<OpId>> preds;
  std::vector<std::vector<OpId>> succs;
};
Dependencies dependencies(const Graph& graph);

using Edge = std::pair<OpId, OpId>;

/// All ops that are not removed, before every op its predecessors; among the ops that could be next
/// the one that stands first in the program. Throws UserError naming the ops of a cycle.
std::vector<OpId> topological_order(const Graph& graph, const Dependencies& deps,
                                    std::span<const Edge> more_edges = {});

/// For every op the set of ops it can reach, as one bit row per op. Throws UserError naming the ops
/// of a cycle.
class Reachability {
 public:
  Reachability(const Graph& graph, const Dependencies& deps, std::span<const Edge> more_edges = {});
  bool reaches(OpId from, OpId to) const;
  /// No path in either direction.
  bool independent(OpId a, OpId b) const { return !reaches(a, b) && !reaches(b, a); }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

/// Drops removed ops and unused non-persistent tensors and brings ops into a topological order that
/// keeps the present order where it can (smallest present index first). Throws UserError naming the
/// ops of a cycle.
Graph compact(const Graph& graph);

/// The same program with its ops in this order, less the ops that `order` leaves out and the unused
/// non-persistent tensors. Requires: no op twice.
Graph with_order(const Graph& graph, std::span<const OpId> order);

}  // namespace moe
