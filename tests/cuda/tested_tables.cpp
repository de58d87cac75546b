// What test_cuda and test_gpu test of the cases in tests/kernels/conformance_test.cpp.
#include "tests/kernels/tested_tables.h"

#include "tests/cuda/on_device.h"

const moe::test::TestedTables& moe::test::tested_tables() {
  static const TestedTables tables = {.floats = {&device_table()},
                                      .mixed = {&device_mixed()},
                                      .begin_run = begin_run,
                                      .runs = kRuns,
                                      .error = device_error};
  return tables;
}
