// How much longer compute takes on a device while transfers are under way there: ops timed alone
// and beside paced copies by 1, 2, 4, ... blocks, which stand for a network's transfers (kernels
// that hold multiprocessors and share the memory's rate). Not here: what that makes of a step
// (cost/overlap.h, sim/).
#pragma once

#include <string>
#include <vector>

#include "engine/cost/overlap.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/device/buffers.h"
#include "engine/exec/device/handles.h"
#include "engine/profile/profiler.h"
#include "kernels/device.h"

namespace moe {

/// Transfers of ranks side by side that are under way on the device while ops are timed there.
class BackgroundTransfers {
 public:
  /// Each of so many blocks, and as fast. Throws RunError where the device has no room.
  BackgroundTransfers(const kernels::DeviceTable& device, int64_t num_ranks, int32_t blocks,
                      double bytes_per_s);
  /// Queues a transfer per rank that begins after the event's last record and lasts so long.
  void queue(kernels::Event go, Nanoseconds length);
  /// When all are over: whether all were under way from `begin` to `end`, timed events.
  bool covered(kernels::Event begin, kernels::Event end);

 private:
  struct Rank {
    DeviceStream stream;
    DeviceEvent over, began, ended;
    DeviceStorage from, to;
  };
  const kernels::DeviceTable& device_;
  const int32_t blocks_;
  const double bytes_per_s_;
  std::vector<Rank> ranks_;
};

struct OverlapOptions {
  ProfileOptions profile;
  /// Of a rank's transfer; the table has a row of each.
  std::vector<int32_t> blocks = {1, 2, 4, 8, 16};
  /// Of a rank's transfer: what it takes from the memory's rate. A GPU's 400 Gb/s NIC.
  double bytes_per_s = 45e9;
};

/// Medians of the ops of overlap_ops() beside transfers over those alone, never below 1: from the
/// cache, or measured now and kept there, under the key prefix (device_profile_key). Without rows,
/// and a source that says so, where the device does not run transfers beside compute. Throws what
/// profile_op_on_device throws.
OverlapTable overlap_table(const Graph& graph, const OverlapOptions& options, ProfileCache& cache,
                           const std::string& key_prefix, const kernels::DeviceTable& device);

}  // namespace moe
