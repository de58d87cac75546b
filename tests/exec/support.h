// Plans and options that the executor's tests share.
#pragma once

#include <memory>
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

/// Reference tokens and initial values for the plan's model.
RunOptions options_of(const Plan& plan, int64_t steps);
RunResult run_cpu(const Plan& plan, const RunOptions& options);
/// Runs with memory that is filled with NaN before each use, and checks that the run's peak is the
/// plan's.
RunResult run_poisoned(const Plan& plan, int64_t steps, Precision precision);
/// Runs with such memory and keeps the norms of gradients. policy: places experts.
RunResult run_with_norms(const Plan& plan, int64_t steps, PlacementFunction policy = nullptr);

}  // namespace moe::test
