// Arrays of pointers in device memory, for library calls on many matrices. The copy is queued on a
// stream and works in recordings.
#pragma once

#include <vector>

#include "kernels/kernels.h"

namespace moe::kernels::cuda {

/// to[i] = pointers[i], where `to` is in device memory. The values are arguments of the launch: the
/// vector may be destroyed at once, and a replay writes the values that were recorded.
void store_pointers(const void** to, const std::vector<const void*>& pointers, Stream stream);

}  // namespace moe::kernels::cuda
