// The parameters and optimiser states of a plan in the reference model's order, and where each lies
// in every rank's storage: an expert's tensor is cut along its first axis over the ranks of an
// expert-parallel group, and groups hold copies; any other is the same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/fnv.h"
#include "engine/exec/buffers.h"
#include "engine/exec/executor.h"
#include "engine/placement/placement.h"

namespace moe {

/// A tensor that outlives the step.
struct Persistent {
  std::string name;
  TensorId tensor;
  Shape shape;          // of the full tensor, [E, ...] for an expert's
  int64_t holders = 1;  // consecutive ranks that hold it together; the next ones hold copies
  int64_t local = 0;    // elements that a rank holds
  int32_t layer = -1;   // valid: placed, an index into PersistentTensors::placed; all ranks hold it
  /// The number of a rank's first element in the full tensor. Requires: not placed.
  int64_t first(int64_t rank) const { return rank % holders * local; }
  int64_t size() const { return num_elements(shape); }
};

/// An MoE layer whose experts a placement puts on devices.
struct PlacedLayer {
  int64_t layer = 0;  // block index
  TensorId state;     // the placement in force between steps
  PlacementBounds bounds;
};

struct PersistentTensors {
  std::vector<PlacedLayer> placed;
  std::vector<Persistent> parameters;  // in reference order
  /// In the order of their parameters, then the model's own (states(model)).
  std::vector<Persistent> states;
};
/// Throws UserError when the graph holds other parameters than the plan's model, or of other sizes.
PersistentTensors persistent_tensors(const Plan& plan);

/// The placement that a rank has in force.
Placement placement_of(const PlacedLayer& layer, const RankBuffers& buffers);

/// Neighbouring elements of a tensor on a rank: number `first` of the full tensor on lies at `at`.
struct TensorSlice {
  int64_t rank = 0, at = 0, first = 0, n = 0;
};
/// Slices that make the full tensor, in its order: an expert's of its owner.
std::vector<TensorSlice> slices(const PersistentTensors& all, const Persistent& p,
                                const RankBuffers& buffers);
/// All that one rank holds of it; of a placed tensor its residents only.
std::vector<TensorSlice> slices_on(const PersistentTensors& all, const Persistent& p,
                                   const RankBuffers& buffers, int64_t rank);

/// Writes a rank's initial parameters and clears its states. T is the float type of the run.
template <class T>
void initialise(const Plan& plan, const PersistentTensors& all, const RankBuffers& buffers,
                int64_t rank, const ParamInit& init);

/// Euclidean norm and a projection that sees signs and order: sum of x[i] * ((i mod 13) - 6).
struct Measure {
  double sum_of_squares = 0;
  double projection = 0;
};
/// Elements of a flat tensor from number `first` on, summed in double in their order.
template <class T>
Measure measure(const T* x, int64_t n, int64_t first);

/// What an op updates: a parameter by its number (-1: none), with which of its inputs.
struct Update {
  int64_t parameter = -1;
  size_t gradient = 0;
};
Update update_of(const Graph& graph, const PersistentTensors& all, OpId op);

/// Adds a rank's part of the measure of a parameter's gradient, which lies as the parameter does:
/// each element is some rank's once.
template <class T>
void add_measure(const PersistentTensors& all, size_t parameter, const RankBuffers& buffers,
                 int64_t rank, const T* gradient, Measure& sum);

/// One rank's storage after another: ranks[r]->at(tensor).
using AllBuffers = std::vector<const RankBuffers*>;

/// Fills param_l2, param_projection and digest, each parameter once. Throws RunError naming the
/// parameter or state and two ranks whose copies of it differ.
template <class T>
void measure_parameters(const PersistentTensors& all, const AllBuffers& ranks, RunResult& result);

}  // namespace moe
