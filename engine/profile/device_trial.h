// The operands of one op that is timed on a device (device_profiler.h), in memory of their own:
// TrialOperands for ops that all ranks run on the device, HostTrial for ops that a rank runs on the
// host (the CPU), where operands are copied from and to the device.
//
// ProfileOperands defines the values, and keeps each operand in several buffers so that operands
// are as cold in the caches as in a step. TrialOperands copies the whole storage of a
// ProfileOperands to the device, once per rank. Timing is not here.
#pragma once

#include <string>
#include <vector>

#include "engine/exec/device/buffers.h"
#include "engine/exec/device/handles.h"
#include "engine/profile/operands.h"
#include "engine/profile/profiler.h"
#include "engine/routing/gate.h"
#include "kernels/device.h"

namespace moe {

/// Records the event on the stream and waits on the host until it is over. Throws RunError naming
/// `what` if the device fails or does not finish within a minute.
void wait_for(const kernels::DeviceTable& device, kernels::Event event, kernels::Stream stream,
              const std::string& what);

/// Whether the host runs the op: gates run on the host unless the device routes
/// (exec/device/ops.h).
bool works_on_host(const Graph& graph, OpId op);

/// The operands of all ranks, for an op that is queued on the device.
class TrialOperands {
 public:
  /// Throws RunError if the device has not enough memory.
  TrialOperands(const Graph& graph, OpId op, const WorkContext& work, int64_t num_ranks,
                const kernels::DeviceTable& device);

  /// Queues the copies that bring the values to the device. To be called before all calls of the
  /// op, which must begin after these copies.
  void fill(kernels::Stream stream);
  /// Switches inputs(), outputs() and at() to the operands of the next call.
  void advance();
  /// Pointers to device memory, except for inputs that the host reads to launch the op.
  std::span<void* const> inputs(size_t rank) const { return inputs_[rank]; }
  std::span<void* const> outputs(size_t rank) const { return outputs_[rank]; }
  /// Returns the pointer of an input or output of the op; null for an invalid id.
  void* at(size_t rank, TensorId tensor) const;
  /// Queues copies that restore the overwritten inputs; to be called after the call of the op.
  void put_back(size_t rank, kernels::Stream stream) const;

 private:
  struct Overwritten {
    size_t input;
    DeviceStorage pristine;
  };
  std::byte* on_device(size_t rank, const void* host) const;

  const Op& op_;
  const kernels::DeviceTable& device_;
  ProfileOperands host_;
  std::vector<bool> stays_on_host_;  // indexed by input
  std::vector<DeviceStorage> ranks_;
  std::vector<Overwritten> overwritten_;
  std::vector<std::vector<void*>> inputs_, outputs_;  // indexed by rank
};

/// One rank's calls of an op that the host runs, as the executor calls it.
class HostTrial {
 public:
  HostTrial(const Graph& graph, OpId op, const ProfileOptions& options,
            const kernels::DeviceTable& device);
  /// Calls the op once. Returns its time, with the copies from and to the device.
  Nanoseconds call();

 private:
  struct Place {
    Bytes offset = 0, bytes = 0;
  };
  Bytes lay_out();
  void copy(const std::vector<Place>& places, std::byte* to, const std::byte* from);

  const Graph& graph_;
  const OpId id_;
  const Op& op_;
  const std::string what_;  // "op NAME", for errors
  const kernels::DeviceTable& device_;
  ProfileOperands operands_;
  // Places of inputs, outputs, operands copied to the host, operands copied to the device.
  std::vector<Place> in_, out_, fetched_, pushed_;
  std::vector<std::pair<const float*, int64_t>> looks_;
  DeviceStorage host_, on_device_;
  std::vector<void*> inputs_, outputs_;
  Gate gate_;
  DeviceStream stream_;
  DeviceEvent over_;
};

}  // namespace moe
