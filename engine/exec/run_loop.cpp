#include "engine/exec/run_loop.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/exec/checkpoint.h"
#include "engine/exec/results/expert_offload.h"
#include "engine/exec/results/gate_stats.h"
#include "engine/exec/results/rank_report.h"
#include "engine/routing/trace.h"

namespace moe {
namespace {

struct FinishedStep {
  const Plan& plan;
  const RunOptions& options;
  const PersistentTensors& persistents;
  const AllBuffers& buffers;
  const std::vector<RankReport>& reports;  // indexed by rank
  const ProgramRun& spec;
};

void set_sizes(Trace& trace, const std::vector<std::vector<const GateRecord*>>& records) {
  const std::vector<const GateRecord*>& one = records.at(0);
  trace.ranks = static_cast<int64_t>(records.size());
  trace.experts = one.at(0)->maps.experts;
  trace.k = one.at(0)->maps.columns;
  for (const GateRecord* record : one) {
    if (record->layer == one[0]->layer && record->micro == 0) trace.tokens += record->maps.tokens;
    const auto block = static_cast<int32_t>(record->layer);
    if (trace.blocks.empty() || trace.blocks.back() != block) trace.blocks.push_back(block);
  }
  trace.layers = static_cast<int64_t>(trace.blocks.size());
  if (trace.experts > kNoExpert) {
    throw user_error("record: a routing trace can have at most {} experts, but the model has {}",
                     kNoExpert, trace.experts);
  }
}

/// Appends a step to the trace; the first call sets the trace's sizes. Choices that were dropped
/// are recorded like the others. records[rank] are the records of one rank, in any order. Throws
/// UserError for more experts than a trace may have.
void record_step(Trace& trace, std::vector<std::vector<const GateRecord*>> records) {
  int64_t micros = 1;
  for (auto& rank : records) {
    if (rank.empty()) return;  // no MoE layer
    std::sort(rank.begin(), rank.end(), by_layer);
    micros = rank.back()->micro + 1;
  }
  if (trace.steps == 0) set_sizes(trace, records);
  trace.steps += micros;
  size_t next = trace.choices.size();
  trace.choices.resize(
      next + static_cast<size_t>(micros * trace.layers * trace.ranks * trace.tokens * trace.k));
  for (int64_t micro = 0; micro < micros; ++micro) {
    for (const int32_t block : trace.blocks) {
      for (const auto& rank : records) {
        for (const GateRecord* record : rank) {
          if (record->layer != block || record->micro != micro) continue;
          // The cast turns -1 into kNoExpert.
          for (const int32_t e : record->expert) trace.choices[next++] = static_cast<uint16_t>(e);
        }
      }
    }
  }
  MOE_CHECK(next == trace.choices.size(),
            "{} choices were recorded in a routing trace, but must be exactly {}", next,
            trace.choices.size());
}

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

/// Returns the sum of RankStats::loss over all ranks.
double sum_of_losses(const std::vector<RankReport>& reports) {
  double sum = 0;
  for (const RankReport& report : reports) sum += report.stats.loss;
  return sum;
}

/// Adds the results of a training step (or a batch of inference); `links` is what the emulated link
/// carried. Throws RunError when the loss is not finite or ranks have different placements in
/// force; `result` is then unchanged.
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

template <class T>
constexpr Bytes kElementBytes = static_cast<Bytes>(sizeof(T));

/// What a checkpoint says of its run, which a run that resumes it must have too.
Metadata facts_of(const Plan& plan, const RunOptions& options) {
  const Model& model = *plan.spec.model;
  return {{"model.gate", fmt::format("{}, k = {}", model.gate, model.k)},
          {"batch", fmt::format("{} rows of {} tokens",
                                model.batch_per_device * model.shares(plan.graph.num_ranks) *
                                    model.micro_batches,
                                model.seq)},
          {"tokens", options.train.tokens}};
}

}  // namespace

template <class T>
RunLoop<T>::RunLoop(const Plan& plan, const RunOptions& options)
    : plan_(plan),
      options_(options),
      persistents_(moe::persistent_tensors(plan)),
      by_program_(persistents_by_program(plan)),
      first_step_(options.first_step) {
  result_.provenance = options.emulate_link ? Provenance::kEmulated : Provenance::kMeasured;
}

template <class T>
bool RunLoop<T>::starts_afresh() const {
  return options_.train.checkpoints.resume_from.empty() && options_.infer.parameters_from.empty();
}

template <class T>
bool RunLoop<T>::is_root() const {
  return options_.processes == nullptr || options_.processes->is_root();
}

template <class T>
void RunLoop<T>::meet(AllBuffers here, LocalRanks local_ranks) {
  local_ranks_ = std::move(local_ranks);
  buffers_ = std::move(here);
  if (options_.processes == nullptr) return;
  peers_ = std::make_unique<Peers>(*options_.processes, plan_, by_program_, *buffers_[0],
                                   kElementBytes<T>);
  buffers_ = peers_->buffers();
}

template <class T>
void RunLoop<T>::restore() {
  if (starts_afresh()) return;
  const std::string& from = options_.train.checkpoints.resume_from;
  if (is_root() && !from.empty()) {
    first_step_ =
        read_checkpoint(from, persistents_, buffers_, kElementBytes<T>, facts_of(plan_, options_));
  } else if (is_root()) {
    for (size_t r = 0; r < buffers_.size(); ++r) {
      const auto rank = static_cast<int64_t>(r);
      const Plan& program = plan_.program(rank);
      initialise<T>(program, persistents(program.pipeline_rank), *buffers_[r],
                    rank % plan_.spec.num_ranks, {});
    }
    read_parameters(options_.infer.parameters_from, persistents_, buffers_, kElementBytes<T>);
  }
  if (peers_) {
    peers_->spread_persistent();
    first_step_ = peers_->agree(first_step_);
  }
  if (local_ranks_.store) local_ranks_.store();
}

template <class T>
void RunLoop<T>::run() {
  const int64_t every = options_.train.checkpoints.every_steps;
  int64_t step = first_step_, saved = -1;
  for (bool go_on = true; go_on && step < first_step_ + options_.steps;) {
    go_on = train_step(step++);
    if (every > 0 && (step - first_step_) % every == 0) checkpoint(saved = step);
  }
  if (saved != step) checkpoint(step);
  if (!result_.stopped) evaluate();
}

template <class T>
RunResult RunLoop<T>::finish() {
  gather_persistent();
  if (is_root()) measure_parameters<T>(persistents_, buffers_, result_);
  if (is_root() && options_.train.keep_parameters) {
    options_.train.keep_parameters(full_values<T>(plan_, persistents_, buffers_));
  }
  if (peers_) peers_->agree(true);  // if ranks hold different values, the run fails on all
  if (options_.record && options_.record->steps > 0) finish_trace(*options_.record, "record");
  return std::move(result_);
}

template <class T>
void RunLoop<T>::fail(const std::exception_ptr& error) {
  const bool keep = is_root() && !result_.losses.empty();
  try {
    std::rethrow_exception(error);
  } catch (const RunError& failure) {
    if (!keep) throw;
    throw RunFailed(failure, std::move(result_));
  } catch (const UserError& failure) {
    if (!keep) throw;
    throw InputFailed(failure, std::move(result_));
  }
}

template <class T>
void RunLoop<T>::run_step(const DataSource& data, ProgramRun spec) {
  spec.epoch = spec_.epoch + 1;
  spec_ = spec;
  reports_ = local_ranks_.run_step(data, spec_);
  if (peers_) reports_ = peers_->gather(std::move(reports_[0]));
}

template <class T>
bool RunLoop<T>::train_step(int64_t step) {
  const MachineState machine = local_ranks_.machine ? local_ranks_.machine() : MachineState();
  const bool measure = options_.train.keep_grad_norms && step == first_step_;
  run_step(options_.data, {.step = step, .train = true, .measure_gradients = measure});
  bool go_on = true;
  if (is_root()) {
    std::vector<LinkSpan> links;
    if (local_ranks_.take_links) links = local_ranks_.take_links();
    add_step({plan_, options_, persistents_, buffers_, reports_, spec_}, std::move(links), result_);
    if (local_ranks_.machine) result_.machine.push_back(machine);
    // Rank 0 decides for all ranks whether to continue; the others wait in agreed().
    const bool wanted = !options_.on_step || options_.on_step(step, result_.losses.back());
    go_on = wanted && !stop_requested() && result_.stop_reason.empty();
  }
  result_.stopped = !agreed(go_on);
  return !result_.stopped;
}

template <class T>
bool RunLoop<T>::agreed(bool go_on) {
  return peers_ ? peers_->agree(go_on) : go_on;
}

template <class T>
void RunLoop<T>::evaluate() {
  const TrainOptions& train = options_.train;
  for (int64_t b = 0; b < train.eval_batches && !result_.stopped; ++b) {
    run_step(train.eval_data, {.step = b, .train = false});
    result_.eval_loss += sum_of_losses(reports_) / static_cast<double>(train.eval_batches);
    result_.stopped = !agreed(!stop_requested());
  }
}

template <class T>
void RunLoop<T>::checkpoint(int64_t next_step) {
  const std::string& to = options_.train.checkpoints.write_to;
  if (to.empty()) return;
  gather_persistent();
  if (!is_root()) return;
  write_checkpoint(to, persistents_, buffers_, kElementBytes<T>, next_step,
                   facts_of(plan_, options_));
}

template <class T>
void RunLoop<T>::gather_persistent() {
  if (local_ranks_.fetch) local_ranks_.fetch();
  if (peers_) peers_->gather_persistent();
}

template class RunLoop<float>;
template class RunLoop<double>;

}  // namespace moe
