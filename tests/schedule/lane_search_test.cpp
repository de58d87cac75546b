// Orders of tasks on lanes: the search against all orders of small problems.
#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "engine/base/errors.h"
#include "engine/schedule/lane_search.h"

namespace moe {
namespace {

/// Tasks of two lanes, each of which needs up to two of those before it.
std::vector<LaneTask> drawn(std::mt19937& random, int32_t n) {
  std::vector<LaneTask> tasks;
  for (int32_t i = 0; i < n; ++i) {
    LaneTask task{.lane = static_cast<int32_t>(random() % 2),
                  .time = static_cast<double>(random() % 9),
                  .after = random() % 4 == 0 ? static_cast<double>(random() % 20) : 0};
    for (int k = 0; k < 2 && i > 0; ++k) {
      const auto need = static_cast<int32_t>(random() % static_cast<uint32_t>(i));
      if (random() % 2 == 0 &&
          std::find(task.needs.begin(), task.needs.end(), need) == task.needs.end()) {
        task.needs.push_back(need);
      }
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

/// The length of the shortest of all orders.
double shortest(const std::vector<LaneTask>& tasks) {
  TaskOrders orders(2);
  for (size_t i = 0; i < tasks.size(); ++i) {
    orders[static_cast<size_t>(tasks[i].lane)].push_back(static_cast<int32_t>(i));
  }
  double best = std::numeric_limits<double>::infinity();
  do {
    do {
      try {
        best = std::min(best, times_in(tasks, orders).length);
      } catch (const UserError&) {  // the orders contradict the needs
      }
    } while (std::next_permutation(orders[1].begin(), orders[1].end()));
  } while (std::next_permutation(orders[0].begin(), orders[0].end()));
  return best;
}

}  // namespace

TEST_CASE("the search for orders of tasks finds the shortest of small problems") {
  std::mt19937 random(20261130);
  for (int i = 0; i < 300; ++i) {
    const std::vector<LaneTask> tasks = drawn(random, 2 + i % 7);
    const TaskOrders found = shortest_orders(tasks);
    CAPTURE(i, tasks.size());
    CHECK(times_in(tasks, found).length == shortest(tasks));
  }
}

TEST_CASE("tasks that wait for each other in a circle are refused") {
  std::vector<LaneTask> tasks(2);
  tasks[0].needs = {1};
  CHECK_THROWS_AS(times_in(tasks, {{0, 1}}), UserError);
  tasks[1].needs = {0};
  CHECK_THROWS_AS(shortest_orders(tasks), UserError);
}

}  // namespace moe
