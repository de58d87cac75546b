// What test_kernels tests of the cases in conformance_test.cpp: the fast tables of this machine,
// and the test double with activations in bfloat16.
#include "tests/kernels/tested_tables.h"

#include "tests/mixed/mixed_reference.h"

const moe::test::TestedTables& moe::test::tested_tables() {
  static const TestedTables tables = {.floats = kernels::runnable_tables(),
                                      .mixed = {&mixed_reference()}};
  return tables;
}
