#include "kernels/cpu/adamw.h"

#include <cmath>

namespace moe::kernels {

AdamwFactors adamw_factors(const AdamwRates& rates, int64_t t) {
  const auto power = static_cast<double>(t);
  return {.keep = 1 - rates.lr * rates.weight_decay,
          .rate = rates.lr / (1 - std::pow(rates.beta1, power)),
          .root = 1 / std::sqrt(1 - std::pow(rates.beta2, power))};
}

}  // namespace moe::kernels
