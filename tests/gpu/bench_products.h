// Benches of experts' products, of bench_gpu.
#pragma once

#include "tests/gpu/bench.h"

namespace moe::test {

/// 8 experts with 2048 rows each, and with as many in all but unequal and one of them empty, at
/// three sizes, in both variants.
void experts_in_both_variants(Bench& bench);

/// A layer of 16384 rows with bias and GELU, and the gradient of its input times GELU's slope, in
/// bfloat16: with what follows the product said to it, and by a kernel of its own.
void products_and_gelu(Bench& bench);

}  // namespace moe::test
