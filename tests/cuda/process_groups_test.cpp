// How process groups deal with a library that is slow, late, or fails: nccl.cpp against the
// stand-in of host/nccl.h. No bytes are moved and nothing runs on a GPU.
#include <nccl.h>

#include <catch2/catch.hpp>

#include "kernels/cuda/collectives/process_groups.h"
#include "kernels/cuda/errors.h"

using Catch::Matchers::Contains;
using moe::kernels::Message;
using moe::kernels::ProcessGroup;

namespace {

using Calls = std::vector<std::string>;
constexpr char kId[128] = {};
constexpr int kNever = -1;
constexpr double kTimeoutS = 1;    // of calls that never end
constexpr double kPatienceS = 60;  // of calls that end: a busy machine may take seconds

const moe::kernels::ProcessGroupTable& table() {
  return *moe::kernels::cuda::process_groups();
}

/// A library whose calls end after so many polls; nothing is left of the last test's.
void begin(int polls, ncclResult_t outcome = ncclSuccess) {
  emulation::nccl = {};
  emulation::nccl.polls = polls;
  emulation::nccl.outcome = outcome;
}
/// What follows ends so.
void from_now_on(int polls, ncclResult_t outcome = ncclSuccess) {
  emulation::nccl.calls.clear();
  emulation::nccl.polls = polls;
  emulation::nccl.outcome = outcome;
}
void check_clean() {
  CHECK(emulation::nccl.misuse == Calls{});
  CHECK(emulation::nccl.alive.empty());
  CHECK(moe::kernels::cuda::take_error() == "");
}

ProcessGroup joined(double timeout_s = kPatienceS) {
  const ProcessGroup process_group = table().join(kId, 1, 4, timeout_s, {});
  REQUIRE(process_group);
  return process_group;
}

}  // namespace

TEST_CASE("a process group waits for each call to settle before the next, and leaves in order") {
  for (const int polls : {0, 1, 5, 1010}) {  // the last: beyond what is polled eagerly
    begin(polls);
    const ProcessGroup process_group = joined();
    table().all_reduce(process_group, nullptr, nullptr, 12, nullptr);
    table().all_reduce(process_group, nullptr, nullptr, 0, nullptr);
    CHECK(std::string(table().trouble(process_group)) == "");
    table().destroy(process_group);
    CHECK(emulation::nccl.calls == Calls{"all_reduce 12", "finalize", "destroy"});
    check_clean();
  }
}

TEST_CASE("an exchange is one group, without empty messages") {
  begin(2);
  const ProcessGroup process_group = joined();
  char byte = 0;
  const std::vector<Message> sends = {{0, &byte, 5}, {2, &byte, 0}, {3, &byte, 6}, {3, &byte, 7}},
                             receives = {{2, &byte, 0}, {1, &byte, 9}};
  table().exchange(process_group, sends.data(), 4, receives.data(), 2, nullptr);
  CHECK(emulation::nccl.calls == Calls{"group", "send 5 to 0", "send 6 to 3", "send 7 to 3",
                                       "receive 9 from 1", "end of group"});
  table().destroy(process_group);
  check_clean();
}

TEST_CASE("joining that never ends is given up in time, and aborted") {
  begin(kNever);
  CHECK(table().join(kId, 1, 4, 0.02, {}) == nullptr);
  CHECK_THAT(moe::kernels::cuda::take_error(),
             Contains("cuda: join as rank 1 of 4: not done after 0.02"));
  CHECK(emulation::nccl.calls == Calls{"abort"});
  check_clean();
}

TEST_CASE("joining that fails later says what the library says") {
  begin(3, ncclRemoteError);
  CHECK(table().join(kId, 0, 2, 1, {}) == nullptr);
  CHECK(moe::kernels::cuda::take_error() ==
        "cuda: join as rank 0 of 2: remote process exited (connection closed by peer)");
  check_clean();
}

TEST_CASE("a call that is never queued puts the process group in trouble, which is asked no more") {
  begin(1);
  const ProcessGroup process_group = joined(kTimeoutS);
  from_now_on(kNever);
  table().all_reduce(process_group, nullptr, nullptr, 3, nullptr);
  CHECK_THAT(table().trouble(process_group), Contains("all_reduce: not done after 1"));
  table().all_reduce(process_group, nullptr, nullptr, 4, nullptr);
  table().exchange(process_group, nullptr, 0, nullptr, 0, nullptr);
  CHECK(table().split(process_group, 0, kTimeoutS) == nullptr);
  CHECK_THAT(moe::kernels::cuda::take_error(),
             Contains("split with color 0: an earlier call failed: all_reduce: not"));
  CHECK(emulation::nccl.calls == Calls{"all_reduce 3"});
  table().destroy(process_group);
  CHECK(emulation::nccl.calls == Calls{"all_reduce 3", "abort"});
  check_clean();
}

TEST_CASE("a failure that comes after the call is seen by who asks for trouble") {
  begin(0);
  const ProcessGroup process_group = joined();
  CHECK(std::string(table().trouble(process_group)) == "");
  (*emulation::nccl.alive.begin())->outcome = ncclRemoteError;
  CHECK(std::string(table().trouble(process_group)) ==
        "remote process exited (connection closed by peer)");
  table().abort(process_group);
  check_clean();
}

TEST_CASE("a process group is split by color, and its parts are process groups of their own") {
  begin(2);
  const ProcessGroup process_group = joined();
  from_now_on(2);
  const ProcessGroup part = table().split(process_group, 7, kPatienceS);
  REQUIRE(part);
  table().all_reduce(part, nullptr, nullptr, 1, nullptr);
  CHECK(emulation::nccl.calls == Calls{"split 7", "all_reduce 1"});
  CHECK(table().split(process_group, -1, kTimeoutS) == nullptr);
  CHECK_THAT(moe::kernels::cuda::take_error(), Contains("color -1: the color must be 0 to"));
  table().destroy(part);
  table().destroy(process_group);
  check_clean();
}

TEST_CASE(
    "a process group and its parts have the channels that were asked for, else the library's "
    "choice") {
  begin(1);
  const ProcessGroup plain = joined();
  const ProcessGroup process_group =
      table().join(kId, 1, 4, kPatienceS, {.channels = 4, .channels_per_net_peer = 2});
  const ProcessGroup part = table().split(process_group, 7, kPatienceS);
  REQUIRE(emulation::nccl.configs.size() == 3);
  const ncclConfig_t& first = emulation::nccl.configs[0];
  CHECK(first.minCTAs == NCCL_CONFIG_UNDEF_INT);
  CHECK(first.maxCTAs == NCCL_CONFIG_UNDEF_INT);
  CHECK(first.nChannelsPerNetPeer == NCCL_CONFIG_UNDEF_INT);
  for (const size_t i : {1, 2}) {
    CHECK(emulation::nccl.configs[i].minCTAs == 4);
    CHECK(emulation::nccl.configs[i].maxCTAs == 4);
    CHECK(emulation::nccl.configs[i].nChannelsPerNetPeer == 2);
  }
  for (const ProcessGroup c : {part, process_group, plain}) table().destroy(c);
  CHECK(table().join(kId, 1, 4, kTimeoutS, {.channels = -1}) == nullptr);
  CHECK_THAT(moe::kernels::cuda::take_error(), Contains("both must be at least 0"));
  check_clean();
}

TEST_CASE("a part that comes too late is ended with the process group that it was split off") {
  begin(1);
  const ProcessGroup process_group = joined(kTimeoutS);
  from_now_on(kNever);
  CHECK(table().split(process_group, 0, kTimeoutS) == nullptr);
  CHECK_THAT(moe::kernels::cuda::take_error(), Contains("split: not done after 1"));
  CHECK_THAT(table().trouble(process_group), Contains("split: not done after 1"));
  from_now_on(0);
  table().abort(process_group);
  CHECK(emulation::nccl.calls == Calls{"abort", "abort"});
  check_clean();
}
