#include "tests/mpi/job.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE(
    "processes exchange and sum to the bits of ranks in one process, on three lanes at once") {
  ends_well(2, "same_bits");
  ends_well(4, "same_bits");
}

TEST_CASE("pieces of uneven and no size, and more than 64 MB both ways at once, arrive") {
  ends_well(3, "large");
}

TEST_CASE("texts of any length go from rank 0 to all and back, and in a job of one process") {
  ends_well(1, "texts");
  ends_well(3, "texts");
}

TEST_CASE("control messages come in the order in which each process sent them") {
  ends_well(3, "messages");
}

TEST_CASE("messages find the distance of two clocks") {
  ends_well(2, "clock");
}

TEST_CASE("a collective among processes begins when its last member posts") {
  ends_well(3, "begins");
}

TEST_CASE("a process that never comes is named") {
  ends_badly(3, "never_comes", "barrier second: rank 1 did not arrive in 0.3 s");
}

TEST_CASE("processes that call different collectives are both named") {
  ends_badly(3, "other_call", "rank 0 called all_reduce g where rank 1 called all_reduce h");
  ends_badly(2, "other_script",
             "rank 0 called broadcast plan 1 where rank 1 called broadcast write results.json");
}

TEST_CASE("pieces of processes that do not match name both ranks and both sizes") {
  ends_badly(2, "other_size",
             "all_to_all b1.a2a: rank 0 sends 24 bytes to rank 1, which expects 20");
}

TEST_CASE("what fails in one process ends the calls of all, with its reason") {
  ends_badly(3, "failed_elsewhere", "rank 0: barrier step 4: stopped: rank 1: b3.fc1 made a NaN");
}

TEST_CASE("a process that stands still is named") {
  ends_badly(3, "stopped", "rank 1 has been silent for ");
}

TEST_CASE("a process that is killed ends the others, also rank 0") {
  for (const auto& [name, rank] : {std::pair("killed", "rank 1"), {"leader_killed", "rank 0"}}) {
    const JobEnd end = run_case(3, name);
    INFO(end.text);
    CHECK(end.status != 0);
    CHECK_THAT(end.text, Contains(rank));
    CHECK(end.seconds < 10);
  }
}

}  // namespace
}  // namespace moe::test
