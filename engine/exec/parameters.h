// The parameters and optimizer states of a plan, in the order of
// Model::parameters, and
// where each rank stores them. A tensor of experts, [E, ...], is cut along its first axis over the
// ranks of an expert-parallel group, and each group stores all of it (for experts that a placement
// moves, see PlacedLayer). Of a tensor that tp splits, each rank of a group over tp has a part
// (Held). Every other tensor is stored in full on every rank. Reading and writing them to files is
// in checkpoint.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/fnv.h"
#include "engine/exec/buffers.h"
#include "engine/exec/executor.h"
#include "engine/placement/placement.h"

namespace moe {

/// A tensor that persists across steps.
struct Persistent {
  std::string name;
  TensorId tensor;  // of the program of its pipeline rank; invalid: another has it
  Shape shape;      // of the full tensor; [E, ...] for a tensor of experts
  /// Number of parts of the tensor: consecutive ranks hold one each, or `held.same` ranks each;
  /// the next ranks hold them again.
  int64_t holders = 1;
  int64_t local = 0;  // elements per rank
  int64_t part = 0;   // elements of each of the `holders` equal parts of the tensor
  /// The group whose ranks hold a part together, each its slice (ops/slices.h); size = 1: every
  /// rank stores a whole part.
  Group sliced = {1, 1};
  /// Index into PersistentTensors::placed when a placement sets which ranks hold which experts
  /// (`holders` is then the placement's devices); -1 otherwise.
  int32_t layer = -1;
  /// The first rank of its pipeline rank; other ranks are counted from there.
  int64_t first_rank = 0;
  /// Whether an earlier pipeline rank holds it, too.
  bool copy = false;
  Held held = {};
  int64_t cuts = 1;  // parts along held.split, a divisor of `holders`
  int64_t size() const { return num_elements(shape); }
};

/// An MoE layer whose experts are placed on devices by a placement.
struct PlacedLayer {
  int64_t layer = 0;  // block index
  TensorId state;     // holds the placement in force between steps
  PlacementBounds bounds;
  int64_t first_rank = 0;  // as in Persistent
};

struct PersistentTensors {
  int64_t num_ranks = 1;  // of a pipeline rank
  std::vector<PlacedLayer> placed;
  std::vector<Persistent> parameters;  // in the order of Model::parameters
  /// States of parameters in the order of the parameters, then states of the model itself
  /// (Model::states).
  std::vector<Persistent> states;
  /// Those that an earlier pipeline rank holds, too.
  std::vector<Persistent> copies;
};
/// Returns the plan's parameters and states, of all pipeline ranks. Throws UserError when the graph
/// has other parameters or states than the plan's model, or other sizes.
PersistentTensors persistent_tensors(const Plan& plan);
/// Returns those of each pipeline rank, with ranks counted from its first. Parameters and states of
/// the model that it does not hold have no tensor; those that an earlier one holds are marked.
std::vector<PersistentTensors> persistents_by_program(const Plan& plan);

/// n consecutive elements of a tensor on a rank: from element `at` of the rank's tensor, and from
/// element `first` of the full tensor.
struct TensorSlice {
  int64_t rank = 0, at = 0, first = 0, n = 0;
};
/// Appends the elements that `rank` has. Requires: no placement moves the tensor.
void add_slices_on(const Persistent& p, int64_t rank, std::vector<TensorSlice>& to);

/// The placement in force, as the rank of `buffers` has it.
Placement placement_of(const PlacedLayer& layer, const RankBuffers& buffers);

/// Slices that together are the full tensor, in its order. Experts that a placement moves are taken
/// from their owners. buffers: of a rank of the tensor's pipeline rank.
std::vector<TensorSlice> slices(const PersistentTensors& all, const Persistent& p,
                                const RankBuffers& buffers);
/// Slices of all elements of `p` that one rank holds; when a placement moves the experts, those of
/// all experts that are resident on the rank. rank: of its pipeline rank.
std::vector<TensorSlice> slices_on(const PersistentTensors& all, const Persistent& p,
                                   const RankBuffers& buffers, int64_t rank);

/// Writes a rank's initial parameters and placements, as RunOptions::init and values say, and sets
/// its states to 0, except those of the model that `values` has. T is the float type of the run.
template <class T>
void initialise(const Plan& plan, const PersistentTensors& all, const RankBuffers& buffers,
                int64_t rank, const RunOptions& options);

/// The squared Euclidean norm of a tensor x, and a projection that depends on signs and order: sum
/// of x[i] * ((i mod 13) - 6).
struct Measure {
  double sum_of_squares = 0;
  double projection = 0;
};
/// Measures n elements of a flat tensor, of which the first has index `first` in the full tensor.
/// Sums are taken in double, in order.
template <class T>
Measure measure(const T* x, int64_t n, int64_t first);

/// The parameter that an op updates: its index (-1: none), which input of the op is the gradient,
/// and the group whose ranks each have a slice of it (size = 1: the gradient is whole).
struct Update {
  int64_t parameter = -1;
  size_t gradient = 0;
  Group sliced = {1, 1};
};
Update update_of(const Graph& graph, const PersistentTensors& all, OpId op);

/// Adds a rank's part of the measure of the gradient of `update` to `sum`. The gradient has the
/// layout of the parameter, or of its slice; over all ranks, each element is counted once.
/// Requires: the op updates a parameter.
template <class T>
void add_measure(const PersistentTensors& all, const Update& update, const RankBuffers& buffers,
                 int64_t rank, const T* gradient, Measure& sum);

/// The buffers of all ranks, indexed by rank.
using AllBuffers = std::vector<const RankBuffers*>;

/// Returns the function that gives element i of the full tensor number t: parameters, then the
/// states of the model itself. It reads the ranks' buffers. T is the float type of the run.
template <class T>
ParamInit full_values(const Plan& plan, const PersistentTensors& all, const AllBuffers& ranks);

/// Fills param_l2, param_projection and digest of the result; each parameter is counted once.
/// Throws RunError, which names the parameter or state and two ranks, when these ranks hold
/// different values of it.
template <class T>
void measure_parameters(const PersistentTensors& all, const AllBuffers& ranks, RunResult& result);

}  // namespace moe
