#include "engine/profile/calibrate_device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/packing.h"
#include "engine/cost/cost_model.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/executor.h"
#include "engine/exec/device/handles.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/device/plugin.h"
#include "engine/graph/op_def.h"
#include "engine/profile/device_overlap.h"
#include "engine/profile/device_profiler.h"

namespace moe {
namespace {

using Where = DeviceStorage::Where;
using Times = std::vector<Nanoseconds>;

constexpr double kTimeout_s = 60;  // for joining the process group, and for each collective
constexpr int64_t kWarmUpRounds = 5, kFewestRounds = 20;
constexpr int32_t kByte = 0x3c;  // fills the payload: floats of about 0.01, whose sums are finite

/// The process group in which collectives are timed, seen from one rank.
class TimedProcessGroup {
 public:
  TimedProcessGroup(Processes& processes, const kernels::DeviceTable& device,
                    const kernels::ProcessGroupSettings& settings)
      : processes_(processes),
        device_(device),
        table_(*device.process_groups),
        stream_(device, true),
        over_(device, false),
        meeting_(device, Where::kDevice, sizeof(float)) {
    std::string id(kernels::ProcessGroupTable::kIdBytes, '\0');
    if (processes.is_root() && !table_.make_id(id.data()))
      fail("creating the id of a process group");
    id = processes.broadcast("process group", id);
    process_group_ =
        table_.join(id.data(), processes.rank(), processes.size(), kTimeout_s, settings);
    if (process_group_ == nullptr) fail("joining the other ranks in a process group");
    device_.fill(meeting_.data(), 0, meeting_.size(), stream_.get());
  }
  TimedProcessGroup(const TimedProcessGroup&) = delete;
  ~TimedProcessGroup() { (broken_ ? table_.abort : table_.destroy)(process_group_); }

  /// Returns samples, on this rank, of an all-to-all or an all-reduce with the payload of `op`.
  Times time(const Graph& graph, OpId op, int64_t min_samples) {
    const auto bytes = static_cast<Bytes>(std::llround(payload_bytes(graph, op, {})));
    const DeviceStorage in(device_, Where::kDevice, bytes), out(device_, Where::kDevice, bytes);
    device_.fill(in.data(), kByte, bytes, stream_.get());
    const bool sums = graph.def(op).collective == Collective::kAllReduce;
    const DeviceEvent begin(device_, true), end(device_, true);
    Times samples;
    const int64_t rounds = kWarmUpRounds + std::max(kFewestRounds, min_samples);
    for (int64_t round = 0; round < rounds; ++round) {
      auto* const met = reinterpret_cast<float*>(meeting_.data());
      table_.all_reduce(process_group_, met, met, 1, stream_.get());
      device_.record(begin.get(), stream_.get());
      if (sums) {
        table_.all_reduce(process_group_, reinterpret_cast<const float*>(in.data()),
                          reinterpret_cast<float*>(out.data()),
                          bytes / static_cast<Bytes>(sizeof(float)), stream_.get());
      } else {
        exchange(in.data(), out.data(), bytes / processes_.size());
      }
      device_.record(end.get(), stream_.get());
      finish(graph.op(op).name);
      if (round < kWarmUpRounds) continue;
      samples.push_back(std::llround(device_.elapsed_ns(begin.get(), end.get())));
    }
    check_device(device_, graph.op(op).name);
    return samples;
  }

 private:
  /// Queues an all-to-all with `part` bytes for each rank, including this one.
  void exchange(std::byte* in, std::byte* out, Bytes part) {
    std::vector<kernels::Message> sends, receives;
    for (int64_t peer = 0; peer < processes_.size(); ++peer) {
      if (peer == processes_.rank()) {
        device_.copy(out + peer * part, in + peer * part, part, stream_.get());
        continue;
      }
      sends.push_back({static_cast<int32_t>(peer), in + peer * part, part});
      receives.push_back({static_cast<int32_t>(peer), out + peer * part, part});
    }
    const auto count = static_cast<int64_t>(sends.size());
    table_.exchange(process_group_, sends.data(), count, receives.data(), count, stream_.get());
  }

  /// Waits until all queued work is over on this rank. Throws RunError naming `what` if it fails or
  /// takes longer than kTimeout_s.
  void finish(const std::string& what) {
    broken_ = true;  // stays true if this function throws
    device_.record(over_.get(), stream_.get());
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(kTimeout_s);
    while (!device_.over(over_.get())) {
      check_device(device_, what);
      const std::string trouble = table_.trouble(process_group_);
      if (!trouble.empty())
        throw run_error("collective '{}' between the processes of the job failed: {}", what,
                        trouble);
      if (processes_.failed()) throw RunError(processes_.reason());
      if (std::chrono::steady_clock::now() > deadline) {
        throw run_error("collective '{}' between the processes of the job did not end within {} s",
                        what, kTimeout_s);
      }
      std::this_thread::sleep_for(kDevicePoll);
    }
    broken_ = false;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw run_error("{} failed: {}", what, device_.take_error());
  }

  Processes& processes_;
  const kernels::DeviceTable& device_;
  const kernels::ProcessGroupTable& table_;
  DeviceStream stream_;
  DeviceEvent over_;
  DeviceStorage meeting_;
  kernels::ProcessGroup process_group_ = nullptr;
  bool broken_ = false;  // queued work may never end, so the group must be aborted
};

std::string text_of(const Times& samples) {
  return {reinterpret_cast<const char*>(samples.data()), samples.size() * sizeof(Nanoseconds)};
}
Times samples_of(const std::string& text) {
  Times samples(text.size() / sizeof(Nanoseconds));
  std::memcpy(samples.data(), text.data(), samples.size() * sizeof(Nanoseconds));
  return samples;
}

/// Returns, on all ranks, the longest time of any rank for each round.
Times slowest(Processes& processes, const std::string& what, const Times& own) {
  Times worst = own;
  for (const std::string& text : processes.gather(what, text_of(own))) {
    const Times other = samples_of(text);
    MOE_CHECK(other.size() == worst.size(),
              "{}: one rank timed {} rounds and this rank {}; the numbers must be equal", what,
              other.size(), worst.size());
    for (size_t i = 0; i < worst.size(); ++i) worst[i] = std::max(worst[i], other[i]);
  }
  return samples_of(processes.broadcast(what, text_of(worst)));
}

std::string text_of(const OverlapTable& table) {
  Packer packer;
  packer.put(table.source);
  packer.put(table.by_blocks.size());
  for (const auto& [blocks, slowdown] : table.by_blocks) {
    packer.put(blocks);
    packer.put(slowdown);
  }
  return packer.take();
}
OverlapTable overlap_of(const std::string& text) {
  Unpacker unpacker(text);
  OverlapTable table;
  unpacker.get(table.source);
  size_t rows = 0;
  for (unpacker.get(rows); rows > 0; --rows) {
    int32_t blocks = 0;
    unpacker.get(blocks);
    unpacker.get(table.by_blocks[blocks]);
  }
  return table;
}

}  // namespace

CalibrateOptions calibrated_on(const kernels::DeviceTable& table, CalibrateOptions options) {
  const bool bf16 = options.dtype == DType::kBF16;
  MOE_CHECK(bf16 || options.dtype == DType::kF32,
            "calibrate: dtype is {}, but must be f32 or bf16, the types of the device's kernels",
            name_of(options.dtype));
  const kernels::DeviceTable device = computing_in(bf16, table);
  options.time_op = [device](const Graph& graph, OpId op, const ProfileOptions& profile) {
    return profile_op_on_device(graph, op, profile, device);
  };
  options.machine = [device, dtype = options.dtype](const ProfileOptions& profile) {
    return fmt::format("{}; {}", device_profile_key(profile, device), name_of(dtype));
  };
  options.overlap = [device](const Graph& graph, const ProfileOptions& profile) {
    ProfileCache unkept("");
    return overlap_table(graph, {.profile = profile}, unkept, "", device);
  };
  return options;
}

CalibrateOptions calibrated_among(Processes& processes, const kernels::DeviceTable& device,
                                  CalibrateOptions options,
                                  const kernels::ProcessGroupSettings& settings) {
  if (device.process_groups == nullptr) {
    throw user_error(
        "calibrate: ranks in several processes need NCCL, but the CUDA plugin was built without "
        "NCCL");
  }
  options.num_ranks = processes.size();
  const CalibrateOptions alone = calibrated_on(device, options);
  const auto process_group = std::make_shared<TimedProcessGroup>(processes, device, settings);
  options.time_op = [&processes, alone, process_group](const Graph& graph, OpId op,
                                                       ProfileOptions profile) {
    const std::string what = "calibrate " + graph.op(op).name;
    if (graph.def(op).collective != Collective::kNone) {
      return Samples{slowest(processes, what, process_group->time(graph, op, profile.min_samples))};
    }
    profile.ranks_beside = 1;
    Times samples;
    if (processes.is_root()) samples = alone.time_op(graph, op, profile).ns;
    return Samples{samples_of(processes.broadcast(what, text_of(samples)))};
  };
  options.overlap = [&processes, alone](const Graph& graph, ProfileOptions profile) {
    profile.ranks_beside = 1;
    OverlapTable table;
    if (processes.is_root()) table = alone.overlap(graph, profile);
    return overlap_of(processes.broadcast("calibrate overlap", text_of(table)));
  };
  options.machine = [&processes, alone](ProfileOptions profile) {
    profile.ranks_beside = 1;
    return processes.broadcast(
        "machine", fmt::format("{}; one rank in each of {} processes, {} on a machine",
                               alone.machine(profile), processes.size(), processes.size_here()));
  };
  return options;
}

const std::vector<int64_t> kGpuHidden = {256, 768, 2048};

CalibrateOptions calibrated_on_gpu(CalibrateOptions options, Processes* job) {
  const std::string missing = cuda_missing();
  if (!missing.empty()) throw user_error("--device cuda: {}", missing);
  const kernels::DeviceTable& device = *cuda_plugin().table;
  if (job == nullptr) {
    device.use_device(0);
    return calibrated_on(device, std::move(options));
  }
  device.use_device(static_cast<int32_t>(job->place_here() % device.num_devices()));
  return calibrated_among(*job, device, std::move(options));
}

}  // namespace moe
