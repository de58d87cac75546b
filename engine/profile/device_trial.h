// The operands of one op that is timed on a device (device_profiler.h), on memory of its own: of
// ranks side by side on the device, or of a rank that works on the host and copies to and fro.
//
// Values and distances are ProfileOperands'. Its storage, which holds as many copies of an operand
// as lie between two of its uses in a step, has a copy of itself on the device for each rank.
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
/// `what` where the device fails or stands still.
void wait_for(const kernels::DeviceTable& device, kernels::Event event, kernels::Stream stream,
              const std::string& what);

/// The op's work is done on the host: by its glue, unless the device routes it.
bool works_on_host(const Graph& graph, OpId op);

/// By rank, for ops that are queued.
class TrialOperands {
 public:
  /// Throws RunError where the device has no room.
  TrialOperands(const Graph& graph, OpId op, const WorkContext& work, int64_t num_ranks,
                const kernels::DeviceTable& device);

  /// Queues what brings the values to the device. Before all calls, which begin after it.
  void fill(kernels::Stream stream);
  /// The operands of the next call.
  void advance();
  /// On the device, but for what the op's glue reads on the host.
  std::span<void* const> inputs(size_t rank) const { return inputs_[rank]; }
  std::span<void* const> outputs(size_t rank) const { return outputs_[rank]; }
  /// An input or output of the op; null for an invalid id.
  void* at(size_t rank, TensorId tensor) const;
  /// Queues, after the call, what makes overwritten inputs as they were before.
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
  std::vector<bool> stays_on_host_;  // by input
  std::vector<DeviceStorage> ranks_;
  std::vector<Overwritten> overwritten_;
  std::vector<std::vector<void*>> inputs_, outputs_;  // by rank
};

/// One rank's calls of an op that works on the host, as the executor makes them.
class HostTrial {
 public:
  HostTrial(const Graph& graph, OpId op, const ProfileOptions& options,
            const kernels::DeviceTable& device);
  /// What it took, with the copies.
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
  const std::string what_;  // "op NAME", in errors
  const kernels::DeviceTable& device_;
  ProfileOperands operands_;
  std::vector<Place> in_, out_, fetched_, pushed_;  // inputs, outputs; what is copied
  std::vector<std::pair<const float*, int64_t>> looks_;
  DeviceStorage host_, on_device_;
  std::vector<void*> inputs_, outputs_;
  Gate gate_;
  DeviceStream stream_;
  DeviceEvent over_;
};

}  // namespace moe
