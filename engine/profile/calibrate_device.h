// What calibrate() measures where the ranks are on a GPU: all of them on one, which copies between
// them, or one per process, between which NCCL carries the bytes.
#pragma once

#include "engine/comm/job/processes.h"
#include "engine/profile/calibrate.h"
#include "kernels/device.h"

namespace moe {

/// The options with times of the calling thread's device (profile_op_on_device) for those of CPU
/// ranks: of compute by as many ranks on it as are calibrated, of collectives its copies between
/// them, and of compute beside transfers (overlap_table). Their dtype is f32 or bf16. Throws
/// UserError for bf16 on a device without kernels of it.
CalibrateOptions calibrated_on(const kernels::DeviceTable& device, CalibrateOptions options);

/// The same for one rank per process: compute of one rank on its device, as rank 0 measures it, and
/// collectives of the plugin's library, each from a meeting of all ranks to its end on the last of
/// them, by events. All processes calibrate with what this returns at the same time, and all get
/// the same numbers. The table outlives them. settings: of the library's communicator. Throws
/// UserError for a plugin without such a library, RunError where ranks cannot join or one of them
/// fails.
CalibrateOptions calibrated_among(Processes& processes, const kernels::DeviceTable& device,
                                  CalibrateOptions options,
                                  const kernels::ProcessGroupSettings& settings = {});

/// For the sizes whose ops are measured on a GPU: smaller ones are all start-up.
extern const std::vector<int64_t> kGpuHidden;

/// calibrated_on() or, in a job, calibrated_among() on this machine's GPUs, which its processes
/// take in turn. Throws UserError where there is none.
CalibrateOptions calibrated_on_gpu(CalibrateOptions options, Processes* job);

}  // namespace moe
