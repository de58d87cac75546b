#define CATCH_CONFIG_RUNNER
#include "tests/session.h"

#include <catch2/catch.hpp>

int moe::test::run_cases(int argc, char** argv) {
  return Catch::Session().run(argc, argv);
}
