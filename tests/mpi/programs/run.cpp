#include "tests/mpi/programs/ranks.h"
namespace moe::testing {
Cases run_cases() {
  return {};
}
}  // namespace moe::testing
