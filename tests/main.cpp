#include "tests/session.h"

int main(int argc, char** argv) {
  return moe::test::run_cases(argc, argv);
}
