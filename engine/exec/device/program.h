// What one rank gives to its device: every op of the plan in the order in which the host issues it,
// a stream per lane, with the events that order streams and the copies between host and device that
// its glue needs. The host runs ahead of the device and stops only where it reads what the device
// made (host_waits). Not here: pointers and handles; the executor adds them.
#pragma once

#include <vector>

#include "engine/plan.h"

namespace moe {

/// What the executor decides before.
struct DeviceChoices {
  std::vector<bool> on_host;   // by op: its glue does the work, on the host's copies
  std::vector<TensorId> kept;  // read on the host when the step is over
};

struct DeviceStep {
  OpId op;
  LaneId lane;                       // whose stream it goes to
  std::vector<OpId> stream_waits;    // its stream waits for the events after these ops
  std::vector<OpId> host_waits;      // and the host, before it issues the op, for those of these
  bool marked = false;               // an event is recorded after it
  std::vector<TensorId> host_reads;  // what the glue reads on the host
  std::vector<TensorId> fetch;       // copied to the host after it
  std::vector<TensorId> push;        // of an op on the host: copied to the device after it
};

struct DeviceProgram {
  std::vector<DeviceStep> steps;  // as they are issued
  std::vector<bool> on_host;      // by op
  std::vector<bool> mirrored;     // by tensor: it has a copy on the host
  /// By tensor: parameters that nobody writes and only the host reads, or copies from there, as
  /// Lina's experts in host memory. They take no room on the device.
  std::vector<bool> host_only;
  /// The host never waits within a step, and hands over the same in each: it may be recorded.
  bool recordable = false;
};

/// Ops that make the host wait are issued when nothing else can be, in program order otherwise.
/// With lanes that choose while the step runs this is one order of many, and not recordable.
DeviceProgram device_program(const Plan& plan, const DeviceChoices& choices);

/// Throws RunError naming two ops, their lanes and what orders them unless, by vector clocks over
/// streams and events, every op begins after all that precede it in the plan (data, what is
/// overwritten, order edges, its lane) on any timing, the host reads nothing before it is there,
/// and no event is waited for before it is recorded. Reuse of memory is safe then: the plan proved
/// it from the same edges.
void check_program(const Plan& plan, const DeviceProgram& program);

}  // namespace moe
