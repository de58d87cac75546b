#include "engine/schedule/lane_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr size_t kBeam = 64;  // partial orders that are kept

size_t at(int32_t i) {
  return static_cast<size_t>(i);
}

size_t num_lanes(const std::vector<LaneTask>& tasks) {
  int32_t last = 0;
  for (const LaneTask& task : tasks) last = std::max(last, task.lane);
  return at(last) + 1;
}

/// Returns the tasks so that each comes after what it needs.
std::vector<int32_t> in_order_of_needs(const std::vector<std::vector<int32_t>>& needs) {
  std::vector<std::vector<int32_t>> readers(needs.size());
  std::vector<size_t> waits(needs.size());
  std::vector<int32_t> order;
  for (size_t i = 0; i < needs.size(); ++i) {
    waits[i] = needs[i].size();
    for (const int32_t n : needs[i]) readers[at(n)].push_back(static_cast<int32_t>(i));
    if (needs[i].empty()) order.push_back(static_cast<int32_t>(i));
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (const int32_t r : readers[at(order[next])]) {
      if (--waits[at(r)] == 0) order.push_back(r);
    }
  }
  if (order.size() < needs.size()) {
    const auto stuck = std::find_if(waits.begin(), waits.end(), [](size_t w) { return w > 0; });
    throw user_error("tasks wait for each other in a circle, task {} (from 1) among them",
                     stuck - waits.begin() + 1);
  }
  return order;
}

/// A partial order: the tasks that have run, and when they ended.
struct Partial {
  std::vector<double> ends;        // by task; negative: has not run
  std::vector<double> free;        // by lane: when its last task ended
  std::vector<double> left;        // by lane: the time of its tasks that have not run
  double bound = 0;                // no completion is shorter
  double begins = 0;               // sum of the begins of tasks, which decides among equal bounds
  int32_t before = -1, task = -1;  // index in the history, and what was added to it
};

class BeamSearch {
 public:
  explicit BeamSearch(const std::vector<LaneTask>& tasks)
      : tasks_(tasks), tails_(tasks.size()), lanes_(num_lanes(tasks)) {
    std::vector<std::vector<int32_t>> needs;
    for (const LaneTask& task : tasks) needs.push_back(task.needs);
    order_ = in_order_of_needs(needs);
    for (size_t i = order_.size(); i-- > 0;) {
      const LaneTask& task = tasks_[at(order_[i])];
      double& tail = tails_[at(order_[i])];
      tail += task.time;
      for (const int32_t n : task.needs) tails_[at(n)] = std::max(tails_[at(n)], tail);
    }
  }

  TaskOrders run() {
    Partial none{std::vector<double>(tasks_.size(), -1), std::vector<double>(lanes_),
                 std::vector<double>(lanes_)};
    for (const LaneTask& task : tasks_) none.left[at(task.lane)] += task.time;
    std::vector<Partial> beam{std::move(none)};
    for (size_t n = 0; n < tasks_.size(); ++n) beam = best_of(next(beam));
    TaskOrders orders(lanes_);
    const Partial& best = beam[0];
    for (std::pair at_step{best.before, best.task}; at_step.second >= 0;
         at_step = history_[at(at_step.first)]) {
      orders[at(tasks_[at(at_step.second)].lane)].push_back(at_step.second);
    }
    for (std::vector<int32_t>& lane : orders) std::reverse(lane.begin(), lane.end());
    return orders;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// Returns when the task can begin; kNever if something that it needs has not run.
  double begin_of(const Partial& partial, int32_t t) const {
    const LaneTask& task = tasks_[at(t)];
    double begin = std::max(task.after, partial.free[at(task.lane)]);
    for (const int32_t n : task.needs) {
      if (partial.ends[at(n)] < 0) return kNever;
      begin = std::max(begin, partial.ends[at(n)]);
    }
    return begin;
  }

  /// Sets the bound: the chains behind tasks that can begin, and what is left on each lane.
  void set_bound(Partial& partial) const {
    std::vector<double> first(lanes_, kNever);  // the first begin of a task of the lane
    std::vector<double> begins(tasks_.size());
    for (const int32_t t : order_) {
      const LaneTask& task = tasks_[at(t)];
      if (partial.ends[at(t)] >= 0) {
        begins[at(t)] = partial.ends[at(t)] - task.time;
        continue;
      }
      double begin = std::max(task.after, partial.free[at(task.lane)]);
      for (const int32_t n : task.needs)
        begin = std::max(begin, begins[at(n)] + tasks_[at(n)].time);
      begins[at(t)] = begin;
      first[at(task.lane)] = std::min(first[at(task.lane)], begin);
      partial.bound = std::max(partial.bound, begin + tails_[at(t)]);
    }
    for (size_t lane = 0; lane < lanes_; ++lane) {
      if (first[lane] < kNever) {
        partial.bound = std::max(partial.bound, first[lane] + partial.left[lane]);
      }
    }
  }

  Partial with(const Partial& partial, int32_t before, int32_t t, double begin) const {
    const LaneTask& task = tasks_[at(t)];
    Partial more = partial;
    more.ends[at(t)] = begin + task.time;
    more.free[at(task.lane)] = begin + task.time;
    more.left[at(task.lane)] -= task.time;
    more.bound = std::max(more.bound, begin + task.time);
    more.begins += begin;
    more.before = before;
    more.task = t;
    set_bound(more);
    return more;
  }

  /// Returns the partial orders with one task more: of the lane on which a task could end first,
  /// each task that could begin before that end.
  std::vector<Partial> next(const std::vector<Partial>& beam) {
    std::vector<Partial> all;
    for (const Partial& partial : beam) {
      const auto before = static_cast<int32_t>(history_.size());
      history_.emplace_back(partial.before, partial.task);
      std::vector<double> begins(tasks_.size(), kNever);
      double end = kNever;
      int32_t lane = 0;
      for (size_t t = 0; t < tasks_.size(); ++t) {
        if (partial.ends[t] >= 0) continue;
        begins[t] = begin_of(partial, static_cast<int32_t>(t));
        if (begins[t] + tasks_[t].time >= end) continue;
        end = begins[t] + tasks_[t].time;
        lane = tasks_[t].lane;
      }
      for (size_t t = 0; t < tasks_.size(); ++t) {
        if (tasks_[t].lane != lane || begins[t] == kNever) continue;
        if (begins[t] >= end && begins[t] + tasks_[t].time > end) continue;
        all.push_back(with(partial, before, static_cast<int32_t>(t), begins[t]));
      }
    }
    return all;
  }

  /// Returns the best ones, of those that have run the same tasks to the same ends one.
  static std::vector<Partial> best_of(std::vector<Partial> all) {
    std::stable_sort(all.begin(), all.end(), [](const Partial& a, const Partial& b) {
      return std::pair(a.bound, a.begins) < std::pair(b.bound, b.begins);
    });
    std::vector<Partial> best;
    std::set<std::vector<double>> seen;
    for (Partial& partial : all) {
      if (best.size() == kBeam) break;
      if (seen.insert(partial.ends).second) best.push_back(std::move(partial));
    }
    return best;
  }

  const std::vector<LaneTask>& tasks_;
  std::vector<double> tails_;  // by task: the longest chain from its begin to the end of all
  const size_t lanes_;
  std::vector<int32_t> order_;
  std::vector<std::pair<int32_t, int32_t>> history_;  // Partial::before and task of those extended
};

}  // namespace

TaskTimes times_in(const std::vector<LaneTask>& tasks, const TaskOrders& orders) {
  std::vector<std::vector<int32_t>> needs;
  for (const LaneTask& task : tasks) needs.push_back(task.needs);
  for (const std::vector<int32_t>& lane : orders) {
    for (size_t i = 1; i < lane.size(); ++i) needs[at(lane[i])].push_back(lane[i - 1]);
  }
  TaskTimes times{std::vector<double>(tasks.size())};
  for (const int32_t t : in_order_of_needs(needs)) {
    double& begin = times.begins[at(t)];
    begin = tasks[at(t)].after;
    for (const int32_t n : needs[at(t)])
      begin = std::max(begin, times.begins[at(n)] + tasks[at(n)].time);
    times.length = std::max(times.length, begin + tasks[at(t)].time);
  }
  return times;
}

TaskOrders shortest_orders(const std::vector<LaneTask>& tasks) {
  if (tasks.empty()) return {};
  return BeamSearch(tasks).run();
}

}  // namespace moe
