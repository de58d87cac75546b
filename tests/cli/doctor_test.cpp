// `moebench doctor`: the form of what it says of the machine.
#include <regex>

#include "tests/cli/program.h"

using moe::test::Outcome;
using moe::test::run;

namespace {

/// Returns the text from the line "quiet now" on.
std::string reading_of(const Outcome& doctor) {
  const size_t at = doctor.text.find("\nquiet now ");
  REQUIRE(at != std::string::npos);
  return doctor.text.substr(at + 1);
}

}  // namespace

TEST_CASE("doctor says what this machine can run, then what it read, then one verdict") {
  const Outcome doctor = run("MOEBENCH_CUDA_PLUGIN=/nonexistent.so " MOEBENCH_BINARY " doctor");
  INFO(doctor.text);
  CHECK(doctor.exit == 0);
  CHECK(doctor.text.find("\nexecutors ") != std::string::npos);
  CHECK(doctor.text.find("/nonexistent.so") != std::string::npos);
  const std::string number = "[0-9]+\\.[0-9]+";
  const std::regex form(
      "quiet now +3 s of the reference kernel on each of [0-9]+ cores.*:\n"
      " +core  10% of calls below  median ms  90% of calls below\n"
      "(?: +[0-9]+(?: +" +
      number +
      "){3}\n)+"
      " +change from the first to the last third [+-]" +
      number +
      "%\n"
      " +of the cores' time other processes used " +
      number + "%, the hypervisor took " + number +
      "%\n"
      " +a sleeping thread wakes " +
      number + " ms late \\(median\\), " + number +
      " ms \\(95th percentile\\)\n"
      "verdict +(?:quiet enough to time|not quiet enough to time: .+)\n");
  CHECK(std::regex_match(reading_of(doctor), form));
}
