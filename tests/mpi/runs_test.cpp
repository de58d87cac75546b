// Whole runs of one rank per process: the same bits as ranks that are threads, or a clear end.
#include "tests/mpi/job.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("the reference model in two and four processes has the bits of ranks in one") {
  ends_well(2, "reference");
  ends_well(4, "reference");
}

TEST_CASE("groups, placements, real rows, two comm lanes, inference and traces do so too") {
  ends_well(4, "kinds");
}

TEST_CASE("ranks on devices of several processes have the bits of CPU ranks in one") {
  ends_well(2, "device");
  ends_well(4, "device");
  ends_well(4, "calibrate_device");
}

TEST_CASE("lanes that choose while the step runs do so on rank 0, for all, with the same bits") {
  ends_well(2, "turns");
  ends_well(4, "turns");
}

TEST_CASE("devices of several processes take the turns that rank 0 chose") {
  ends_well(2, "device_turns");
  ends_well(4, "device_turns");
}

TEST_CASE("on devices of several processes a lane that chooses stands beside no other network") {
  ends_badly(2, "device_other_lane", "transfers must begin in the same order in all 2 processes");
}

TEST_CASE("a policy that fails ends all processes with rank 0's lane, stage and op") {
  ends_badly(2, "turns_fail", "rank 0, step 0, op b1.moe.a2a_1: policy 'x': too slow");
}

TEST_CASE("a rank that does not post a transfer is named, rank 0 with what it waits for") {
  ends_badly(2, "turns_never_posted",
             "rank 0, step 2, op b1.moe.a2a_1: rank 1 did not post this op within 0.7 s");
  ends_badly(
      4, "turns_leader_never_posts",
      "rank 0, step 2, op b1.moe.a2a_1: rank 0 did not post this op within 0.7 s; rank 0 waits for "
      "b1.moe.dispatch");
  ends_badly(2, "device_never_posts",
             "rank 0, step 1, op b1.moe.a2a_1: rank 1 did not post this op within 0.7 s");
}

TEST_CASE("a process that is killed or stands still ends others that wait for turns") {
  ends_badly(4, "turns_stopped", "rank 1 has been silent for ");
  const JobEnd end = run_case(4, "turns_killed");
  INFO(end.text);
  CHECK(end.status != 0);
  CHECK_THAT(end.text, Contains("rank 1"));
}

TEST_CASE("checkpoints of several processes are those of one") {
  ends_well(2, "checkpoints");
}

TEST_CASE("rank 0 stops all processes after the same step") {
  ends_well(4, "stops_together");
}

TEST_CASE("a process with another plan is named before anything runs") {
  ends_badly(4, "other_plan", "rank 1 has the plan with hash ");
}

TEST_CASE("another number of ranks than of processes is refused with both") {
  ends_badly(
      2, "other_number",
      "ranks: the plan has 4 ranks, but 2 processes of one rank each were started; start one "
      "process per rank: mpirun -n 4");
}

TEST_CASE("the emulated link is refused among processes") {
  ends_badly(2, "with_link", "works within one process only, but 2 processes were started");
}

TEST_CASE("a number that is not finite on one rank ends all, with the rank and the op") {
  ends_badly(2, "not_finite", "rank 1, step 0, op ");
}

TEST_CASE("a process that stands still in a step is named by the ranks that wait for it") {
  ends_badly(4, "stopped_in_step", "rank 1 has been silent for ");
}

}  // namespace
}  // namespace moe::test
