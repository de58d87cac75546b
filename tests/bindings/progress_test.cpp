#include <catch2/catch.hpp>

#include "bindings/host/progress.h"

using namespace moe::lua;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

TEST_CASE("a status says how long what runs and what follows take, as far as it is known") {
  Status status{.what = "a", .begin_ns = kSecond};
  CHECK(status_text(status, 5 * kSecond) == "a");
  status.expected_s = 10;
  CHECK(status_text(status, 5 * kSecond) == "a, 6 s left of this one");
  status.rest_s = 60;
  CHECK(status_text(status, 5 * kSecond) == "a, 1 min 6 s left");
  CHECK(status_text(status, 50 * kSecond) == "a, 1 min 0 s left");  // late: at least the rest
  status.rest_s = 7200;
  CHECK(status_text(status, 5 * kSecond) == "a, 2 h 0 min left");
}

TEST_CASE("of steps the first one, with its preparations, does not count") {
  Status status{.what = "a",
                .rest_s = 0,
                .step = 1,
                .num_steps = 5,
                .first_step_ns = 100 * kSecond,
                .last_step_ns = 100 * kSecond};
  CHECK(status_text(status, 101 * kSecond) == "a, step 1 of 5");
  status.step = 3;
  status.last_step_ns = 104 * kSecond;
  CHECK(status_text(status, 104 * kSecond) == "a, step 3 of 5, 4 s left");
  CHECK(status_text(status, 105 * kSecond) == "a, step 3 of 5, 3 s left");
}
