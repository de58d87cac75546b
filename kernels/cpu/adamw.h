// What one step of AdamW multiplies with; for all CPU tables from one text, compiled for the base
// instruction set: no fused multiply-add of a wider one makes their factors differ.
#pragma once

#include "kernels/kernels.h"

namespace moe::kernels {

struct AdamwFactors {
  double keep;  // 1 - lr * weight decay
  double rate;  // lr / (1 - beta1^t)
  double root;  // 1 / sqrt(1 - beta2^t)
};
/// Of step t = 1, 2, ...
AdamwFactors adamw_factors(const AdamwRates& rates, int64_t t);

}  // namespace moe::kernels
