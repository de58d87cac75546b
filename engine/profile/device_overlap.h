// Measures how much longer compute takes on a device while transfers run there. Ops are timed alone
// and during paced memory copies by 1, 2, 4, ... thread blocks, which imitate the kernels of a
// network transfer: these occupy multiprocessors and use memory bandwidth. How the measured factors
// change the time of a step is in cost/overlap.h and sim/, not here.
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

/// Transfers, one per rank, that run on the device while ops are timed there.
class BackgroundTransfers {
 public:
  /// Each transfer uses `blocks` thread blocks and moves `bytes_per_s` bytes per second. Throws
  /// RunError if the device has not enough memory.
  BackgroundTransfers(const kernels::DeviceTable& device, int64_t num_ranks, int32_t blocks,
                      double bytes_per_s);
  /// Queues a transfer per rank that begins when the work recorded in event `go` is over, and that
  /// lasts for `length`.
  void queue(kernels::Event go, Nanoseconds length);
  /// Waits until all transfers are over. Returns whether all of them ran during the whole time from
  /// `begin` to `end`, which must be timed events.
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
  /// Numbers of thread blocks of a rank's transfer; the table has a row for each.
  std::vector<int32_t> blocks = {1, 2, 4, 8, 16};
  /// Rate at which a rank's transfer copies bytes, which it takes from the memory bandwidth. The
  /// default is the rate of one 400 Gb/s NIC per GPU.
  double bytes_per_s = 45e9;
};

/// Returns the slowdowns of the ops of overlap_ops() (cost/overlap.h): the median time during
/// transfers divided by the median time alone, at least 1. Times are read from the cache, or
/// measured now and stored there, under keys that begin with `key_prefix` (device_profile_key). If
/// the device does not run transfers during compute, the table has no rows and its `source` states
/// this. Throws the errors of profile_op_on_device().
OverlapTable overlap_table(const Graph& graph, const OverlapOptions& options, ProfileCache& cache,
                           const std::string& key_prefix, const kernels::DeviceTable& device);

}  // namespace moe
