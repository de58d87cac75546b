// Reserves the work space of OpenBLAS before ranks call it. OpenBLAS takes 128 MiB of address space
// at a thread's first product and, if there is not enough, tries again forever instead of failing.
#pragma once

#include <cstdint>

namespace moe::kernels {

/// Makes OpenBLAS keep buffers for `num_threads` concurrent callers. Returns false if there is not
/// enough address space. Requires: no other thread calls OpenBLAS during the call.
bool reserve_blas_buffers(int64_t num_threads);

}  // namespace moe::kernels
