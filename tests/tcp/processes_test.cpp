// Collectives and failures of processes that are connected over TCP.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/tcp/job.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

void ends_well(int n, const std::string& name) {
  const JobEnd end = run_case(n, name);
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>(static_cast<size_t>(n), 0));
  CHECK(end.text == "ok\n");
}

/// Rank 0 says why, and none stays behind.
void ends_badly(int n, const std::string& name, const std::string& why) {
  const JobEnd end = run_case(n, name);
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>(static_cast<size_t>(n), 3));
  CHECK_THAT(end.text, Contains("0 threw: ") && Contains(why));
  CHECK(end.seconds < 10);
}

TEST_CASE("processes over TCP exchange and sum to the bits of ranks in one process") {
  ends_well(1, "texts");
  ends_well(2, "same_bits");
  ends_well(4, "same_bits");
}

TEST_CASE("pieces of uneven and no size, and more than 64 MB both ways at once, arrive over TCP") {
  ends_well(3, "large");
}

TEST_CASE("texts of any length go from rank 0 to all and back over TCP") {
  ends_well(3, "texts");
}

TEST_CASE("control messages over TCP come in the order in which each process sent them") {
  ends_well(3, "messages");
}

TEST_CASE("messages over TCP find the distance of two clocks") {
  ends_well(2, "clock");
}

TEST_CASE(
    "groups, placements, real rows, two comm lanes, inference and traces have the bits of one "
    "process") {
  ends_well(4, "kinds");
}

TEST_CASE("lanes that choose over TCP do so on rank 0, for all, with the bits of one process") {
  ends_well(2, "turns");
  ends_well(4, "turns");
}

TEST_CASE("a policy that fails over TCP ends all processes, and so does who does not post") {
  ends_badly(2, "turns_fail", "rank 0, step 0, op b1.moe.a2a_1: policy 'x': too slow");
  ends_badly(4, "turns_never_posted",
             "rank 0, step 2, op b1.moe.a2a_1: rank 1 did not post this op within 0.7 s");
}

TEST_CASE("a process over TCP that is killed ends others that wait for turns") {
  const JobEnd end = run_case(4, "turns_killed");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 128 + SIGKILL, 3, 3});
  CHECK_THAT(end.text, Contains("0 threw: ") && Contains("rank 1 is lost: its connection closed"));
  CHECK(end.seconds < 10);
}

TEST_CASE("calls that do not belong together over TCP are both named") {
  ends_badly(3, "other_call", "rank 0 called all_reduce g where rank 1 called all_reduce h");
}

TEST_CASE("what fails in one process over TCP ends the calls of all, with its reason") {
  ends_badly(3, "failed_elsewhere", "rank 0: barrier step 4: stopped: rank 1: b3.fc1 made a NaN");
}

TEST_CASE("a plan that differs in one process over TCP is named before anything runs") {
  ends_badly(4, "other_plan", "rank 1 has the plan with hash ");
}

TEST_CASE("a process over TCP that is killed is named at once, and ends the others") {
  const JobEnd end = run_case(3, "killed");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 128 + SIGKILL, 3});
  CHECK_THAT(end.text, Contains("0 threw: ") && Contains("rank 1 is lost: its connection closed"));
  CHECK(end.seconds < 3);
}

TEST_CASE("processes over TCP say themselves that rank 0 was killed, and end") {
  const JobEnd end = run_case(3, "leader_killed");
  INFO(end.text);
  CHECK(end.statuses[0] == 128 + SIGKILL);
  CHECK(end.statuses[1] == 3);
  CHECK(end.statuses[2] == 3);
  CHECK_THAT(end.text, Contains(" threw: ") && Contains("rank 0 is lost: its connection closed"));
  CHECK(end.seconds < 10);
}

TEST_CASE("a process over TCP that stands still is named") {
  Job job(3, {MOE_JOB_RANKS, "stopped"});
  job.start_all();
  const JobEnd end = job.wait(1);
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, -1, 3});
  CHECK_THAT(end.text, Contains("0 threw: ") && Contains("rank 1 has been silent for "));
}

}  // namespace
}  // namespace moe::test
