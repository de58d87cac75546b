// The executor of ranks whose memory is on a device. One host thread queues the work of all ranks
// of this process, on one stream per rank and lane, ahead of the device. A step in which the CPU
// computes no op and reads no result is recorded once (a CUDA graph) and replayed. With the CUDA
// plugin's table this is the executor "cuda"; tests pass a table that computes on the CPU. With
// precision f32, all floats are float32; with bf16, the table's kernels of mixed precision store
// activations in bfloat16. A plan or option that the executor cannot run is refused, with a message
// that names it, before anything starts.
#pragma once

#include <memory>
#include <string>

#include "engine/exec/executor.h"
#include "kernels/device.h"

namespace moe {

/// The table must outlive the executor.
std::unique_ptr<Executor> make_device_executor(const kernels::DeviceTable& table);

/// Returns the executor with the table of the CUDA plugin. Its run() throws UserError with
/// cuda_missing() when the plugin or a GPU is missing.
std::unique_ptr<Executor> make_cuda_executor();

/// Returns why this machine cannot run the executor cuda; "" when it can.
std::string cuda_missing();
/// Describes the GPU that is used: "NVIDIA H200, 140 GiB, driver ...". Requires: cuda_missing() is
/// "".
std::string cuda_gpu();

}  // namespace moe
