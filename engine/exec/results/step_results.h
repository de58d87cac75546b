// A RunResult from what all ranks did in a step, wherever they are.
#pragma once

#include <vector>

#include "engine/exec/results/rank_report.h"

namespace moe {

/// All ranks are through with a step.
struct FinishedStep {
  const Plan& plan;
  const RunOptions& options;
  const PersistentTensors& persistents;
  const AllBuffers& buffers;
  const std::vector<RankReport>& reports;  // by rank
  const StepSpec& spec;
};

double sum_of_losses(const std::vector<RankReport>& reports);

/// Adds a training step (or a batch of inference); links: what the emulated link carried. Throws
/// RunError where the loss is not finite or ranks have other placements in force; then the result
/// is as it was.
void add_step(const FinishedStep& step, std::vector<LinkSpan> links, RunResult& result);

}  // namespace moe
