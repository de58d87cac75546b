#include "engine/exec/run_loop.h"

#include "engine/base/stop.h"
#include "engine/exec/checkpoint.h"
#include "engine/exec/results/step_results.h"

namespace moe {
namespace {

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
