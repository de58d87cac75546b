// Fills a RunResult from the reports of all ranks, whichever process they are in.
#pragma once

#include <vector>

#include "engine/exec/results/rank_report.h"

namespace moe {

struct FinishedStep {
  const Plan& plan;
  const RunOptions& options;
  const PersistentTensors& persistents;
  const AllBuffers& buffers;
  const std::vector<RankReport>& reports;  // indexed by rank
  const ProgramRun& spec;
};

/// Returns the sum of RankStats::loss over all ranks.
double sum_of_losses(const std::vector<RankReport>& reports);

/// Adds the results of a training step (or a batch of inference); `links` is what the emulated link
/// carried. Throws RunError when the loss is not finite or ranks have different placements in
/// force; `result` is then unchanged.
void add_step(const FinishedStep& step, std::vector<LinkSpan> links, RunResult& result);

}  // namespace moe
