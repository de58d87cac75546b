// The argument of an op's kernel glue (OpDef::run): pointers in the order of the op's
// inputs and outputs (null for an absent optional input), the kernel table, and the context of the
// run. Kernels themselves are in kernels/.
#pragma once

#include <span>
#include <type_traits>

#include "engine/graph/graph.h"
#include "engine/placement/path_profile.h"
#include "engine/placement/policy.h"
#include "engine/routing/gate.h"
#include "kernels/kernels.h"

namespace moe {

/// What glue needs of the rank and the step that it runs for.
struct RankContext {
  int64_t rank = 0;
  int64_t num_ranks = 1;
  int64_t step = 0;
  /// Where kernels run on a device: the address there that holds `step`. Null: they run on the CPU.
  const int64_t* device_step = nullptr;
  /// Global number of this rank's first token in the step.
  int64_t first_token = 0;
  /// The gate of a `gate` op's MoE layer, built-in or from Lua; the executor sets it.
  const Gate* gate = nullptr;
  /// The policy of a `place` op; null: the built-in policy that its attribute names.
  const PlacementFunction* place = nullptr;
  /// The profile from which expect_experts estimates; null: it estimates nothing.
  const PathProfile* popularity = nullptr;

  /// Returns the address from which kernels read the step when they run.
  const int64_t* step_for_kernels() const { return device_step != nullptr ? device_step : &step; }
};

/// One call of an op. T is the type that activations are stored in (kernels.h).
template <class T>
struct KernelCall {
  using W = kernels::Wide<T>;
  using MatrixIn = typename kernels::TypesOf<T>::MatrixIn;

  const Graph& graph;
  const Op& op;
  std::span<void* const> inputs;
  std::span<void* const> outputs;
  void* scratch;
  const kernels::KernelTable<T>& k;
  const RankContext& rank;
  kernels::Stream stream = nullptr;

  T* in(size_t i) const { return i < inputs.size() ? static_cast<T*>(inputs[i]) : nullptr; }
  T* out(size_t i) const { return static_cast<T*>(outputs[i]); }
  W* wide(size_t i) const { return i < inputs.size() ? static_cast<W*>(inputs[i]) : nullptr; }
  W* wide_out(size_t i) const { return static_cast<W*>(outputs[i]); }
  /// Returns input i as a matrix of T or of W, whichever type its tensor has.
  MatrixIn matrix(size_t i) const {
    if constexpr (std::is_same_v<T, W>) {
      return in(i);
    } else {
      const bool narrow = graph.tensor(op.inputs[i]).dtype == DType::kBF16;
      return narrow ? MatrixIn(in(i)) : MatrixIn(wide(i));
    }
  }
  const int32_t* in_i32(size_t i) const {
    return i < inputs.size() ? static_cast<const int32_t*>(inputs[i]) : nullptr;
  }
  int32_t* out_i32(size_t i) const { return static_cast<int32_t*>(outputs[i]); }
  const Shape& in_shape(size_t i) const { return graph.tensor(op.inputs[i]).shape; }
  const Shape& out_shape(size_t i) const { return graph.tensor(op.outputs[i]).shape; }
};

}  // namespace moe
