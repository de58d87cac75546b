#include "kernels/cuda/errors.h"

#include <utility>

namespace moe::kernels::cuda {
namespace {

thread_local std::string first_error;

}  // namespace

void keep_error(const std::string& message) {
  if (first_error.empty()) first_error = message;
}

std::string take_error() {
  return std::exchange(first_error, "");
}

}  // namespace moe::kernels::cuda
