#include "engine/exec/results/step_results.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/exec/results/expert_offload.h"
#include "engine/exec/results/trace_record.h"

namespace moe {
namespace {

void add_timeline(const FinishedStep& step, std::vector<LinkSpan> links, RunResult& result) {
  Timeline timeline;
  timeline.num_ranks = static_cast<int32_t>(step.reports.size());
  timeline.provenance = result.provenance;
  timeline.links = std::move(links);
  result.executed.clear();
  for (const RankReport& report : step.reports) {
    result.executed.emplace_back();
    for (const std::vector<Span>& spans : report.spans) {
      timeline.spans.insert(timeline.spans.end(), spans.begin(), spans.end());
      result.executed.back().emplace_back();
      for (const Span& span : spans) {
        if (span.chunk == 0) result.executed.back().back().push_back(span.op);
      }
    }
  }
  std::sort(timeline.spans.begin(), timeline.spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.begin, a.rank, a.lane, a.op, a.chunk) <
           std::tie(b.begin, b.rank, b.lane, b.op, b.chunk);
  });
  result.metrics.push_back(metrics(step.plan.graph, timeline));
  result.timelines.push_back(std::move(timeline));
}

/// Appends what a rank of each pipeline rank reports to the entry of its place there.
template <class Of>
auto by_place(const FinishedStep& step, Of of) {
  const auto ranks = static_cast<size_t>(step.plan.spec.num_ranks);
  std::vector<std::decay_t<decltype(of(step.reports[0]))>> all(ranks);
  for (size_t r = 0; r < step.reports.size(); ++r) {
    const auto& more = of(step.reports[r]);
    all[r % ranks].insert(all[r % ranks].end(), more.begin(), more.end());
  }
  return all;
}

void add_routing(const FinishedStep& step, RunResult& result) {
  auto records = by_place(
      step, [](const RankReport& r) -> const auto& { return r.gates; });
  const auto router_losses = by_place(
      step, [](const RankReport& r) -> const auto& { return r.router_losses; });
  const auto offloads = by_place(
      step, [](const RankReport& r) -> const auto& { return r.offloads; });
  result.moe.push_back(moe_stats(records, router_losses));
  if (!offloads[0].empty()) result.offloads.push_back(joined(offloads));
  if (step.options.record) record_step(*step.options.record, std::move(records));
  if (!step.options.infer.keep_predictions) return;
  std::vector<int32_t>& all = result.predictions.emplace_back();
  for (const RankReport& report : step.reports) {
    all.insert(all.end(), report.predictions.begin(), report.predictions.end());
  }
}

/// Throws RunError unless all ranks have the same placements in force: with different ones they
/// would wait for each other in different transfers.
void check_placements(const FinishedStep& step) {
  for (const PlacedLayer& layer : step.persistents.placed) {
    const auto at = static_cast<size_t>(layer.first_rank);
    const Placement first = placement_of(layer, *step.buffers[at]);
    for (size_t r = at + 1; r < at + static_cast<size_t>(step.plan.spec.num_ranks); ++r) {
      if (placement_of(layer, *step.buffers[r]) == first) continue;
      throw run_error(
          "step {}: ranks {} and {} have different placements of block {}'s experts; the placement "
          "policy must return the same placement on all ranks",
          step.spec.step, at, r, layer.layer);
    }
  }
}

void add_placements(const FinishedStep& step, RunResult& result) {
  for (const RankReport& report : step.reports) {
    if (result.stop_reason.empty()) result.stop_reason = report.policy_failure;
  }
  std::vector<PlacementRecord> records = by_place(
      step, [](const RankReport& r) -> const auto& { return r.placements; })[0];
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) {
    return std::tie(a.micro, a.layer) < std::tie(b.micro, b.layer);
  });
  const int64_t ranks = step.plan.spec.num_ranks;
  const Group holders = step.plan.spec.model->grid(ranks).over(Axis::kEp);
  for (PlacementRecord& record : records) {
    for (const MoeStats& stats : result.moe.back()) {
      if (stats.layer != record.layer) continue;
      ExpertCounts loads(ranks, record.bounds.experts);
      const size_t rows = loads.rows.size();
      for (size_t i = 0; i < stats.counts.size(); ++i) {
        const bool here = !record.of_micro_batch || static_cast<int64_t>(i / rows) == record.micro;
        if (here) loads.rows[i % rows] += stats.counts[i];
      }
      count_rows(record, loads, holders);
    }
  }
  result.placements.push_back(std::move(records));
}

void add_gradients(const FinishedStep& step, RunResult& result) {
  for (size_t p = 0; p < step.persistents.parameters.size(); ++p) {
    const Persistent& parameter = step.persistents.parameters[p];
    Measure sum;
    for (const RankReport& report : step.reports) {
      sum.sum_of_squares += report.gradients[p].sum_of_squares;
      sum.projection += report.gradients[p].projection;
    }
    result.grad_l2[parameter.name] = std::sqrt(sum.sum_of_squares);
    result.grad_projection[parameter.name] = sum.projection;
  }
}

}  // namespace

double sum_of_losses(const std::vector<RankReport>& reports) {
  double sum = 0;
  for (const RankReport& report : reports) sum += report.stats.loss;
  return sum;
}

void add_step(const FinishedStep& step, std::vector<LinkSpan> links, RunResult& result) {
  const double loss = sum_of_losses(step.reports);
  if (step.options.check_finite && !std::isfinite(loss)) {
    throw run_error("step {}: the loss is {}, but must be finite", step.spec.step, loss);
  }
  if (!step.persistents.placed.empty()) check_placements(step);
  add_timeline(step, std::move(links), result);
  add_routing(step, result);
  result.losses.push_back(loss);
  std::vector<double>& mtp = result.mtp_losses.emplace_back();
  for (const RankReport& report : step.reports) {
    mtp.resize(std::max(mtp.size(), report.mtp_losses.size()));
    for (size_t i = 0; i < report.mtp_losses.size(); ++i) mtp[i] += report.mtp_losses[i];
  }
  std::vector<RankStats>& ranks = result.ranks.emplace_back();
  for (const RankReport& report : step.reports) ranks.push_back(report.stats);
  if (step.spec.measure_gradients) add_gradients(step, result);
  if (!step.persistents.placed.empty()) add_placements(step, result);
}

}  // namespace moe
