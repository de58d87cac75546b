#include "engine/exec/device_executor.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/rethrow.h"
#include "engine/exec/check_options.h"
#include "engine/exec/conductor.h"
#include "engine/exec/cuda_plugin.h"
#include "engine/exec/device_rank.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

constexpr auto kPoll = std::chrono::microseconds(20);
constexpr Nanoseconds kSpin = 200'000;  // before a waiting host sleeps between looks

DeviceChoices choices(const Plan& plan, const RunOptions& options) {
  DeviceChoices choices;
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    choices.on_host.push_back(runs_on_host(plan.graph, plan.graph.op(op)) &&
                              !routes_on_device(plan, options, op));
  }
  choices.kept = kept_tensors(plan);
  return choices;
}

/// Comm lanes that carry something.
int64_t num_comm_lanes(const Plan& plan) {
  return std::count_if(plan.orders.lanes.begin() + 1, plan.orders.lanes.end(),
                       [](const auto& ops) { return !ops.empty(); });
}

void check_supported(const Plan& plan, const RunOptions& options) {
  if (options.precision == Precision::kF64) {
    throw user_error("precision: f64 is computed on cpu alone; f32 or bf16 on cuda");
  }
  if (!arbiters(plan.schedule).empty()) {
    throw user_error(
        "lane {}: it chooses its next transfer while the step runs, which the cuda executor does "
        "not do yet; run the system on cpu",
        plan.schedule.lanes[arbiters(plan.schedule)[0][0].index()].name);
  }
  for (const Op& op : plan.graph.ops()) {
    const OpDef& def = plan.graph.def(op);
    const bool places = def.name == std::string_view("place") ||
                        def.name == std::string_view("place_expected") ||
                        op.attrs.contains("residents");
    if (!places && def.collective != Collective::kExperts) continue;
    throw user_error(
        "op {}: the cuda executor does not move experts between devices yet; run the system on cpu",
        op.name);
  }
  if (options.keep_predictions) {
    throw user_error("keep_predictions: the cuda executor does not keep them yet");
  }
  if (options.emulate_link && num_comm_lanes(plan) > 1) {
    throw user_error(
        "link: on the cuda executor a transfer has the emulated link for itself, and the system "
        "has {} comm lanes; give it one, or run it on cpu",
        num_comm_lanes(plan));
  }
}

/// The device with the kernels of the precision.
kernels::DeviceTable computing_in(Precision precision, kernels::DeviceTable device) {
  if (precision != Precision::kBF16) return device;
  if (device.kernels_bf16 == nullptr) {
    throw user_error("precision: bf16: this device has no kernels of bfloat16; give f32");
  }
  device.kernels = device.kernels_bf16;
  return device;
}

class DeviceRun {
 public:
  DeviceRun(const Plan& plan, const RunOptions& options, const kernels::DeviceTable& device)
      : plan_(plan),
        options_(options),
        device_(device),
        conductor_(plan, options),
        program_(device_program(plan, choices(plan, options))),
        go_(device, false),
        finish_(device, false),
        start_(device, true) {
    check_program(plan, program_);
    Processes* const processes = options.processes;
    const int64_t first = processes != nullptr ? processes->rank() : 0;
    const int64_t here = processes != nullptr ? 1 : plan.graph.num_ranks;
    check_memory(here);
    for (int64_t r = first; r < first + here; ++r) {
      ranks_.push_back(std::make_unique<DeviceRank>(
          plan, options, conductor_.persistents(), program_, device,
          [this](kernels::Event e) { wait(e); }, r));
      for (size_t l = 0; l < plan.orders.lanes.size(); ++l) over_.emplace_back(device, false);
      ready_.emplace_back(device, false);
    }
    const auto lanes = static_cast<int64_t>(plan.orders.lanes.size());
    const Cluster* const link = options.emulate_link ? &plan.spec.cluster : nullptr;
    comm_ = processes != nullptr ? device_clique(device, *processes, plan, options.timeout_s)
                                 : device_ranks(device, here, lanes, link);
    check_device(device, "the device");
  }

  RunResult run() {
    AllBuffers buffers;
    for (const auto& rank : ranks_) buffers.push_back(&rank->buffers());
    conductor_.meet(std::move(buffers), crew());
    for (const auto& rank : ranks_) rank->prepare(conductor_.starts_afresh());
    try {
      conductor_.restore();
      conductor_.conduct();
      RunResult result = conductor_.finish();
      result.provenance = options_.emulate_link ? Provenance::kEmulated : Provenance::kMeasured;
      result.peak_bytes = ranks_[0]->allocated();
      return result;
    } catch (const std::exception&) {
      comm_->abort();
      throw;
    }
  }

 private:
  Crew crew() {
    const auto each = [this](void (DeviceRank::*what)()) {
      return [this, what] {
        for (const auto& rank : ranks_) ((*rank).*what)();
      };
    };
    return {.run_pass = [this](const DataSource& data,
                               const Pass& pass) { return run_pass(data, pass); },
            .fetch = each(&DeviceRank::fetch),
            .store = each(&DeviceRank::store)};
  }

  void check_memory(int64_t here) const {
    const kernels::DeviceInfo info = device_.info();
    const Bytes needed = plan_.memory.peak_bytes() * here;
    if (needed <= info.free_bytes) return;
    throw user_error("{} ranks need {:.1f} GiB, {} has {:.1f} GiB free", here,
                     static_cast<double>(needed) / 0x1p30, info.name,
                     static_cast<double>(info.free_bytes) / 0x1p30);
  }

  std::vector<RankReport> run_pass(const DataSource& data, const Pass& pass) {
    pass_ = pass;
    for (const auto& rank : ranks_) {
      rank->fill_inputs(data, pass.step);
      rank->start_pass();
    }
    if (options_.processes != nullptr) conductor_.common_start();
    give(pass);
    device_.record(finish_.get(), first_stream());
    wait(finish_.get());
    std::vector<RankReport> reports;
    for (const auto& rank : ranks_) {
      reports.push_back(guarded(*rank, [&] { return rank->report(pass, start_.get()); }));
    }
    return reports;
  }

  /// The second training pass of a program that allows it is recorded, later ones replayed.
  void give(const Pass& pass) {
    const bool alike = program_.recordable && pass.train && !pass.measure_gradients &&
                       !options_.delay_ns && !options_.poison;
    if (!alike) return queue(pass);
    if (++alike_passes_ == 1) return queue(pass);  // what is made lazily is made outside
    if (recording_.get() == nullptr) {
      device_.begin_recording(first_stream());
      queue(pass);
      recording_ = DeviceRecording(device_, device_.end_recording(first_stream()));
      check_device(device_, "recording a step");
    } else {
      for (const auto& rank : ranks_) rank->replayed();
    }
    device_.replay(recording_.get(), first_stream());
    check_device(device_, "replaying a step");
  }

  void queue(const Pass& pass) {
    device_.record(go_.get(), first_stream());
    for (size_t r = 0; r < ranks_.size(); ++r) queue_begin(r);
    for (const DeviceStep& step : program_.steps) {
      const bool runs = pass.train || plan_.graph.op(step.op).phase == Phase::kForward;
      if (!runs) continue;
      if (plan_.graph.def(step.op).collective != Collective::kNone) {
        queue_collective(step);
      } else {
        for (const auto& rank : ranks_) guarded(*rank, [&] { queue_compute(*rank, step, pass); });
      }
    }
    for (size_t r = 0; r < ranks_.size(); ++r) queue_end(r);
    for (size_t r = 1; r < ranks_.size(); ++r) device_.wait(first_stream(), ready_[r].get());
  }

  void queue_begin(size_t r) {
    DeviceRank& rank = *ranks_[r];
    const kernels::Stream first = rank.stream(LaneId(0));
    if (r > 0) device_.wait(first, go_.get());
    rank.queue_inputs();
    if (r == 0) device_.record(start_.get(), first);
    device_.record(ready_[r].get(), first);
    for (size_t l = 1; l < plan_.orders.lanes.size(); ++l) {
      device_.wait(rank.stream(LaneId(static_cast<int64_t>(l))), ready_[r].get());
    }
  }

  void queue_end(size_t r) {
    DeviceRank& rank = *ranks_[r];
    const size_t lanes = plan_.orders.lanes.size();
    const kernels::Stream first = rank.stream(LaneId(0));
    for (size_t l = 1; l < lanes; ++l) {
      const kernels::Event over = over_[r * lanes + l].get();
      device_.record(over, rank.stream(LaneId(static_cast<int64_t>(l))));
      device_.wait(first, over);
    }
    rank.queue_results();
    device_.record(ready_[r].get(), first);
  }

  void queue_compute(DeviceRank& rank, const DeviceStep& step, const Pass& pass) {
    rank.wait_for(step);
    rank.begin(step);
    rank.compute(step, pass);
    rank.end(step);
  }

  void queue_collective(const DeviceStep& step) {
    std::vector<DeviceMember> members;
    for (const auto& rank : ranks_) {
      guarded(*rank, [&] { rank->wait_for(step); });
      members.push_back(rank->member(step));
    }
    guarded(*ranks_[0], [&] {
      const int64_t chunks = ranks_[0]->num_chunks(step.op);
      for (int64_t c = 0; c < chunks; ++c) {
        const DeviceTransfer transfer = {plan_.graph.op(step.op).name, step.lane, c, chunks,
                                         members};
        comm_->meet(transfer);
        for (const auto& rank : ranks_) rank->begin(step, c);
        comm_->move(transfer);
        for (const auto& rank : ranks_) rank->moved(step, c);
      }
      for (const auto& rank : ranks_) rank->end(step);
    });
  }

  /// The host goes on when the device has come to the event; as long as it makes progress.
  void wait(kernels::Event event) {
    const Nanoseconds begin = clock_ns();
    const auto limit = static_cast<Nanoseconds>(options_.timeout_s * 1e9);
    Nanoseconds deadline = begin + limit;
    OpId at;
    while (!device_.over(event)) {
      check_device(device_, "the device");
      comm_->check();
      const Nanoseconds now = clock_ns();
      if (now > deadline) {
        if (stuck() == at) throw_stuck(at);
        at = stuck();
        deadline = now + limit;
      }
      if (now - begin > kSpin) std::this_thread::sleep_for(kPoll);
    }
    check_device(device_, "the device");
  }

  OpId stuck() const { return ranks_.empty() ? OpId() : ranks_[0]->stuck(); }

  [[noreturn]] void throw_stuck(OpId op) const {
    throw run_error("rank {}, step {}: the device is at {} for more than {} s", ranks_[0]->rank(),
                    pass_.step, op.valid() ? plan_.graph.op(op).name : "a copy",
                    options_.timeout_s);
  }

  template <class Body>
  std::invoke_result_t<Body> guarded(const DeviceRank& rank, Body body) {
    try {
      return body();
    } catch (const std::exception&) {
      const OpId op = rank.current();
      std::string where = fmt::format("rank {}, step {}", rank.rank(), pass_.step);
      if (op.valid()) where += fmt::format(", op {}", plan_.graph.op(op).name);
      std::rethrow_exception(with_prefix(where + ": ", std::current_exception()));
    }
  }

  kernels::Stream first_stream() const { return ranks_[0]->stream(LaneId(0)); }

  const Plan& plan_;
  const RunOptions& options_;
  const kernels::DeviceTable& device_;
  Conductor<float> conductor_;
  const DeviceProgram program_;
  DeviceEvent go_, finish_, start_;
  std::vector<DeviceEvent> over_;   // by rank and lane
  std::vector<DeviceEvent> ready_;  // by rank: its inputs are there; at the end: its results
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
  std::unique_ptr<DeviceCommunicator> comm_;
  DeviceRecording recording_;
  int64_t alike_passes_ = 0;
  Pass pass_;
};

class DeviceExecutor : public Executor {
 public:
  /// table: null for the CUDA plugin's.
  DeviceExecutor(const kernels::DeviceTable* table, int32_t device)
      : table_(table), device_(device) {}

  RunResult run(const Plan& plan, const RunOptions& options) override {
    try {
      check_options(plan, options);
      check_supported(plan, options);
      const kernels::DeviceTable table =
          computing_in(options.precision, table_ != nullptr ? *table_ : opened());
      table.use_device(device_);
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
  const int32_t device_;
};

}  // namespace

std::unique_ptr<Executor> make_device_executor(const kernels::DeviceTable& table, int32_t device) {
  return std::make_unique<DeviceExecutor>(&table, device);
}

std::unique_ptr<Executor> make_cuda_executor() {
  return std::make_unique<DeviceExecutor>(nullptr, 0);
}

std::string cuda_missing() {
  const CudaPlugin& plugin = cuda_plugin();
  if (plugin.table == nullptr) return plugin.missing;
  if (plugin.table->num_devices() > 0) return "";
  const std::string why = plugin.table->take_error();
  return fmt::format("the CUDA plugin sees no GPU{}{}", why.empty() ? "" : ": ", why);
}

std::string cuda_gpu() {
  const kernels::DeviceTable& table = *cuda_plugin().table;
  const kernels::DeviceInfo info = table.info();
  return fmt::format("{}, {:.0f} GiB, {}", info.name,
                     static_cast<double>(info.memory_bytes) / 0x1p30, info.versions);
}

}  // namespace moe
