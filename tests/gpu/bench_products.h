// Benches of experts' products, of bench_gpu.
#pragma once

#include "tests/gpu/bench.h"

namespace moe::test {

/// 8 experts with 2048 rows each, and with as many in all but unequal and one of them empty, at
/// three sizes, in every way.
void experts_in_all_ways(Bench& bench);

}  // namespace moe::test
