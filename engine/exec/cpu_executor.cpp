#include "engine/exec/cpu_executor.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <thread>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/comm/emulated_link.h"
#include "engine/exec/check_options.h"
#include "engine/exec/checkpoint.h"
#include "engine/exec/rank_report.h"
#include "engine/exec/step_results.h"
#include "engine/exec/sync.h"
#include "engine/graph/op_def.h"
#include "engine/replay/link_loads.h"

namespace moe {
namespace {

std::atomic<uint64_t> stop_requests{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "request_stop is called by signal handlers");

// Threads that sleep at the start of a step need up to this long to wake.
constexpr Nanoseconds kWakeUp = 60'000;

/// What went wrong first. Threads fail at the same time; the op that stands first in the program on
/// the lowest rank is told.
struct Failure {
  std::exception_ptr error;
  int32_t op = 0;
  int64_t rank = 0;
};

/// `error` again with "rank 1, step 3, op b1.gate: " before its message; the kind of error stays.
std::exception_ptr with_prefix(const std::string& prefix, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& e) {
    return std::make_exception_ptr(UserError(prefix + e.what()));
  } catch (const InternalError& e) {
    return std::make_exception_ptr(InternalError(prefix + e.what()));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(RunError(prefix + e.what()));
  }
}

std::string message(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

template <class T>
class CpuRun {
 public:
  CpuRun(const Plan& plan, const RunOptions& options);
  RunResult run();

 private:
  static constexpr Bytes kElementBytes = static_cast<Bytes>(sizeof(T));

  void add_arbitrations();
  void add_lanes();
  void set_start();
  void spawn();
  void worker(int64_t rank, LaneId lane);
  void conduct();
  void restore();
  /// Runs one pass on all threads; the conductor's own part is rank 0's compute lane.
  void run_pass(const DataSource& data, Pass pass);
  /// Returns whether to go on.
  bool train_step(int64_t step);
  void evaluate();
  void checkpoint(int64_t next_step);
  bool leads() const { return first_ == 0; }
  bool starts_afresh() const {
    return options_.resume_from.empty() && options_.parameters_from.empty();
  }

  template <class Body>
  void guarded(int64_t rank, LaneId lane, Body body);
  void fail(int64_t rank, LaneId lane, std::exception_ptr error);

  const Plan& plan_;
  const RunOptions& options_;
  Processes* const processes_;  // null: all ranks are here
  const int64_t num_ranks_;
  const int64_t num_lanes_;
  const int64_t first_;     // of the ranks that are here
  const int64_t num_here_;  // ranks
  const uint64_t stop_requests_before_ = stop_requests;
  Persistents persistents_;
  std::vector<std::unique_ptr<Arbitration>> arbitrations_;
  std::vector<Arbitration*> arbiter_of_;         // by lane
  std::vector<std::unique_ptr<Rank<T>>> ranks_;  // those that are here
  std::unique_ptr<Peers> peers_;                 // null: all ranks are here
  AllBuffers buffers_;
  std::optional<InProcessWorld> world_;
  std::unique_ptr<EmulatedWire> wire_;                // null: the ranks' memory
  std::vector<std::unique_ptr<Communicator>> links_;  // emulated, by rank and comm lane
  std::vector<Communicator*> comms_;  // by rank that is here and lane; null for compute lanes
  Rendezvous start_, end_;
  Nanoseconds common_start_ = 0;  // of all processes
  Pass pass_;
  std::vector<RankReport> reports_;  // of the last pass, by rank
  bool over_ = false;                // written by the conductor before it arrives at start_
  int64_t first_step_ = 0;
  std::mutex failure_mutex_;
  Failure failure_;
  RunResult result_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

template <class T>
CpuRun<T>::CpuRun(const Plan& plan, const RunOptions& options)
    : plan_(plan),
      options_(options),
      processes_(options.processes),
      num_ranks_(plan.graph.num_ranks),
      num_lanes_(static_cast<int64_t>(plan.orders.lanes.size())),
      first_(processes_ != nullptr ? processes_->rank() : 0),
      num_here_(processes_ != nullptr ? 1 : num_ranks_),
      persistents_(persistents(plan)),
      arbiter_of_(plan.orders.lanes.size()),
      start_(num_here_ * num_lanes_, [this] { set_start(); }),
      end_(num_here_ * num_lanes_),
      first_step_(options.first_step) {
  add_arbitrations();
  for (int64_t r = first_; r < first_ + num_here_; ++r) {
    ranks_.push_back(std::make_unique<Rank<T>>(plan, options, persistents_, arbiter_of_, r));
    buffers_.push_back(&ranks_.back()->buffers());
  }
  if (processes_ != nullptr) {
    peers_ = std::make_unique<Peers>(*processes_, plan, persistents_, *buffers_[0], kElementBytes);
    buffers_ = peers_->buffers();
  }
  add_lanes();
  result_.provenance = options.emulate_link ? Provenance::kEmulated : Provenance::kMeasured;
  result_.peak_bytes = ranks_[0]->buffers().allocated();
}

template <class T>
void CpuRun<T>::add_lanes() {
  const int64_t num_comm = std::max<int64_t>(1, num_lanes_ - 1);
  if (processes_ != nullptr) {
    comms_ = processes_->lanes(num_comm, options_.timeout_s);
    comms_.insert(comms_.begin(), nullptr);
    return;
  }
  world_.emplace(num_ranks_, num_comm, InProcessWorld::Options{options_.timeout_s});
  if (options_.emulate_link) wire_ = std::make_unique<EmulatedWire>(plan_.spec.cluster, true);
  for (int64_t r = 0; r < num_ranks_; ++r) {
    for (int64_t l = 0; l < num_lanes_; ++l) {
      Communicator* comm = l == 0 ? nullptr : &world_->comm(r, l - 1);
      if (comm != nullptr && wire_) {
        links_.push_back(emulate_link(*comm, *wire_, l - 1));
        comm = links_.back().get();
      }
      comms_.push_back(comm);
    }
  }
}

/// Run by the last thread to come, before anybody leaves.
template <class T>
void CpuRun<T>::set_start() {
  pass_.start = processes_ != nullptr ? common_start_ : clock_ns() + (num_ranks_ > 1 ? kWakeUp : 0);
}

template <class T>
void CpuRun<T>::add_arbitrations() {
  const auto waits_for = [this](int64_t rank, OpId op) {
    return ranks_[static_cast<size_t>(rank)]->waits_for(op, pass_);
  };
  for (const Arbiter& lanes : arbiters(plan_.schedule)) {
    arbitrations_.push_back(std::make_unique<Arbitration>(
        plan_.graph, plan_.schedule, lanes,
        Arbitration::Options{num_ranks_, options_.timeout_s, options_.choose, waits_for}));
    for (const LaneId lane : lanes) arbiter_of_[lane.index()] = arbitrations_.back().get();
  }
}

template <class T>
RunResult CpuRun<T>::run() {
  guarded(0, LaneId(0), [this] {
    spawn();
    conduct();
  });
  threads_.clear();  // joins
  if (failure_.error) std::rethrow_exception(failure_.error);
  if (options_.record && options_.record->steps > 0) finish_trace(*options_.record, "record");
  return std::move(result_);
}

template <class T>
void CpuRun<T>::spawn() {
  if (!starts_afresh()) restore();
  for (int64_t r = 0; r < num_here_; ++r) {
    for (int64_t l = r == 0 ? 1 : 0; l < num_lanes_; ++l) {
      threads_.emplace_back([this, r, l] { worker(r, LaneId(l)); });
    }
  }
}

template <class T>
void CpuRun<T>::worker(int64_t rank, LaneId lane) {
  const std::string name =
      fmt::format("r{}.{}", first_ + rank, plan_.schedule.lanes[lane.index()].name).substr(0, 15);
  pthread_setname_np(pthread_self(), name.c_str());
  if (lane.index() != 0) wake_promptly();
  guarded(rank, lane, [&] {
    Rank<T>& self = *ranks_[static_cast<size_t>(rank)];
    if (lane.index() == 0) self.prepare(starts_afresh());
    for (;;) {
      start_.arrive();
      if (over_) return;
      self.run_lane(lane, pass_, comms_[static_cast<size_t>(rank * num_lanes_) + lane.index()]);
      end_.arrive();
    }
  });
}

template <class T>
void CpuRun<T>::conduct() {
  ranks_[0]->prepare(starts_afresh());
  int64_t step = first_step_, saved = -1;
  for (bool go_on = true; go_on && step < first_step_ + options_.steps;) {
    go_on = train_step(step++);
    if (options_.checkpoint_every > 0 && (step - first_step_) % options_.checkpoint_every == 0) {
      checkpoint(saved = step);
    }
  }
  if (saved != step) checkpoint(step);
  if (options_.eval_batches > 0) evaluate();
  over_ = true;
  start_.arrive();
  if (peers_) peers_->gather_persistent();
  if (leads()) measure_parameters<T>(persistents_, buffers_, result_);
  if (peers_) peers_->agree(true);  // copies that differ fail the run of all
}

/// All ranks' memory from a file.
template <class T>
void CpuRun<T>::restore() {
  if (leads() && !options_.resume_from.empty()) {
    first_step_ =
        read_checkpoint(options_.resume_from, plan_, persistents_, buffers_, kElementBytes);
  } else if (leads()) {
    for (int64_t r = 0; r < num_ranks_; ++r) {
      initialise<T>(plan_, persistents_, *buffers_[static_cast<size_t>(r)], r, reference_init);
    }
    read_parameters(options_.parameters_from, plan_, persistents_, buffers_, kElementBytes);
  }
  if (!peers_) return;
  peers_->spread_persistent();
  first_step_ = peers_->agree(first_step_);
}

template <class T>
void CpuRun<T>::run_pass(const DataSource& data, Pass pass) {
  pass.epoch = pass_.epoch + 1;
  pass_ = pass;
  for (auto& rank : ranks_) {
    rank->fill_inputs(data, pass.step);
    rank->start_pass();
  }
  for (auto& arbitration : arbitrations_) arbitration->start_pass();
  if (peers_) common_start_ = peers_->start();
  start_.arrive();
  ranks_[0]->run_lane(LaneId(0), pass_, nullptr);
  end_.arrive();
  reports_.clear();
  for (const auto& rank : ranks_) {
    reports_.push_back(report_of(*rank, static_cast<size_t>(num_lanes_)));
  }
  if (peers_) reports_ = peers_->gather(std::move(reports_[0]));
}

template <class T>
bool CpuRun<T>::train_step(int64_t step) {
  const bool measure = options_.keep_grad_norms && step == first_step_;
  run_pass(options_.data, {.step = step, .train = true, .measure_gradients = measure});
  bool go_on = true;
  if (leads()) {
    std::vector<LinkLoad> links;
    if (wire_) links = link_loads(wire_->wire(), wire_->take_use(pass_.start));
    add_step({plan_, options_, persistents_, buffers_, reports_, pass_}, std::move(links), result_);
    // Rank 0 decides for all: the others wait for the next pass.
    const bool wanted = !options_.on_step || options_.on_step(step, result_.losses.back());
    go_on = wanted && stop_requests == stop_requests_before_ && result_.stop_reason.empty();
  }
  if (peers_) go_on = peers_->agree(go_on);
  if (!go_on) result_.stopped = true;
  return go_on;
}

template <class T>
void CpuRun<T>::evaluate() {
  for (int64_t b = 0; b < options_.eval_batches; ++b) {
    run_pass(options_.eval_data, {.step = b, .train = false});
    result_.eval_loss += sum_of_losses(reports_) / static_cast<double>(options_.eval_batches);
  }
}

template <class T>
void CpuRun<T>::checkpoint(int64_t next_step) {
  if (options_.checkpoint_to.empty()) return;
  if (peers_) peers_->gather_persistent();
  if (!leads()) return;
  write_checkpoint(options_.checkpoint_to, plan_, persistents_, buffers_, kElementBytes, next_step);
}

template <class T>
template <class Body>
void CpuRun<T>::guarded(int64_t rank, LaneId lane, Body body) {
  try {
    body();
  } catch (const Aborted&) {  // whoever failed has told why
  } catch (const std::exception&) {
    fail(rank, lane, std::current_exception());
  }
}

template <class T>
void CpuRun<T>::fail(int64_t rank, LaneId lane, std::exception_ptr error) {
  const OpId op = ranks_[static_cast<size_t>(rank)]->current(lane);
  if (op.valid()) {
    error = with_prefix(fmt::format("rank {}, step {}, op {}: ", first_ + rank, pass_.step,
                                    plan_.graph.op(op).name),
                        error);
  }
  {
    const std::lock_guard lock(failure_mutex_);
    const bool first = !failure_.error;
    // A collective that ends after the first failure ends because of it.
    const bool follows = !first && lane.index() != 0;
    const bool lower = std::tie(op.value, rank) < std::tie(failure_.op, failure_.rank);
    if (first || (!follows && lower)) failure_ = {error, op.value, rank};
  }
  for (auto& r : ranks_) r->abort();
  for (auto& arbitration : arbitrations_) arbitration->abort();
  start_.abort();
  end_.abort();
  if (world_) world_->abort(message(error));
  if (processes_ != nullptr) processes_->fail(message(error));
  if (wire_) wire_->abort(message(error));
}

class CpuExecutor : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions& options) override {
    try {
      check_options(plan, options);
      return options.precision == Precision::kF32 ? CpuRun<float>(plan, options).run()
                                                  : CpuRun<double>(plan, options).run();
    } catch (const std::exception& error) {
      // What fails in one process ends the run of all.
      if (options.processes != nullptr) options.processes->fail(error.what());
      throw;
    }
  }
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor() {
  return std::make_unique<CpuExecutor>();
}

void request_stop() {
  stop_requests.fetch_add(1);
}

}  // namespace moe
