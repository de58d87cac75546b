#include "engine/profile/device_overlap.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"
#include "engine/profile/device_profiler.h"
#include "engine/profile/device_trial.h"

namespace moe {
namespace {

using Where = DeviceStorage::Where;

constexpr Bytes kBuffer = 32 << 20;  // size of a transfer's source and target, used repeatedly
// Length of the transfer that tests whether compute can run during a transfer, length of each sleep
// before it and during it, and number of tries.
constexpr Nanoseconds kProbe = 2'000'000, kProbeLead = 200'000;
constexpr int kProbes = 3;

/// Returns whether the device runs other work during a transfer. Without this test, a device that
/// runs its streams one after the other would be tried with longer and longer transfers.
bool runs_side_by_side(const kernels::DeviceTable& device) {
  BackgroundTransfers transfer(device, 1, 1, 0);
  const DeviceStream stream(device, false);
  const DeviceEvent go(device, false), begin(device, true), end(device, true), over(device, false);
  for (int probe = 0; probe < kProbes; ++probe) {
    device.sleep(kProbeLead, {}, stream.get());
    device.record(go.get(), stream.get());
    transfer.queue(go.get(), kProbe);
    device.sleep(kProbeLead, {}, stream.get());
    device.record(begin.get(), stream.get());
    device.sleep(kProbeLead, {}, stream.get());
    device.record(end.get(), stream.get());
    wait_for(device, over.get(), stream.get(), "transfers during compute");
    if (transfer.covered(begin.get(), end.get())) return true;
  }
  return false;
}

class OverlapProfiler {
 public:
  OverlapProfiler(const Graph& graph, const OverlapOptions& options, ProfileCache& cache,
                  std::string prefix, const kernels::DeviceTable& device)
      : graph_(graph),
        options_(options),
        cache_(cache),
        prefix_(std::move(prefix)),
        device_(device) {}

  OverlapTable table() {
    const OverlapOps ops = overlap_ops(graph_);
    MOE_CHECK(ops.gemm.valid() && ops.memory.valid(),
              "calibrate: to time compute while transfers run, the graph must have a GEMM and a "
              "memory-bound op, but lacks at least one of them");
    OverlapTable table;
    for (const int32_t blocks : options_.blocks) {
      const std::optional<double> gemm = factor(ops.gemm, blocks);
      const std::optional<double> memory = gemm ? factor(ops.memory, blocks) : std::nullopt;
      if (!gemm || !memory) {
        return {.source = "not known: the device runs no transfer while it computes"};
      }
      table.by_blocks[blocks] = {*gemm, *memory};
    }
    table.source = fmt::format("measured with {} and {}", graph_.op(ops.gemm).name,
                               graph_.op(ops.memory).name);
    return table;
  }

 private:
  /// Returns the time of `op` during transfers divided by its time alone, at least 1; nullopt if
  /// the device does not run both at the same time.
  std::optional<double> factor(OpId op, int32_t blocks) {
    const std::optional<Nanoseconds> alone = median_of(op, 0);
    const std::optional<Nanoseconds> beside = alone ? median_of(op, blocks) : std::nullopt;
    if (!beside) return std::nullopt;
    return std::max(1.0, static_cast<double>(*beside) / static_cast<double>(*alone));
  }

  /// Returns the median time of `op` during transfers of `blocks` thread blocks; 0 means without
  /// transfers. nullopt if the device does not run both at the same time.
  std::optional<Nanoseconds> median_of(OpId op, int32_t blocks) {
    const std::string key =
        fmt::format("{} | {} ranks beside {} blocks each at {:g} B/s | {}", prefix_,
                    options_.profile.ranks_beside, blocks, blocks == 0 ? 0 : options_.bytes_per_s,
                    op_signature(graph_, op));
    if (const auto known = cache_.find(key)) return median(known->ns);
    if (!side_by_side_) side_by_side_ = runs_side_by_side(device_);
    if (!*side_by_side_) return std::nullopt;
    std::optional<BackgroundTransfers> transfers;
    if (blocks > 0) {
      transfers.emplace(device_, options_.profile.ranks_beside, blocks, options_.bytes_per_s);
    }
    const Samples samples = profile_op_on_device(graph_, op, options_.profile, device_,
                                                 transfers ? &*transfers : nullptr);
    if (samples.ns.empty()) return std::nullopt;
    cache_.store(key, samples);
    return median(samples.ns);
  }

  const Graph& graph_;
  const OverlapOptions& options_;
  ProfileCache& cache_;
  const std::string prefix_;
  const kernels::DeviceTable& device_;
  std::optional<bool> side_by_side_;
};

}  // namespace

BackgroundTransfers::BackgroundTransfers(const kernels::DeviceTable& device, int64_t num_ranks,
                                         int32_t blocks, double bytes_per_s)
    : device_(device), blocks_(blocks), bytes_per_s_(bytes_per_s) {
  for (int64_t r = 0; r < num_ranks; ++r) {
    ranks_.push_back({{device, true},
                      {device, false},
                      {device, true},
                      {device, true},
                      {device, Where::kDevice, kBuffer},
                      {device, Where::kDevice, kBuffer}});
  }
  check_device(device, "transfers during compute");
}

void BackgroundTransfers::queue(kernels::Event go, Nanoseconds length) {
  const auto bytes =
      std::max<Bytes>(1, std::llround(bytes_per_s_ * static_cast<double>(length) / kNsPerSecond));
  for (const Rank& rank : ranks_) {
    std::vector<kernels::Copy> copies;
    for (Bytes left = bytes; left > 0; left -= kBuffer) {
      copies.push_back({rank.to.data(), rank.from.data(), std::min(left, kBuffer)});
    }
    const kernels::Stream stream = rank.stream.get();
    device_.wait(stream, go);
    device_.record(rank.began.get(), stream);
    device_.paced_copies(copies.data(), static_cast<int64_t>(copies.size()), length, blocks_, {},
                         stream);
    device_.record(rank.ended.get(), stream);
  }
}

bool BackgroundTransfers::covered(kernels::Event begin, kernels::Event end) {
  bool all = true;
  for (const Rank& rank : ranks_) {
    wait_for(device_, rank.over.get(), rank.stream.get(), "transfers during compute");
    all = all && device_.elapsed_ns(rank.began.get(), begin) >= 0 &&
          device_.elapsed_ns(end, rank.ended.get()) >= 0;
  }
  return all;
}

OverlapTable overlap_table(const Graph& graph, const OverlapOptions& options, ProfileCache& cache,
                           const std::string& key_prefix, const kernels::DeviceTable& device) {
  return OverlapProfiler(graph, options, cache, key_prefix, device).table();
}

}  // namespace moe
