#include "engine/exec/cpu/executor.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <optional>
#include <thread>
#include <tuple>

#include "engine/base/cores.h"
#include "engine/base/errors.h"
#include "engine/base/rethrow.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/exec/arbiter/lane_arbiter.h"
#include "engine/exec/check_options.h"
#include "engine/exec/cpu/rank.h"
#include "engine/exec/results/machine_state.h"
#include "engine/exec/run_loop.h"
#include "engine/exec/sync.h"
#include "engine/replay/link_spans.h"
#include "kernels/cpu/blas_buffers.h"

namespace moe {
namespace {

// Threads that sleep at the start of a step need up to this many nanoseconds to wake.
constexpr Nanoseconds kWakeUp = 60'000;
// The state of the machine is measured, which takes 2 ms, before a step that begins later than this
// after the last measurement.
constexpr Nanoseconds kMachineEvery = 50'000'000;

/// The failure that is reported. When threads fail at the same time, it is the one whose op is
/// first in the program, on the lowest rank.
struct Failure {
  std::exception_ptr error;
  int32_t op = 0;
  int64_t rank = 0;
};

/// Returns the number of lanes of `count` ranks from `first` on.
int64_t threads_of(const Plan& plan, int64_t first, int64_t count) {
  int64_t lanes = 0;
  for (int64_t r = first; r < first + count; ++r) lanes += std::ssize(plan.program(r).orders.lanes);
  return lanes;
}

template <class T>
class CpuRun {
 public:
  CpuRun(const Plan& plan, const RunOptions& options)
      : plan_(plan),
        options_(options),
        processes_(options.processes),
        num_ranks_(plan.num_ranks()),
        first_(processes_ != nullptr ? processes_->rank() : 0),
        num_here_(processes_ != nullptr ? 1 : num_ranks_),
        num_threads_(threads_of(plan, first_, num_here_)),
        loop_(plan, options),
        start_(num_threads_, [this] { set_start(); }),
        end_(num_threads_) {
    add_arbiters();
    AllBuffers here;
    for (int64_t r = first_; r < first_ + num_here_; ++r) {
      const Plan& program = plan.program(r);
      ranks_.push_back(std::make_unique<Rank<T>>(
          program, options, loop_.persistents(program.pipeline_rank),
          arbiter_of_[static_cast<size_t>(program.pipeline_rank)], r % plan.spec.num_ranks));
      here.push_back(&ranks_.back()->buffers());
    }
    loop_.meet(std::move(here), local_ranks());
    add_lanes();
  }

  RunResult run() {
    RunResult result;
    guarded(0, LaneId(0), [&] {
      loop_.restore();
      spawn();
      const StayOnCore core(0, num_here_);
      ranks_[0]->prepare(loop_.starts_afresh());
      loop_.run();
      over_ = true;
      start_.arrive();
      result = loop_.finish();
    });
    threads_.clear();  // joins the threads
    if (failure_.error) loop_.fail(failure_.error);
    for (const auto& rank : ranks_) {
      result.peak_bytes = std::max(result.peak_bytes, rank->buffers().allocated());
    }
    // Other processes have the ranks of other programs, which allocate what is planned.
    if (processes_ != nullptr) {
      result.peak_bytes = std::max(result.peak_bytes, plan_.memory.peak_bytes());
    }
    return result;
  }

 private:
  void add_arbiters() {
    arbiter_of_.resize(static_cast<size_t>(plan_.spec.pipeline_ranks()));
    for (size_t p = 0; p < arbiter_of_.size(); ++p) {
      const int64_t ranks = plan_.spec.num_ranks, from = static_cast<int64_t>(p) * ranks;
      const Plan& program = plan_.program(from);
      const auto waits_for = [this, from](int64_t rank, OpId op) -> std::string {
        const int64_t number = from + rank - first_;
        if (number < 0 || number >= num_here_) return "";
        return ranks_[static_cast<size_t>(number)]->waits_for(op, spec_);
      };
      arbiter_of_[p].resize(program.schedule.lanes.size());
      const std::vector<Arbiter> lanes = arbiters(program.schedule);
      if (lanes.empty()) continue;
      if (processes_ != nullptr && arbiter_of_.size() > 1) {
        throw user_error(
            "system: lane '{}' chooses its next transfer at run time, which is not possible on "
            "several pipeline ranks in several processes yet; start the program without a launcher",
            program.schedule.lanes[lanes[0][0].index()].name);
      }
      auto made = make_lane_arbiters(program, options_, ranks, waits_for);
      for (size_t a = 0; a < lanes.size(); ++a) {
        for (const LaneId lane : lanes[a]) arbiter_of_[p][lane.index()] = made[a].get();
        arbiters_.push_back(std::move(made[a]));
      }
    }
  }

  void add_lanes() {
    // Lane l of the plan has communicator l - 1, since the first lane computes.
    const int64_t num_comm = std::max<int64_t>(1, std::ssize(plan_.schedule.lanes) - 1);
    const double by = options_.dilation();
    std::vector<Communicator*> of_job;
    if (processes_ != nullptr) {
      of_job = processes_->lanes(num_comm, options_.timeout_s);
    } else {
      world_.emplace(num_ranks_, num_comm, InProcessWorld::Options{by * options_.timeout_s});
    }
    if (options_.emulate_link) {
      wire_ =
          std::make_unique<EmulatedWire>(dilated(plan_.spec.cluster, by), true, options_.pace == 0);
    }
    for (const auto& rank : ranks_) {
      std::vector<Communicator*>& comms = comms_.emplace_back();
      const int64_t number = first_ + std::ssize(comms_) - 1;
      for (size_t l = 0; l < rank->num_lanes(); ++l) {
        const int64_t of = rank->plan().in_step(LaneId(static_cast<int64_t>(l))).value - 1;
        Communicator* comm = l == 0                  ? nullptr
                             : processes_ != nullptr ? of_job[static_cast<size_t>(of)]
                                                     : &world_->comm(number, of);
        if (comm != nullptr && wire_) {
          links_.push_back(emulate_link(*comm, *wire_, of));
          comm = links_.back().get();
        }
        comms.push_back(comm);
      }
    }
  }

  LocalRanks local_ranks() {
    LocalRanks local_ranks;
    local_ranks.run_step = [this](const DataSource& data, const ProgramRun& spec) {
      return run_step(data, spec);
    };
    if (processes_ == nullptr) local_ranks.machine = [this] { return machine(); };
    if (options_.emulate_link) {
      local_ranks.take_links = [this] { return links(); };
    }
    return local_ranks;
  }

  /// Returns what the emulated link carried in the last step, in the times of results.
  std::vector<LinkSpan> links() {
    std::vector<LinkSpan> links = link_spans(wire_->wire(), wire_->take_use(spec_.start));
    if (options_.pace == 0) return links;
    for (LinkSpan& link : links) {
      link.begin = paced_ns(link.begin, options_.pace);
      link.end = paced_ns(link.end, options_.pace);
      link.bytes_per_s *= options_.pace;
      link.capacity *= options_.pace;
    }
    return links;
  }

  /// Returns the state of the machine, measured at most kMachineEvery ago.
  MachineState machine() {
    if (clock_ns() - machine_at_ < kMachineEvery) return machine_;
    machine_ = {.reference_ns = reference_ns(), .others = others_.share()};
    machine_at_ = clock_ns();
    return machine_;
  }

  /// Sets the time at which the step starts. Run by the last thread to arrive at start_, before any
  /// thread leaves it.
  void set_start() {
    spec_.start =
        processes_ != nullptr ? common_start_ : clock_ns() + (num_ranks_ > 1 ? kWakeUp : 0);
  }

  void spawn() {
    if (!kernels::reserve_blas_buffers(num_here_)) {
      throw run_error(
          "the matrix products of {} ranks need 128 MiB of address space per rank, but this "
          "process cannot reserve it; raise its limit (ulimit -v)",
          num_here_);
    }
    check_room_for_threads(num_threads_ - 1, fmt::format("the lanes of {} ranks", num_here_));
    for (int64_t r = 0; r < num_here_; ++r) {
      const Rank<T>& rank = *ranks_[static_cast<size_t>(r)];
      for (size_t l = r == 0 ? 1 : 0; l < rank.num_lanes(); ++l) {
        threads_.push_back(start_thread(
            fmt::format("lane {} of rank {}", rank.plan().schedule.lanes[l].name, first_ + r),
            [this, r, l] { worker(r, LaneId(static_cast<int64_t>(l))); }));
      }
    }
  }

  void worker(int64_t rank, LaneId lane) {
    const std::string name =
        fmt::format("r{}.{}", first_ + rank,
                    plan_.program(first_ + rank).schedule.lanes[lane.index()].name)
            .substr(0, 15);
    pthread_setname_np(pthread_self(), name.c_str());
    if (lane.index() != 0) wake_promptly();
    const StayOnCore core(rank, num_here_);
    guarded(rank, lane, [&] {
      Rank<T>& self = *ranks_[static_cast<size_t>(rank)];
      if (lane.index() == 0) self.prepare(loop_.starts_afresh());
      for (;;) {
        start_.arrive();
        if (over_) return;
        self.run_lane(lane, spec_, comms_[static_cast<size_t>(rank)][lane.index()]);
        end_.arrive();
      }
    });
  }

  /// Runs one step on all threads. The calling thread runs the first rank's compute lane.
  std::vector<RankReport> run_step(const DataSource& data, const ProgramRun& spec) {
    spec_ = spec;
    for (auto& rank : ranks_) {
      rank->fill_inputs(data, spec.step);
      rank->start_step();
    }
    for (const auto& arbiter : arbiters_) arbiter->start_step();
    if (processes_ != nullptr) common_start_ = loop_.common_start();
    start_.arrive();
    ranks_[0]->run_lane(LaneId(0), spec_, nullptr);
    end_.arrive();
    for (const auto& arbiter : arbiters_) arbiter->end_step();
    std::vector<RankReport> reports;
    for (const auto& rank : ranks_) {
      reports.push_back(rank->report());
    }
    return reports;
  }

  template <class Body>
  void guarded(int64_t rank, LaneId lane, Body body) {
    try {
      body();
    } catch (const Aborted&) {  // the thread that failed has reported the reason
    } catch (const std::bad_alloc&) {
      fail(rank, lane,
           std::make_exception_ptr(RunError("the process needs memory in addition to the plan's "
                                            "buffers, but the system has none left")));
    } catch (const std::exception&) {
      fail(rank, lane, std::current_exception());
    }
  }

  void fail(int64_t rank, LaneId lane, std::exception_ptr error) {
    const Rank<T>& of = *ranks_[static_cast<size_t>(rank)];
    const OpId op = of.current(lane);
    if (op.valid()) {
      error = with_prefix(fmt::format("rank {}, step {}, op {}: ", first_ + rank, spec_.step,
                                      of.plan().graph.op(op).name),
                          error);
    }
    {
      const std::lock_guard lock(failure_mutex_);
      const bool first = !failure_.error;
      // A collective that fails after the first failure fails because of that failure.
      const bool follows = !first && lane.index() != 0;
      const bool lower = std::tie(op.value, rank) < std::tie(failure_.op, failure_.rank);
      if (first || (!follows && lower)) failure_ = {error, op.value, rank};
    }
    for (auto& r : ranks_) r->abort();
    for (const auto& arbiter : arbiters_) arbiter->abort();
    start_.abort();
    end_.abort();
    if (world_) world_->abort(message_of(error));
    if (processes_ != nullptr) processes_->fail(message_of(error));
    if (wire_) wire_->abort(message_of(error));
  }

  const Plan& plan_;
  const RunOptions& options_;
  Processes* const processes_;  // null: all ranks are in this process
  const int64_t num_ranks_;
  const int64_t first_;     // the first rank of this process
  const int64_t num_here_;  // ranks of this process
  const int64_t num_threads_;
  RunLoop<T> loop_;
  std::vector<std::unique_ptr<LaneArbiter>> arbiters_;
  std::vector<std::vector<LaneArbiter*>> arbiter_of_;  // by pipeline rank, then lane
  std::vector<std::unique_ptr<Rank<T>>> ranks_;        // the ranks of this process
  std::optional<InProcessWorld> world_;
  std::unique_ptr<EmulatedWire> wire_;  // null: no emulated link, transfers run at full speed
  // With an emulated link: indexed by rank, then comm lane.
  std::vector<std::unique_ptr<Communicator>> links_;
  // Indexed by rank of this process, then lane; null for compute lanes.
  std::vector<std::vector<Communicator*>> comms_;
  Rendezvous start_, end_;
  Nanoseconds common_start_ = 0;  // when the step begins in all processes of a job
  ProgramRun spec_;
  OthersWatch others_;
  MachineState machine_;        // as last measured
  Nanoseconds machine_at_ = 0;  // when
  bool over_ = false;           // set before the loop's thread arrives at start_ for the last time
  std::mutex failure_mutex_;
  Failure failure_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

class CpuExecutor : public Executor {
 public:
  RunResult run(const Plan& plan, const RunOptions& options) override {
    try {
      check_options(plan, options, plan.memory.peak_bytes());
      if (options.precision == Precision::kBF16) {
        throw user_error(
            "precision: bf16 needs the executor cuda; the executor cpu computes in f32 or f64");
      }
      return options.precision == Precision::kF32 ? CpuRun<float>(plan, options).run()
                                                  : CpuRun<double>(plan, options).run();
    } catch (const std::exception& error) {
      // A failure in one process ends the run of all processes.
      if (options.processes != nullptr) options.processes->fail(error.what());
      throw;
    }
  }
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor() {
  return std::make_unique<CpuExecutor>();
}

}  // namespace moe
