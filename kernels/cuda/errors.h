// What went wrong in a launch. The table's functions return nothing, so the first failure of each
// host thread is kept until it is read; the caller reads it after every op. Errors of kernels that
// already run are not here: they come from the caller's own synchronisation.
#pragma once

#include <string>

namespace moe::kernels::cuda {

/// Keeps `message` unless an earlier one of this thread has not been read.
void keep_error(const std::string& message);
/// The first failure of this thread since the last call, or "".
std::string take_error();

}  // namespace moe::kernels::cuda
