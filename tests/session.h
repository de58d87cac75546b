// Runs the cases of a test program. Catch's own sources are compiled in session.cpp alone.
#pragma once

namespace moe::test {

/// With Catch's options; the status of the program.
int run_cases(int argc, char** argv);

}  // namespace moe::test
