// Collectives between ranks whose memory is on devices. A call queues work on the members' streams
// and returns; the calling CPU thread does not wait. There are two implementations: all ranks in
// this process on one device, where each rank's stream copies from the memory of the other ranks,
// also with the times of an emulated link; and one rank per process, through NCCL in the plugin.
// Collectives of CPU ranks are in engine/comm.
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

/// One rank of this process in a collective, which is an exchange of pieces or a sum.
struct DeviceMember {
  int64_t rank = 0;                  // its number among all ranks
  kernels::Stream stream = nullptr;  // the lane's stream
  Group group;
  // For an exchange; the offsets of the pieces are relative to send and receive.
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  const Pieces* pieces = nullptr;
  // For a sum.
  const CollectiveLayout<float>* summed = nullptr;
  ElementRange range = {};
  void* scratch = nullptr;  // the lane's scratch area
};

/// One chunk of one collective op.
struct DeviceTransfer {
  std::string what;  // name of the op, for errors
  LaneId lane;
  std::span<const DeviceMember> members;  // all ranks of this process, ascending
  bool sums() const { return members[0].summed != nullptr; }
};

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  /// Lets each member's stream wait until all members of its group in this process have reached
  /// this call.
  virtual void meet(const DeviceTransfer& transfer) = 0;
  /// Transfers the data; called after meet(). Each member's stream continues when its results are
  /// complete and no other member still reads what it sent. Throws RunError, which names both ranks
  /// and sizes, when pieces do not match.
  virtual void move(const DeviceTransfer& transfer) = 0;
  /// Called for each step: expect_step() shortly before the step begins; begin_step() when the work
  /// before the step's start has just been queued on the stream.
  virtual void expect_step() {}
  virtual void begin_step(kernels::Stream) {}
  /// Returns what the emulated link carried since the last step began, if DeviceLink::shared; else
  /// nothing.
  virtual std::vector<LinkSpan> take_links() { return {}; }
  /// Throws RunError when NCCL, or the thread of the emulated link, has failed.
  virtual void check() = 0;
  /// Ends all transfers in progress.
  virtual void abort() noexcept = 0;
};

/// The emulated link of ranks on a device.
struct DeviceLink {
  const Cluster* cluster = nullptr;  // null: no emulation, transfers run at full speed
  int32_t blocks = 0;                // thread blocks per transfer
  /// Whether transfers of several lanes may overlap and share the link, as those of CPU ranks do.
  /// A CPU thread then ends them (emulated_link_thread.h), so the step cannot be recorded.
  /// Otherwise each transfer takes the time of its closed form (network/closed_form.h).
  bool shared = false;
};

/// Returns the communicator of ranks that are all in this process. Each element is summed in rank
/// order, which gives the same bits as InProcessWorld. The table and the cluster must outlive it.
std::unique_ptr<DeviceCommunicator> device_ranks(const kernels::DeviceTable& device,
                                                 int64_t num_ranks, int64_t num_lanes,
                                                 const DeviceLink& link);

/// Returns the communicator of one rank per process; NCCL chooses the order of sums. Collective.
/// Throws RunError when NCCL cannot connect all ranks within the timeout.
std::unique_ptr<DeviceCommunicator> device_process_groups(
    const kernels::DeviceTable& device, Processes& processes, const Plan& plan, double timeout_s,
    const kernels::ProcessGroupSettings& settings);

}  // namespace moe
