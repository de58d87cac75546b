// Collectives between ranks whose memory is on devices. A call queues work on the members' streams
// and returns; nothing waits on the host. Two kinds: all ranks in this process on one device, whose
// streams copy from each other, also at the pace of an emulated link; and one rank per process, by
// the plugin's library (NCCL).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/comm/job/processes.h"
#include "engine/exec/collective_layout.h"
#include "engine/exec/device/program.h"
#include "engine/timeline/timeline.h"
#include "kernels/device.h"

namespace moe {

/// A rank of this process in a collective: an exchange of pieces, or a sum.
struct DeviceMember {
  int64_t rank = 0;                  // among all
  kernels::Stream stream = nullptr;  // of the lane
  Group group;
  // Of an exchange; offsets of the pieces are from these.
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  const Pieces* pieces = nullptr;
  // Of a sum.
  const CollectiveLayout<float>* summed = nullptr;
  ElementRange range = {};
  void* scratch = nullptr;  // of the lane
};

/// One chunk of one collective op.
struct DeviceTransfer {
  std::string what;  // the op, in errors
  LaneId lane;
  std::span<const DeviceMember> members;  // all ranks of this process, ascending
  bool sums() const { return members[0].summed != nullptr; }
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  /// The members' streams go on when all of their group that are in this process have come.
  virtual void meet(const DeviceTransfer& transfer) = 0;
  /// After meet(). The members' streams go on when their results are there and nobody reads what
  /// they sent. Throws RunError naming both ranks and sizes where pieces do not match.
  virtual void move(const DeviceTransfer& transfer) = 0;
  /// A step begins soon; the stream was just given what it begins with.
  virtual void expect_step() {}
  virtual void begin_step(kernels::Stream) {}
  /// What the link carried since the last step began, where transfers share it.
  virtual std::vector<LinkSpan> take_links() { return {}; }
  /// Throws RunError where the library, or the thread of the emulated link, reports trouble.
  virtual void check() = 0;
  /// Ends what is under way.
  virtual void abort() noexcept = 0;
};

/// The emulated link of ranks on a device.
struct DeviceLink {
  const Cluster* cluster = nullptr;  // null: copies go as fast as they do
  int32_t blocks = 0;                // of the device, that a transfer takes
  /// Transfers of several lanes may meet, and share the link as those of CPU ranks do; the host
  /// drives them (emulated_link_thread.h), so they cannot be recorded. Otherwise each lasts as long
  /// as its closed form says (network/closed_form.h).
  bool shared = false;
};

/// N ranks of this process. Sums run in rank order for each element: the bits of InProcessWorld.
/// The table and the cluster outlive it.
std::unique_ptr<DeviceCommunicator> device_ranks(const kernels::DeviceTable& device,
                                                 int64_t num_ranks, int64_t num_lanes,
                                                 const DeviceLink& link);

/// One rank per process; the order of sums is the library's. Collective. Throws RunError where the
/// library cannot connect all ranks within the timeout.
std::unique_ptr<DeviceCommunicator> device_process_groups(
    const kernels::DeviceTable& device, Processes& processes, const Plan& plan, double timeout_s,
    const kernels::ProcessGroupSettings& settings);

}  // namespace moe
