// The executor of ranks whose memory is on a device: one thread queues the work of all ranks of
// this process, a stream per rank and lane, and runs ahead of the device; a step that the host has
// no part in is recorded once and replayed. With the CUDA plugin's table it is the executor "cuda";
// a test gives a table that runs on the host. All that is in memory is float32, in bf16 too, where
// the table's kernels of bfloat16 round what matrix products take. What it does not run yet it
// refuses by name before anything starts.
#pragma once

#include <memory>
#include <string>

#include "engine/exec/executor.h"
#include "kernels/device.h"

namespace moe {

/// The table outlives the executor. device: the number of the one to use.
std::unique_ptr<Executor> make_device_executor(const kernels::DeviceTable& table,
                                               int32_t device = 0);

/// With the table of the CUDA plugin. run() throws UserError with cuda_missing().
std::unique_ptr<Executor> make_cuda_executor();

/// What keeps this machine from running it; "" where nothing does.
std::string cuda_missing();
/// The one that is used: "NVIDIA H200, 140 GiB, driver ...". Requires: nothing is missing.
std::string cuda_gpu();

}  // namespace moe
