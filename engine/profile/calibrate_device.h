// Options with which calibrate() measures ranks on GPUs: either all ranks on one GPU, where
// collectives copy bytes in its memory, or one rank per process, where NCCL transfers the bytes.
// The calibration itself is in calibrate.h.
#pragma once

#include "engine/comm/job/processes.h"
#include "engine/profile/calibrate.h"
#include "kernels/device.h"

namespace moe {

/// Returns `options` changed to measure on the calling thread's device instead of the CPU
/// (profile_op_on_device). All num_ranks ranks are on this device: compute ops run on all ranks at
/// the same time, and collectives copy bytes between the ranks' buffers. Also sets `overlap` to
/// overlap_table(). The dtype must be f32 or bf16. Throws UserError for bf16 on a device without
/// bf16 kernels.
CalibrateOptions calibrated_on(const kernels::DeviceTable& device, CalibrateOptions options);

/// Returns the options for one rank per process. Compute is measured by rank 0 only, with one rank
/// on its device. Collectives are those of NCCL in the plugin, timed by device events from a
/// synchronization of all ranks to the end on the last rank. All processes must calibrate with
/// these options at the same time, and all get the same numbers. `device` must outlive the options.
/// `settings` are for NCCL's communicator. Throws UserError for a plugin without NCCL, RunError if
/// ranks cannot join or a rank fails.
CalibrateOptions calibrated_among(Processes& processes, const kernels::DeviceTable& device,
                                  CalibrateOptions options,
                                  const kernels::ProcessGroupSettings& settings = {});

/// CalibrateOptions::hidden for GPUs. With smaller sizes, ops consist almost only of start-up time.
extern const std::vector<int64_t> kGpuHidden;

/// Returns calibrated_on() for GPU 0 or, with a job, calibrated_among(), where the processes of a
/// machine use its GPUs round-robin. Throws UserError if CUDA cannot be used.
CalibrateOptions calibrated_on_gpu(CalibrateOptions options, Processes* job);

}  // namespace moe
