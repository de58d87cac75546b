// Errors of launches. Since the functions of the kernel table return nothing, the first failure of
// each host thread is kept until the caller reads it, after every op. Errors of kernels that
// already run are not here: they are found by the caller's own synchronisation.
#pragma once

#include <string>

namespace moe::kernels::cuda {

/// Keeps `message`, unless an earlier message of this thread has not been read yet.
void keep_error(const std::string& message);
/// Returns the first message of this thread since the last call, or "".
std::string take_error();

}  // namespace moe::kernels::cuda
