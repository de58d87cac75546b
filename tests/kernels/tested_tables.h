// The tables of kernels that a program tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace moe::test {

/// What a program tests. Kernels see the host's arrays and are synchronous.
struct TestedTables {
  std::vector<const kernels::KernelTable<float>*> floats;
  std::vector<const kernels::KernelTable<kernels::Bf16>*> mixed;
  /// What runs from now on is run number `run`; see begin_run() of tests/cuda/on_device.h.
  std::function<void(uint64_t run)> begin_run = [](uint64_t) {};
  uint64_t runs = 2;
  /// The first failure since the last call, or "".
  std::function<std::string()> error = [] { return std::string(); };
};
/// Each program defines it.
const TestedTables& tested_tables();

}  // namespace moe::test
