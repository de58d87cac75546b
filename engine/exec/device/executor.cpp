#include "engine/exec/device/executor.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/rethrow.h"
#include "engine/exec/check_options.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/device/plugin.h"
#include "engine/exec/device/queue.h"
#include "engine/exec/run_loop.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

constexpr Nanoseconds kSpin = 200'000;  // how long a waiting CPU thread polls without sleeping

DeviceChoices choices(const Plan& plan, const Policies& policies) {
  DeviceChoices choices;
  for (const OpId op : plan.graph.op_ids()) {
    choices.on_host.push_back(runs_on_host(plan.graph, plan.graph.op(op)) &&
                              !routes_on_device(plan, policies, op));
  }
  choices.kept = kept_tensors(plan);
  return choices;
}

bool transfers(const Plan& plan, size_t lane) {
  return plan.schedule.lanes[lane].kind == LaneKind::kComm && !plan.orders.lanes[lane].empty();
}

/// Whether transfers of two comm lanes may be in progress at the same time.
bool lanes_meet(const Plan& plan) {
  const std::vector<Arbiter> all = arbiters(plan.schedule);
  // For each comm lane with transfers: its arbiter, or a number of its own. Lanes with the same
  // number never transfer at the same time.
  std::vector<size_t> alone;
  for (size_t l = 1; l < plan.orders.lanes.size(); ++l) {
    if (!transfers(plan, l)) continue;
    const LaneId lane(static_cast<int64_t>(l));
    const auto own = std::find_if(all.begin(), all.end(), [&](const Arbiter& lanes) {
      return std::find(lanes.begin(), lanes.end(), lane) != lanes.end();
    });
    alone.push_back(own != all.end() ? static_cast<size_t>(own - all.begin()) : all.size() + l);
  }
  return std::adjacent_find(alone.begin(), alone.end(), std::not_equal_to<>()) != alone.end();
}

/// Throws UserError unless all processes will queue transfers in the same order; otherwise devices
/// would wait for each other in different transfers. The turns of one arbiter give one order, but
/// transfers of lanes that have no arbiter, or another arbiter, have no fixed order among them.
void check_turns(const Plan& plan) {
  const std::vector<Arbiter> all = arbiters(plan.schedule);
  if (all.empty()) return;
  for (size_t l = 1; l < plan.orders.lanes.size(); ++l) {
    const LaneId lane(static_cast<int64_t>(l));
    const bool shares = std::find(all[0].begin(), all[0].end(), lane) != all[0].end();
    if (shares || !transfers(plan, l)) continue;
    throw user_error(
        "lane {}: the transfers of lane {} are chosen while the step runs, but on cuda all "
        "transfers must begin in the same order in all {} processes; make the two lanes exclusive",
        plan.schedule.lanes[l].name, plan.schedule.lanes[all[0][0].index()].name,
        plan.graph.num_ranks);
  }
}

void check_supported(const Plan& plan, const RunOptions& options) {
  if (options.precision == Precision::kF64) {
    throw user_error(
        "precision: f64 needs the executor cpu; the executor cuda computes in f32 or bf16");
  }
  if (options.pace != 0) {
    throw user_error("pace: {} needs the executor cpu; omit the field on the executor cuda",
                     options.pace);
  }
  if (options.precision == Precision::kBF16 && plan.spec.model->dtype != DType::kBF16) {
    throw user_error("precision: bf16 needs a plan whose model.dtype is bf16, but the plan's is {}",
                     name_of(plan.spec.model->dtype));
  }
  for (const OpId op : plan.graph.op_ids()) {
    const Collective collective = plan.graph.def(op).collective;
    const bool split = is_half(collective) || collective == Collective::kShift ||
                       plan.graph.op(op).attrs.contains("repeated");
    if (!split) continue;
    throw user_error(
        "op '{}': the executor cuda has no {}; the optimizer's states can be sharded (zero = 1), "
        "and products and sequences split (tp, cp, etp), in simulations and on cpu",
        plan.graph.op(op).name, plan.graph.def(op).name);
  }
  if (options.processes != nullptr) check_turns(plan);
}

class DeviceRun {
 public:
  DeviceRun(const Plan& plan, const RunOptions& options, const kernels::DeviceTable& device)
      : plan_(plan),
        options_(options),
        device_(device),
        loop_(plan, options),
        program_(device_program(plan, choices(plan, options.policies))),
        finish_(device, false) {
    check_program(plan, program_);
    Processes* const processes = options.processes;
    const int64_t first = processes != nullptr ? processes->rank() : 0;
    const int64_t here = processes != nullptr ? 1 : plan.graph.num_ranks;
    check_memory(here);
    for (int64_t r = first; r < first + here; ++r) {
      ranks_.push_back(std::make_unique<DeviceRank>(
          plan, options, loop_.persistents(), program_, device,
          [this](kernels::Event e) { wait(e); }, r));
    }
    const auto lanes = static_cast<int64_t>(plan.orders.lanes.size());
    const DeviceSettings& own = options.device;
    const bool emulates = options.emulate_link;
    shares_link_ = emulates && lanes_meet(plan);
    const DeviceLink link = {emulates ? &plan.spec.cluster : nullptr, own.link_blocks,
                             shares_link_};
    comm_ = processes != nullptr
                ? device_process_groups(device, *processes, plan, options.timeout_s,
                                        {own.nccl.channels, own.nccl.channels_per_net_peer})
                : device_ranks(device, here, lanes, link);
    queue_.emplace(plan, options, program_, device, ranks_, *comm_,
                   [this](const std::function<bool()>& holds) { wait_until(holds); });
    check_device(device, "the device");
  }

  RunResult run() {
    AllBuffers buffers;
    for (const auto& rank : ranks_) buffers.push_back(&rank->buffers());
    loop_.meet(std::move(buffers), local_ranks());
    for (const auto& rank : ranks_) rank->prepare(loop_.starts_afresh());
    try {
      loop_.restore();
      loop_.run();
      RunResult result = loop_.finish();
      result.peak_bytes = ranks_[0]->allocated();
      if (recording_.get() != nullptr)
        result.launches_per_step = device_.launches(recording_.get());
      return result;
    } catch (const std::exception&) {
      comm_->abort();
      loop_.fail(std::current_exception());
    }
  }

 private:
  LocalRanks local_ranks() {
    const auto each = [this](void (DeviceRank::*what)()) {
      return [this, what] {
        for (const auto& rank : ranks_) ((*rank).*what)();
      };
    };
    return {.run_step = [this](const DataSource& data,
                               const ProgramRun& spec) { return run_step(data, spec); },
            .take_links = [this] { return comm_->take_links(); },
            .fetch = each(&DeviceRank::fetch),
            .store = each(&DeviceRank::store)};
  }

  void check_memory(int64_t here) const {
    const kernels::DeviceInfo info = device_.info();
    const Bytes needed = (plan_.memory.peak_bytes() - host_only_bytes(plan_, program_)) * here;
    if (needed <= info.free_bytes) return;
    throw user_error("{} ranks need {:.1f} GiB of device memory, but {} has only {:.1f} GiB free",
                     here, static_cast<double>(needed) / 0x1p30, info.name,
                     static_cast<double>(info.free_bytes) / 0x1p30);
  }

  std::vector<RankReport> run_step(const DataSource& data, const ProgramRun& spec) {
    spec_ = spec;
    for (const auto& rank : ranks_) {
      rank->fill_inputs(data, spec.step);
      rank->start_step();
    }
    queue_->start_step(spec);
    if (options_.processes != nullptr) loop_.common_start();
    enqueue(spec);
    device_.record(finish_.get(), queue_->first_stream());
    wait(finish_.get());
    queue_->end_step();
    std::vector<RankReport> reports;
    for (const auto& rank : ranks_) {
      try {
        reports.push_back(rank->report(spec, queue_->start()));
      } catch (const std::exception&) {
        std::rethrow_exception(
            with_prefix(rank->whereabouts(spec.step) + ": ", std::current_exception()));
      }
    }
    return reports;
  }

  /// Queues a step. If the program is recordable and no test hook is set, the second training step
  /// that measures no gradients is recorded, and later ones replay the recording. Nothing is
  /// recorded in a job, since NCCL connects within its first calls, which must not be recorded; nor
  /// when a CPU thread ends the transfers of the emulated link.
  void enqueue(const ProgramRun& spec) {
    const bool alike = program_.recordable && spec.train && !spec.measure_gradients &&
                       !options_.test.delay_ns && !options_.test.poison &&
                       options_.processes == nullptr && !shares_link_;
    if (!alike) return queue_->enqueue(spec);
    // The first step runs unrecorded, so that lazy allocations are not part of the recording.
    if (++alike_steps_ == 1) return queue_->enqueue(spec);
    if (recording_.get() == nullptr) {
      device_.begin_recording(queue_->first_stream());
      queue_->enqueue(spec);
      recording_ = DeviceRecording(device_, device_.end_recording(queue_->first_stream()));
      check_device(device_, "recording a step");
    } else {
      for (const auto& rank : ranks_) rank->replayed();
    }
    device_.replay(recording_.get(), queue_->first_stream());
    check_device(device_, "replaying a step");
  }

  void wait(kernels::Event event) {
    wait_until([&] { return device_.over(event); });
  }

  /// Polls until holds() is true. Throws RunError when the device or another process fails, or the
  /// device makes no progress for the timeout.
  void wait_until(const std::function<bool()>& holds) {
    const Nanoseconds begin = clock_ns();
    const auto limit = static_cast<Nanoseconds>(options_.timeout_s * 1e9);
    Nanoseconds deadline = begin + limit;
    OpId at;
    while (!holds()) {
      check_device(device_, "the device");
      comm_->check();
      if (options_.processes != nullptr && options_.processes->failed()) {
        throw RunError(options_.processes->reason());
      }
      const Nanoseconds now = clock_ns();
      if (now > deadline) {
        const OpId now_at = stuck();
        // An idle device in a job waits for a turn; rank 0's watchdog reports a missing post.
        const bool idle = !now_at.valid() && queue_->awaits_others();
        if (now_at == at && !idle) throw_stuck(at);
        at = now_at;
        deadline = now + limit;
      }
      if (now - begin > kSpin) std::this_thread::sleep_for(kDevicePoll);
    }
    check_device(device_, "the device");
  }

  OpId stuck() const { return ranks_.empty() ? OpId() : ranks_[0]->stuck(); }

  [[noreturn]] void throw_stuck(OpId op) const {
    throw run_error("rank {}, step {}: the device has not finished {} after {} s",
                    ranks_[0]->rank(), spec_.step,
                    op.valid() ? "op " + plan_.graph.op(op).name : "the copies after the last op",
                    options_.timeout_s);
  }

  const Plan& plan_;
  const RunOptions& options_;
  const kernels::DeviceTable& device_;
  RunLoop<float> loop_;
  const DeviceProgram program_;
  DeviceEvent finish_;
  DeviceQueue::Ranks ranks_;
  std::unique_ptr<DeviceCommunicator> comm_;
  std::optional<DeviceQueue> queue_;
  bool shares_link_ = false;  // whether lanes share the emulated link
  DeviceRecording recording_;
  int64_t alike_steps_ = 0;
  ProgramRun spec_;
};

class DeviceExecutor : public Executor {
 public:
  /// `table` is null to use the CUDA plugin's table.
  explicit DeviceExecutor(const kernels::DeviceTable* table) : table_(table) {}

  RunResult run(const Plan& plan, const RunOptions& options) override {
    try {
      if (!plan.programs.empty()) {
        throw user_error(
            "grid.pp: the executor cuda runs one pipeline rank so far, but the plan has {}; take "
            "the executor cpu, or give pp = 1",
            plan.programs.size());
      }
      check_options(plan, options, plan.memory.persistent_bytes);
      check_supported(plan, options);
      const kernels::DeviceTable table = computing_in(options.precision == Precision::kBF16,
                                                      table_ != nullptr ? *table_ : opened());
      // In a job, the processes of a machine use its devices in round-robin order.
      const int64_t place = options.processes == nullptr ? 0 : options.processes->place_here();
      table.use_device(static_cast<int32_t>(place % std::max(1, table.num_devices())));
      return DeviceRun(plan, options, table).run();
    } catch (const std::exception& error) {
      if (options.processes != nullptr) options.processes->fail(error.what());
      throw;
    }
  }

 private:
  static const kernels::DeviceTable& opened() {
    const std::string missing = cuda_missing();
    if (!missing.empty()) throw user_error("executor cuda: {}", missing);
    return *cuda_plugin().table;
  }

  const kernels::DeviceTable* const table_;
};

}  // namespace

std::unique_ptr<Executor> make_device_executor(const kernels::DeviceTable& table) {
  return std::make_unique<DeviceExecutor>(&table);
}

std::unique_ptr<Executor> make_cuda_executor() {
  return std::make_unique<DeviceExecutor>(nullptr);
}

std::string cuda_missing() {
  const CudaPlugin& plugin = cuda_plugin();
  if (plugin.table == nullptr) return plugin.missing;
  if (plugin.table->num_devices() > 0) return "";
  const std::string why = plugin.table->take_error();
  return fmt::format("the CUDA plugin finds no GPU{}{}", why.empty() ? "" : ": ", why);
}

std::string cuda_gpu() {
  const kernels::DeviceTable& table = *cuda_plugin().table;
  const kernels::DeviceInfo info = table.info();
  return fmt::format("{}, {:.0f} GiB, {}", info.name,
                     static_cast<double>(info.memory_bytes) / 0x1p30, info.versions);
}

}  // namespace moe
