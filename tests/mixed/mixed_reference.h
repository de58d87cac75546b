// KernelTable<Bf16> on the host, for tests: reads what it is given as doubles, calls the plain
// double reference, and rounds each result once as it is stored. float32 operands of a GEMM are
// rounded to bfloat16 first, as kernels.h says.
#pragma once

#include "kernels/kernels.h"

namespace moe::test {

const kernels::KernelTable<kernels::Bf16>& mixed_reference();

}  // namespace moe::test
