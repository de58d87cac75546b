// Times one op of a graph alone on a device, on as many streams side by side as there are ranks on
// it, with the operands of profiler.h's profile_op: training-like values, and each operand as far
// away in the caches as its last use lies back in a step.
//
// A sample is the time on the device between events around one call, queued while the device is
// kept busy, so that what the host takes to queue it is no part of it: what an op takes in a step
// that is replayed. A step whose host waits for the device cannot be replayed; where the device is
// faster than its host queues, such a step lasts longer than its ops' samples say.
#pragma once

#include <string>
#include <vector>

#include "engine/profile/profiler.h"
#include "kernels/device.h"

namespace moe {

class BackgroundTransfers;  // device_overlap.h

/// Samples in ns on the calling thread's device, f32, at least min_samples, with the executor's
/// look for numbers that are not finite; what a call wrote over is put back outside of its sample.
/// - An op of the device: as above, on rank 0's stream.
/// - An op whose work is on the host: what its rank waits by the host's clock, alone: copies from
///   the device of what was made there, the glue, copies back.
/// - A collective: from the meeting of its ranks to the end on rank 0's stream, without a link, all
///   groups at once. Requires: ranks_beside is the graph's ranks.
/// - Experts that travel: 0, as profile_op.
/// background: transfers that are under way around each sample, of an op of the device; no samples
/// where the device does not run them beside the op.
/// Throws UserError for an op without a kernel, RunError naming the op where the device fails, has
/// no room, or does not come to an end. Holds a few times 160 MiB of the device per rank meanwhile.
std::vector<Nanoseconds> profile_op_on_device(const Graph& graph, OpId op,
                                              const ProfileOptions& options,
                                              const kernels::DeviceTable& device,
                                              BackgroundTransfers* background = nullptr);

/// "<device>; <versions>; host <profile_key>": what a profile's key begins with. The versions name
/// the build of the device's kernels, the host's part that of the ops' glue.
std::string device_profile_key(const ProfileOptions& options, const kernels::DeviceTable& device);

}  // namespace moe
