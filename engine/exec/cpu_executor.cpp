#include "engine/exec/cpu_executor.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <tuple>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/comm/emulated_link.h"
#include "engine/exec/checkpoint.h"
#include "engine/exec/rank.h"
#include "engine/exec/swaps.h"
#include "engine/exec/sync.h"
#include "engine/exec/trace_record.h"
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

void check_options(const Plan& plan, const RunOptions& options) {
  if (!options.data) throw user_error("a run on CPU ranks needs data");
  if (options.steps < 0) throw user_error("steps: {} is negative", options.steps);
  if (options.eval_batches > 0 && !options.eval_data) {
    throw user_error("eval_batches = {} without data to evaluate on", options.eval_batches);
  }
  check_popularity(plan, options);
  if (options.emulate_link && plan.spec.cluster.num_devices() != plan.graph.num_ranks) {
    throw user_error("the link's cluster has {} devices for {} ranks",
                     plan.spec.cluster.num_devices(), plan.graph.num_ranks);
  }
  const double needed =
      static_cast<double>(plan.memory.peak_bytes()) * static_cast<double>(plan.graph.num_ranks);
  const double present =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (needed > present) {
    throw user_error("{} ranks need {:.1f} GiB, this machine has {:.1f} GiB", plan.graph.num_ranks,
                     needed / 0x1p30, present / 0x1p30);
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
  void spawn();
  void worker(int64_t rank, LaneId lane);
  void conduct();
  void resume();
  /// Runs one pass on all threads; the conductor's own part is rank 0's compute lane.
  void run_pass(const DataSource& data, Pass pass);
  /// Returns whether to go on.
  bool train_step(int64_t step);
  void collect(int64_t step);
  void collect_gradients();
  void collect_placements();
  void evaluate();
  void checkpoint(int64_t next_step);
  double sum_of_losses() const;
  bool starts_afresh() const {
    return options_.resume_from.empty() && options_.parameters_from.empty();
  }

  template <class Body>
  void guarded(int64_t rank, LaneId lane, Body body);
  void fail(int64_t rank, LaneId lane, std::exception_ptr error);

  const Plan& plan_;
  const RunOptions& options_;
  const int64_t num_ranks_;
  const int64_t num_lanes_;
  const uint64_t stop_requests_before_ = stop_requests;
  Persistents persistents_;
  std::vector<std::unique_ptr<Arbitration>> arbitrations_;
  std::vector<Arbitration*> arbiter_of_;  // by lane
  std::vector<std::unique_ptr<Rank<T>>> ranks_;
  AllBuffers buffers_;
  InProcessWorld world_;
  std::unique_ptr<EmulatedWire> wire_;                // null: the ranks' memory
  std::vector<std::unique_ptr<Communicator>> links_;  // emulated, by rank and comm lane
  std::vector<Communicator*> comms_;                  // by rank and lane; null for compute lanes
  Rendezvous start_, end_;
  Pass pass_;
  bool over_ = false;  // written by the conductor before it arrives at start_
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
      num_ranks_(plan.graph.num_ranks),
      num_lanes_(static_cast<int64_t>(plan.orders.lanes.size())),
      persistents_(persistents(plan)),
      arbiter_of_(plan.orders.lanes.size()),
      world_(num_ranks_, std::max<int64_t>(1, num_lanes_ - 1), {options.timeout_s}),
      start_(num_ranks_ * num_lanes_,
             [this] { pass_.start = clock_ns() + (num_ranks_ > 1 ? kWakeUp : 0); }),
      end_(num_ranks_ * num_lanes_),
      first_step_(options.first_step) {
  add_arbitrations();
  if (options.emulate_link) wire_ = std::make_unique<EmulatedWire>(plan.spec.cluster, true);
  for (int64_t r = 0; r < num_ranks_; ++r) {
    ranks_.push_back(std::make_unique<Rank<T>>(plan, options, persistents_, arbiter_of_, r));
    buffers_.push_back(&ranks_.back()->buffers());
    for (int64_t l = 0; l < num_lanes_; ++l) {
      Communicator* comm = l == 0 ? nullptr : &world_.comm(r, l - 1);
      if (comm != nullptr && wire_) {
        links_.push_back(emulate_link(*comm, *wire_, l - 1));
        comm = links_.back().get();
      }
      comms_.push_back(comm);
    }
  }
  result_.provenance = options.emulate_link ? Provenance::kEmulated : Provenance::kMeasured;
  result_.peak_bytes = ranks_[0]->buffers().allocated();
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
  if (!options_.resume_from.empty()) {
    resume();
  } else if (!options_.parameters_from.empty()) {
    for (int64_t r = 0; r < num_ranks_; ++r) {
      initialise<T>(plan_, persistents_, *buffers_[static_cast<size_t>(r)], r, reference_init);
    }
    read_parameters(options_.parameters_from, plan_, persistents_, buffers_, kElementBytes);
  }
  for (int64_t r = 0; r < num_ranks_; ++r) {
    for (int64_t l = r == 0 ? 1 : 0; l < num_lanes_; ++l) {
      threads_.emplace_back([this, r, l] { worker(r, LaneId(l)); });
    }
  }
}

template <class T>
void CpuRun<T>::worker(int64_t rank, LaneId lane) {
  const std::string name =
      fmt::format("r{}.{}", rank, plan_.schedule.lanes[lane.index()].name).substr(0, 15);
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
  measure_parameters<T>(persistents_, buffers_, result_);
}

template <class T>
void CpuRun<T>::resume() {
  first_step_ = read_checkpoint(options_.resume_from, plan_, persistents_, buffers_, kElementBytes);
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
  start_.arrive();
  ranks_[0]->run_lane(LaneId(0), pass_, nullptr);
  end_.arrive();
}

template <class T>
bool CpuRun<T>::train_step(int64_t step) {
  const bool measure = options_.keep_grad_norms && step == first_step_;
  run_pass(options_.data, {.step = step, .train = true, .measure_gradients = measure});
  collect(step);
  if (measure) collect_gradients();
  if (!persistents_.placed.empty()) collect_placements();
  // Rank 0 decides for all: the others wait for the next pass.
  const bool wanted = !options_.on_step || options_.on_step(step, result_.losses.back());
  const bool go_on =
      wanted && stop_requests == stop_requests_before_ && result_.stop_reason.empty();
  if (!go_on) result_.stopped = true;
  return go_on;
}

template <class T>
void CpuRun<T>::collect(int64_t step) {
  Timeline timeline;
  timeline.num_ranks = static_cast<int32_t>(num_ranks_);
  timeline.provenance = result_.provenance;
  if (wire_) timeline.links = link_loads(wire_->wire(), wire_->take_use(pass_.start));
  std::vector<std::vector<const GateRecord*>> records;
  std::vector<std::vector<RouterLoss>> router_losses;
  std::vector<std::vector<SwapRecord>> swaps;
  result_.executed.clear();
  for (const auto& rank : ranks_) {
    result_.executed.emplace_back();
    for (int64_t l = 0; l < num_lanes_; ++l) {
      const std::vector<Span>& spans = rank->spans(LaneId(l));
      timeline.spans.insert(timeline.spans.end(), spans.begin(), spans.end());
      result_.executed.back().emplace_back();
      for (const Span& span : spans) {
        if (span.chunk == 0) result_.executed.back().back().push_back(span.op);
      }
    }
    records.push_back(rank->gate_records());
    router_losses.push_back(rank->router_losses());
    swaps.push_back(rank->swaps());
  }
  std::sort(timeline.spans.begin(), timeline.spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.begin, a.rank, a.lane, a.op, a.chunk) <
           std::tie(b.begin, b.rank, b.lane, b.op, b.chunk);
  });
  result_.metrics.push_back(metrics(plan_.graph, timeline));
  result_.timelines.push_back(std::move(timeline));
  result_.moe.push_back(moe_stats(records, router_losses));
  if (!swaps[0].empty()) result_.swaps.push_back(joined(swaps));
  if (options_.record) record_step(*options_.record, std::move(records));
  if (options_.keep_predictions) {
    std::vector<int32_t>& all = result_.predictions.emplace_back();
    for (const auto& rank : ranks_) {
      all.insert(all.end(), rank->predictions().begin(), rank->predictions().end());
    }
  }
  result_.losses.push_back(sum_of_losses());
  if (options_.check_finite && !std::isfinite(result_.losses.back())) {
    throw run_error("step {}: the loss is {}", step, result_.losses.back());
  }
}

/// All ranks must have the same placements in force, or they would meet in different transfers.
template <class T>
void CpuRun<T>::collect_placements() {
  for (const auto& rank : ranks_) {
    if (result_.stop_reason.empty()) result_.stop_reason = rank->policy_failure();
  }
  for (const PlacedLayer& layer : persistents_.placed) {
    const Placement first = placement_of(layer, *buffers_[0]);
    for (size_t r = 1; r < buffers_.size(); ++r) {
      if (placement_of(layer, *buffers_[r]) == first) continue;
      throw run_error(
          "step {}: ranks 0 and {} have other placements of block {}'s experts: the policy does "
          "not give the same on all ranks",
          pass_.step, r, layer.layer);
    }
  }
  std::vector<PlacementRecord> records = ranks_[0]->placements();
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.layer < b.layer; });
  for (PlacementRecord& record : records) {
    for (const MoeStats& stats : result_.moe.back()) {
      if (stats.layer != record.layer) continue;
      Loads loads(num_ranks_, record.bounds.experts);
      loads.rows.assign(stats.counts.begin(), stats.counts.end());
      count_rows(record, loads);
    }
  }
  result_.placements.push_back(std::move(records));
}

template <class T>
double CpuRun<T>::sum_of_losses() const {
  double sum = 0;
  for (const auto& rank : ranks_) sum += rank->loss();
  return sum;
}

template <class T>
void CpuRun<T>::collect_gradients() {
  for (size_t p = 0; p < persistents_.parameters.size(); ++p) {
    const Persistent& parameter = persistents_.parameters[p];
    Measure sum;
    for (size_t r = 0; r < static_cast<size_t>(parameter.holders); ++r) {
      sum.sum_of_squares += ranks_[r]->gradients()[p].sum_of_squares;
      sum.projection += ranks_[r]->gradients()[p].projection;
    }
    result_.grad_l2[parameter.name] = std::sqrt(sum.sum_of_squares);
    result_.grad_projection[parameter.name] = sum.projection;
  }
}

template <class T>
void CpuRun<T>::evaluate() {
  for (int64_t b = 0; b < options_.eval_batches; ++b) {
    run_pass(options_.eval_data, {.step = b, .train = false});
    result_.eval_loss += sum_of_losses() / static_cast<double>(options_.eval_batches);
  }
}

template <class T>
void CpuRun<T>::checkpoint(int64_t next_step) {
  if (options_.checkpoint_to.empty()) return;
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
    error = with_prefix(
        fmt::format("rank {}, step {}, op {}: ", rank, pass_.step, plan_.graph.op(op).name), error);
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
  world_.abort(message(error));
  if (wire_) wire_->abort(message(error));
}

class CpuExecutor : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions& options) override {
    check_options(plan, options);
    return options.precision == Precision::kF32 ? CpuRun<float>(plan, options).run()
                                                : CpuRun<double>(plan, options).run();
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
