// OpenBLAS's work space, which must be there before ranks call it: it takes 128 MiB of address
// space at a thread's first product and, where there is none, tries again without end.
#pragma once

#include <cstdint>

namespace moe::kernels {

/// Makes OpenBLAS hold buffers for so many threads that call it at a time; it keeps them. Returns
/// false where the address space does not suffice.
/// Requires: no other thread calls OpenBLAS meanwhile.
bool reserve_blas_buffers(int64_t num_threads);

}  // namespace moe::kernels
