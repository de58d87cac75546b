// Reserves the work space of OpenBLAS before ranks call it. OpenBLAS takes 128 MiB of address space
// at a thread's first product and, if there is not enough, tries again forever instead of failing.
#pragma once

#include <cstdint>

namespace moe::kernels {

/// Makes OpenBLAS keep buffers for `num_threads` threads that call it. From 49 on (from one more
/// than there are cores, from 129) those that find no free buffer wait for one. Returns false if
/// there is not enough address space. Requires: no other thread calls OpenBLAS during the call.
bool reserve_blas_buffers(int64_t num_threads);

}  // namespace moe::kernels
