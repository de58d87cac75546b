// OpDef: everything the engine knows about one kind of op, declared here, defined one file an op in
// ops/. Passes ask for properties (lane kind, collective, dw), never for names.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"

namespace moe {

enum class LaneKind : uint8_t { kCompute, kComm };
enum class Collective : uint8_t { kNone, kAllToAll, kAllReduce };

/// What a step must cost, for cost models. flops counts a multiply-add as two. bytes is memory
/// traffic with every operand touched once.
struct Work {
  double flops = 0;
  double bytes = 0;
  bool gemm = false;  // flops run on the matrix units
};

/// What the work of a data-dependent op is taken from when nothing has run yet.
struct WorkContext {
  /// Expected share of capacity slots that hold a token, 0..1 (balanced routing: 1/capacity_factor).
  double fill = 1.0;
};

struct TensorSpec {
  Shape shape;
  DType dtype;
};

template <class T>
struct KernelCall;  // ops/kernel_call.h
class GradContext;  // graph/autodiff.h

struct OpDef {
  const char* name;
  const char* doc;
  LaneKind lane = LaneKind::kCompute;
  Collective collective = Collective::kNone;
  int min_inputs = 0;
  int max_inputs = 0;

  /// Shapes and dtypes of the outputs. Throws UserError naming op, tensor and what is allowed.
  std::vector<TensorSpec> (*infer)(const Graph&, const Op&) = nullptr;
  Work (*work)(const Graph&, const Op&, const WorkContext&) = nullptr;
  /// Emits the backward; null when no gradient flows through this op.
  void (*gradient)(GradContext&, OpId) = nullptr;

  /// (output, input): the output may take the input's storage when the input dies here.
  std::vector<std::pair<int, int>> may_alias = {};
  /// Inputs that are overwritten in place; they must be parameters or states.
  std::vector<int> mutates = {};
  /// Scratch bytes for one call, element size of T = elem_bytes; null: none.
  Bytes (*scratch_bytes)(const Graph&, const Op&, Bytes elem_bytes) = nullptr;

  /// Kernel glue; null for collectives (the executor runs them through its Communicator) and for
  /// ops that are only simulated.
  void (*run_f32)(const KernelCall<float>&) = nullptr;
  void (*run_f64)(const KernelCall<double>&) = nullptr;
};

class OpTable {
 public:
  explicit OpTable(std::vector<const OpDef*> defs) : defs_(std::move(defs)) {}
  /// Throws UserError with the nearest name when there is none.
  OpKind kind(std::string_view name) const;
  const OpDef& def(OpKind kind) const { return *defs_[kind.index()]; }
  std::span<const OpDef* const> defs() const { return defs_; }

 private:
  std::vector<const OpDef*> defs_;
};

}  // namespace moe
