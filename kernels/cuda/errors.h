// Errors of calls and launches. Since the functions of the kernel table return nothing, the first
// failure of each CPU thread is kept until the executor reads it, after every op. Errors of kernels
// that already run are not here: the executor finds them when it waits for the device.
#pragma once

#include <string>

namespace moe::kernels::cuda {

/// Keeps `message`, unless an earlier message of this thread has not been read yet.
void keep_error(const std::string& message);
/// Returns the first message of this thread since the last call, or "".
std::string take_error();

}  // namespace moe::kernels::cuda
