// The factors of one step of AdamW, for all CPU tables. They are computed by one function that is
// compiled for the base instruction set: fused multiply-adds of wider instruction sets would make
// the factors of the tables differ. The update itself is in the tables.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels {

struct AdamwFactors {
  double keep;  // 1 - lr * weight decay
  double rate;  // lr / (1 - beta1^t)
  double root;  // 1 / sqrt(1 - beta2^t)
};
/// Returns the factors of step t = 1, 2, ...
AdamwFactors adamw_factors(const AdamwRates& rates, int64_t t);

}  // namespace moe::kernels
