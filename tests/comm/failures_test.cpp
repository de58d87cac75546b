#include <catch2/catch.hpp>
#include <functional>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "tests/comm/ranks.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

/// One group, the given bytes to and from each of two ranks.
Pieces two(Bytes send_0, Bytes send_1, Bytes receive_0, Bytes receive_1) {
  return {1, {0, send_0}, {send_0, send_1}, {0, receive_0}, {receive_0, receive_1}};
}

TEST_CASE("a rank that never comes is named, with what it does instead") {
  InProcessWorld world(2, 2, {.timeout_s = 0.1});
  const auto errors = run_ranks(2, [&](int64_t r) {
    std::vector<float> x(4);
    if (r == 0) world.comm(0, 1).all_reduce("wgrad", x.data(), x.data(), 4);
    if (r == 1) world.comm(1, 0).barrier("b1.moe.a2a_1");
  });
  // Whichever watchdog came first, rank 1's call carries the story of both.
  CHECK_THAT(errors[1], Contains("rank 1: barrier b1.moe.a2a_1"));
  CHECK_THAT(errors[1], Contains("did not arrive in 0.1 s"));
  CHECK_THAT(errors[1], Contains("all_reduce wgrad"));
}

TEST_CASE("the watchdog lists every missing rank and what it did last") {
  InProcessWorld world(4, 1, {.timeout_s = 0.1});
  const auto errors = run_ranks(4, [&](int64_t r) {
    world.comm(r, 0).barrier("first");
    if (r < 2) world.comm(r, 0).barrier("second");
  });
  const std::string all = errors[0] + "\n" + errors[1];
  CHECK_THAT(all, Contains("barrier second: ranks 2, 3 did not arrive in 0.1 s"));
  CHECK_THAT(all, Contains("rank 2 left barrier first on lane 0"));
  CHECK_THAT(all, Contains("rank 3 left barrier first on lane 0"));
  CHECK(errors[0] != "");
  CHECK(errors[1] != "");
}

TEST_CASE("a rank that has made no call is said to have made none") {
  InProcessWorld world(2, 1, {.timeout_s = 0.02});
  CHECK_THROWS_WITH(world.comm(0, 0).barrier("x"), Contains("rank 1 has made no call yet"));
}

TEST_CASE("abort wakes every waiting member of every lane at once, with the reason") {
  InProcessWorld world(3, 2, {.timeout_s = 60});
  const Nanoseconds start = clock_ns();
  const auto errors = run_ranks(3, [&](int64_t r) {
    if (r == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.abort("rank 2: b3.fc1 made a NaN");
    } else {
      world.comm(r, r).barrier("step 4");
    }
  });
  CHECK(clock_ns() - start < 5'000'000'000);
  CHECK(errors[0] == "rank 0: barrier step 4: stopped: rank 2: b3.fc1 made a NaN");
  CHECK(errors[1] == "rank 1: barrier step 4: stopped: rank 2: b3.fc1 made a NaN");
  CHECK_THROWS_WITH(world.comm(2, 0).barrier("late"), Contains("b3.fc1 made a NaN"));
}

TEST_CASE("pieces that do not match name both ranks and both sizes") {
  InProcessWorld world(2, 1, {});
  std::vector<char> from(100), to(100);
  const auto errors = run_ranks(2, [&](int64_t r) {
    const Pieces mine = r == 0 ? two(8, 24, 8, 16) : two(16, 8, 20, 8);
    world.comm(r, 0).all_to_all("b1.a2a", from.data(), to.data(), mine);
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Contains("all_to_all b1.a2a: rank 0 sends 24 bytes to rank 1, which expects "
                               "20 bytes (group 0 of the pieces)"));
  }
}

/// What both ranks throw when rank 0 reduces 8 elements as "g" and rank 1 does something else.
std::vector<std::string> errors_beside(const std::function<void(Communicator&)>& rank_1) {
  InProcessWorld world(2, 1, {});
  return run_ranks(2, [&](int64_t r) {
    std::vector<float> x(8);
    if (r == 0) world.comm(0, 0).all_reduce("g", x.data(), x.data(), 8);
    if (r == 1) rank_1(world.comm(1, 0));
  });
}

TEST_CASE("members that call different collectives are both named") {
  std::vector<float> x(8);
  std::vector<std::string> errors;
  std::string expected;
  SECTION("another kind") {
    errors = errors_beside([](Communicator& c) { c.barrier("end"); });
    expected = "rank 0 called all_reduce g where rank 1 called barrier end";
  }
  SECTION("another op") {
    errors = errors_beside([&](Communicator& c) { c.all_reduce("h", x.data(), x.data(), 8); });
    expected = "rank 0 called all_reduce g where rank 1 called all_reduce h";
  }
  SECTION("another length") {
    errors = errors_beside([&](Communicator& c) { c.all_reduce("g", x.data(), x.data(), 7); });
    expected = "all_reduce g: rank 0 has elements 8, rank 1 has 7";
  }
  REQUIRE(errors.size() == 2);
  for (const std::string& error : errors) CHECK_THAT(error, Contains(expected));
}

}  // namespace
}  // namespace moe
