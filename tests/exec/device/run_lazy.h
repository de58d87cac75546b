// A run of the device executor on the lazy device (lazy_device.h), which keeps nothing afterwards.
#pragma once

#include <catch2/catch.hpp>

#include "engine/exec/device/executor.h"
#include "tests/exec/device/lazy_device.h"

namespace moe::test {

inline RunResult run_lazy(const Plan& plan, const RunOptions& options, LazyOrder order,
                          uint64_t seed) {
  lazy_start(order, seed);
  RunResult result = make_device_executor(lazy_device())->run(plan, options);
  CHECK(lazy_stats().handles == 0);
  return result;
}

}  // namespace moe::test
