// The order of tasks on lanes: how long given orders take, and a search for the shortest. A lane
// runs one task at a time; a task begins when its lane is free and what it needs has ended. Times
// have no unit.
#pragma once

#include <cstdint>
#include <vector>

namespace moe {

struct LaneTask {
  int32_t lane = 0;  // from 0
  double time = 0;
  double after = 0;            // it begins no earlier
  std::vector<int32_t> needs;  // indices of tasks
};

/// By lane: its tasks in order.
using TaskOrders = std::vector<std::vector<int32_t>>;

struct TaskTimes {
  std::vector<double> begins;  // by task
  double length = 0;           // until the last task has ended
};

/// Returns when tasks begin that run in these orders. Throws UserError if tasks wait for each other
/// in a circle, naming the number of one of them.
TaskTimes times_in(const std::vector<LaneTask>& tasks, const TaskOrders& orders);

/// Returns orders found by a beam search over active schedules (Giffler and Thompson 1960): those
/// in which no task could begin earlier without delaying another. Of the partial orders of equally
/// many tasks it keeps the 64 of the lowest bound: the longest of what is left on a lane and of the
/// chains of needs. Throws as times_in().
TaskOrders shortest_orders(const std::vector<LaneTask>& tasks);

}  // namespace moe
