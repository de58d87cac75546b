// Plans and options that the executor's tests share.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "engine/base/rng.h"
#include "engine/exec/executor.h"
#include "engine/plan.h"
#include "tests/model/gpt2.h"

namespace moe::test {

/// The reference model at its reference sizes, the batch of 8 rows shared by the ranks.
Gpt2 reference_model(const std::string& gate, int64_t num_ranks);
/// A model whose step takes well under a millisecond: 2 blocks, one of them MoE, `rows` per rank.
Gpt2 small_model(const std::string& gate = "switch", int64_t rows = 2);

/// A spec with plain expert parallelism for these many ranks.
PlanSpec spec_of(const Gpt2& model, int64_t num_ranks, Precision precision = Precision::kF32);
/// A stage of a system: a built-in pass by name.
inline Stage pass(const std::string& name, Options options = {}) {
  return {.name = name, .options = std::move(options)};
}
/// The training step of that spec with one all-reduce per gradient.
Graph step_graph(const PlanSpec& spec);
/// The same with all-to-alls that carry only the rows in use, after an exchange of counts.
Graph ragged_step_graph(const PlanSpec& spec);
/// The graph in program order on the lanes "compute" and "comm".
std::shared_ptr<const Plan> plan_of(const PlanSpec& spec, const Graph& graph);
std::shared_ptr<const Plan> plan_of(const PlanSpec& spec);
/// Returns the plan of the spec with these stages in place of its own.
std::shared_ptr<const Plan> plan_with(PlanSpec spec, std::vector<Stage> stages);

/// Any lanes, 1 to 3 of them for collectives, and any order that the graph allows.
Schedule random_schedule(const Graph& graph, Rng& rng);

/// Comm lanes of any discipline; random priorities, chunks and holds.
Schedule random_discipline(const PlanSpec& spec, const Graph& graph, Rng& rng);

/// Half the ops of a rank are late by up to 50 us; which ones depends on everything.
std::function<Nanoseconds(int64_t rank, OpId op, int64_t step)> random_delays(uint64_t seed);

/// Reference tokens and initial values for the plan's model.
RunOptions options_of(const Plan& plan, int64_t steps);
RunResult run_cpu(const Plan& plan, const RunOptions& options);
/// Runs with memory that is filled with NaN before each use, and checks that the run's peak is the
/// plan's.
RunResult run_poisoned(const Plan& plan, int64_t steps, Precision precision);
/// Runs with such memory and keeps the norms of gradients. policy: places experts.
RunResult run_with_norms(const Plan& plan, int64_t steps, PlacementFunction policy = nullptr);

/// How far numbers of two runs may be apart, relative to their size; 0: they have the same bits.
struct Tolerance {
  double losses = 0;
  double norms = 0;  // of gradients and parameters
};
/// True if nothing differs between two runs.
struct SameRun {
  std::string differences;  // one a line
  explicit operator bool() const { return differences.empty(); }
};
inline std::ostream& operator<<(std::ostream& out, const SameRun& same) {
  return out << same.differences;
}
/// Whether two runs train, or serve, one model alike: their routing and predictions must be the
/// same, their numbers within the tolerance. Where losses must have the same bits, parameters,
/// margins, placements and offloaded experts must be the same, too.
SameRun same_run(const RunResult& a, const RunResult& b, Tolerance tolerance = {});

/// Whether the transfers of each arbiter follow each other, in one order on all ranks.
bool take_turns(const Plan& plan, const Timeline& timeline);

}  // namespace moe::test
