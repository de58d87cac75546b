// Pointers of the host's arrays in device memory, as calls for many matrices want them.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// to[i] = pointers[i]; `to` is on the device. The values travel with the launch: the vector may go
/// at once, and a replay writes what was there when it was recorded.
void store_pointers(const void** to, const std::vector<const void*>& pointers, Stream stream);

}  // namespace moe::kernels::cuda
