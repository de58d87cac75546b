// The program of one rank on a device: every op of the plan in the order in which the host (the CPU
// thread that queues the work) issues it to the stream of its lane, with the events that order the
// streams and the transfers between host and device memory that the op's kernel call needs. The
// host runs ahead of the device and waits only where it reads a result of the device (host_waits).
// Not here: pointers and handles; the executor adds them.
#pragma once

#include <vector>

#include "engine/plan.h"

namespace moe {

/// What the executor decides before the program is made.
struct DeviceChoices {
  /// Indexed by op: whether the op runs on the CPU, on the host copies of its tensors.
  std::vector<bool> on_host;
  std::vector<TensorId> kept;  // tensors that the CPU reads after the step
};

struct DeviceStep {
  OpId op;
  LaneId lane;                     // on whose stream the op is queued
  std::vector<OpId> stream_waits;  // before the op, the stream waits for the events of these ops
  std::vector<OpId> host_waits;    // before issuing it, the host waits for the events of these ops
  bool marked = false;             // whether an event is recorded after the op
  std::vector<TensorId> host_reads;  // tensors that the op's kernel call reads in host memory
  std::vector<TensorId> fetch;       // tensors that are copied to host memory after the op
  std::vector<TensorId> push;  // for an op on the CPU: tensors copied to the device after the op
};

struct DeviceProgram {
  std::vector<DeviceStep> steps;  // in the order in which they are issued
  std::vector<bool> on_host;      // indexed by op
  std::vector<bool> mirrored;     // indexed by tensor: has a host copy (DeviceBuffers::host)
  /// Indexed by tensor: parameters that no op writes and that are read only in host memory, such as
  /// the offloaded experts of Lina's inference. They use no memory of the device.
  std::vector<bool> host_only;
  /// Whether a step may be recorded: the host never waits within it, and queues the same work in
  /// every step.
  bool recordable = false;
};

/// Makes the program. Ops that make the host wait are issued only when no other op can be issued;
/// otherwise ops are in program order. When the plan has arbiters, which choose transfers while the
/// step runs, the order is one of several that are possible, and the program is not recordable.
DeviceProgram device_program(const Plan& plan, const DeviceChoices& choices);

/// Proves by vector clocks over streams and events that, with any timing, every op begins after all
/// ops that precede it in the plan (by data, by overwriting, by order edges or by its lane), that
/// the host reads nothing before it is complete, and that no event is waited for before it is
/// recorded. Otherwise throws RunError, which names the ops, and lanes and edge if one may begin
/// too early. Memory reuse is then safe too, because the plan proved it from the same edges.
void check_program(const Plan& plan, const DeviceProgram& program);

}  // namespace moe
