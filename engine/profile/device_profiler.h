// Times one op of a graph alone on a device, on one stream per rank of the device at the same time.
// Operands are those of profile_op() in profiler.h: values as in training, and in the caches only
// if they would be in the caches in a step.
//
// A sample is the device time between events around one call. Calls are queued while the device is
// busy, so the time that the host (the CPU) needs to queue them is not part of a sample. This is
// the time of an op in a step that is recorded once and replayed. A step in which the host waits
// for the device cannot be replayed; if the device is faster than the host can queue, such a step
// lasts longer than the samples of its ops.
#pragma once

#include <string>

#include "engine/profile/profiler.h"
#include "kernels/device.h"

namespace moe {

class BackgroundTransfers;  // device_overlap.h

/// Returns at least options.min_samples samples in ns on the calling thread's device, in f32 or,
/// with the bf16 kernels of computing_in() (exec/device/ops.h), in mixed precision; ops that the
/// host runs are in f32. If options.checked, samples include the executor's check for non-finite
/// numbers. Overwritten inputs are restored outside of the samples. A sample is:
/// - for an op that the device runs: the time on rank 0's stream, as described above;
/// - for an op that the host runs: the time by the host's clock for one rank to copy the inputs
///   that are made on the device to the host, run the op, and copy the outputs back;
/// - for a collective: the time from the synchronization of its ranks to the end on rank 0's
///   stream, without a link, with all groups at once; requires that ranks_beside is the number of
///   ranks of the graph;
/// - for an op that moves experts: 0, as in profile_op().
/// `background`: transfers that run during each sample, only for ops that the device runs; there
/// are no samples if the device cannot run the op at the same time as transfers.
/// Throws UserError for an op without a kernel; throws RunError naming the op if the device fails,
/// has not enough memory, or does not finish. Uses a few times 160 MiB of device memory per rank.
Samples profile_op_on_device(const Graph& graph, OpId op, const ProfileOptions& options,
                             const kernels::DeviceTable& device,
                             BackgroundTransfers* background = nullptr);

/// Returns "<device>; <versions>; host <profile_key>", with which the keys of device profiles in
/// the cache begin. The versions include the build of the device's kernels; the host's part
/// includes the build of the code that runs ops on the host.
std::string device_profile_key(const ProfileOptions& options, const kernels::DeviceTable& device);

}  // namespace moe
