#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>

#include "engine/base/stop.h"
#include "engine/passes/order/dw_schedule.h"

namespace moe {
namespace {

/// Depth-first over the dW, longest first; each branch assigns the dW to one all-to-all or none.
class BranchAndBound {
 public:
  BranchAndBound(const OverlapProblem& problem, int64_t most_branches)
      : problem_(problem),
        bound_(overlap_bound(problem)),
        branches_(most_branches),
        left_(problem.a2a_ns),
        order_(problem.dw_ns.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return problem.dw_ns[a] > problem.dw_ns[b]; });
    rest_.assign(order_.size() + 1, 0);
    for (size_t i = order_.size(); i-- > 0;) rest_[i] = rest_[i + 1] + problem.dw_ns[order_[i]];
  }

  std::optional<OverlapAssignment> run() {
    branch(0, 0);
    if (branches_ < 0 && best_.hidden_ns != bound_) return std::nullopt;
    return best_;
  }

 private:
  void branch(size_t depth, Nanoseconds hidden) {
    check_stop();
    if (hidden > best_.hidden_ns) best_ = {picks_, hidden};
    if (depth == order_.size() || best_.hidden_ns == bound_) return;
    if (branches_ < 0 || --branches_ < 0) return;
    const Nanoseconds room = std::accumulate(left_.begin(), left_.end(), Nanoseconds{0});
    if (hidden + std::min(room, rest_[depth]) <= best_.hidden_ns) return;
    const size_t dw = order_[depth];
    for (size_t a = 0; a < left_.size(); ++a) {
      if (!problem_.allowed[a][dw] || left_[a] == 0) continue;
      const Nanoseconds before = left_[a], gain = std::min(before, problem_.dw_ns[dw]);
      left_[a] -= gain;
      picks_.push_back({a, dw, before});
      branch(depth + 1, hidden + gain);
      picks_.pop_back();
      left_[a] = before;
    }
    branch(depth + 1, hidden);
  }

  const OverlapProblem& problem_;
  Nanoseconds bound_;              // of all assignments
  int64_t branches_;               // that may still be taken; below 0 where there were too many
  std::vector<Nanoseconds> left_;  // uncovered time, indexed by all-to-all
  std::vector<size_t> order_;
  std::vector<Nanoseconds> rest_;  // total time of the dW from this depth on
  std::vector<OverlapPick> picks_;
  OverlapAssignment best_;
};

/// Maximum flow source -> dW -> all-to-all -> sink by augmenting paths of fewest edges.
class MinCostFlow {
 public:
  explicit MinCostFlow(const OverlapProblem& problem)
      : problem_(problem),
        num_a2a_(problem.a2a_ns.size()),
        supply_(problem.dw_ns),
        room_(problem.a2a_ns),
        flow_(num_a2a_ * supply_.size()) {}

  Nanoseconds run() {
    Nanoseconds total = 0;
    while (const Nanoseconds more = augment()) total += more;
    return total;
  }

 private:
  Nanoseconds& flow(size_t a, size_t dw) { return flow_[a * supply_.size() + dw]; }

  /// Breadth-first search from every dW that has time left. An edge leads from a dW to an
  /// all-to-all under which it may hide, or from an all-to-all back to a dW that covers a part of
  /// it. Returns the flow that was added, 0 when there is no augmenting path.
  Nanoseconds augment() {
    constexpr int64_t kUnseen = -2, kSource = -1;
    std::vector<int64_t> from_a2a(supply_.size(), kUnseen), from_dw(num_a2a_, kUnseen);
    std::vector<size_t> queue;
    for (size_t dw = 0; dw < supply_.size(); ++dw) {
      if (supply_[dw] == 0) continue;
      from_a2a[dw] = kSource;
      queue.push_back(dw);
    }
    for (size_t head = 0; head < queue.size(); ++head) {
      const size_t dw = queue[head];
      for (size_t a = 0; a < num_a2a_; ++a) {
        if (!problem_.allowed[a][dw] || from_dw[a] != kUnseen) continue;
        from_dw[a] = static_cast<int64_t>(dw);
        if (room_[a] > 0) return push(a, from_a2a, from_dw);
        for (size_t other = 0; other < supply_.size(); ++other) {
          if (flow(a, other) == 0 || from_a2a[other] != kUnseen) continue;
          from_a2a[other] = static_cast<int64_t>(a);
          queue.push_back(other);
        }
      }
    }
    return 0;
  }

  Nanoseconds push(size_t last, const std::vector<int64_t>& from_a2a,
                   const std::vector<int64_t>& from_dw) {
    Nanoseconds amount = room_[last];
    std::vector<std::pair<size_t, size_t>> forward, back;  // (all-to-all, dW)
    size_t dw = 0;
    for (size_t a = last;;) {
      dw = static_cast<size_t>(from_dw[a]);
      forward.emplace_back(a, dw);
      if (from_a2a[dw] < 0) break;
      a = static_cast<size_t>(from_a2a[dw]);
      back.emplace_back(a, dw);
      amount = std::min(amount, flow(a, dw));
    }
    amount = std::min(amount, supply_[dw]);
    for (const auto& [a, d] : forward) flow(a, d) += amount;
    for (const auto& [a, d] : back) flow(a, d) -= amount;
    room_[last] -= amount;
    supply_[dw] -= amount;
    return amount;
  }

  const OverlapProblem& problem_;
  size_t num_a2a_;
  std::vector<Nanoseconds> supply_, room_, flow_;
};

/// Returns, of the dW that are `open` (allowed for the all-to-all and not yet assigned), the one
/// whose time is nearest to `uncovered`; without `overshoot` only if its time is less than twice
/// `uncovered`; -1 if none.
int64_t best_fit(const OverlapProblem& problem, const std::vector<bool>& open,
                 Nanoseconds uncovered, bool overshoot) {
  int64_t best = -1;
  Nanoseconds nearest = overshoot ? std::numeric_limits<Nanoseconds>::max() : uncovered;
  for (size_t dw = 0; dw < open.size(); ++dw) {
    const Nanoseconds distance = std::abs(uncovered - problem.dw_ns[dw]);
    if (!open[dw] || distance >= nearest) continue;
    best = static_cast<int64_t>(dw);
    nearest = distance;
  }
  return best;
}

}  // namespace

Nanoseconds hidden_ns(const OverlapProblem& problem, const std::vector<OverlapPick>& picks) {
  std::vector<Nanoseconds> under(problem.a2a_ns.size());
  for (const OverlapPick& pick : picks) under[pick.a2a] += problem.dw_ns[pick.dw];
  Nanoseconds hidden = 0;
  for (size_t a = 0; a < under.size(); ++a) hidden += std::min(problem.a2a_ns[a], under[a]);
  return hidden;
}

OverlapAssignment assign_greedy(const OverlapProblem& problem, bool overshoot,
                                const std::function<bool(const OverlapPick&)>& accept) {
  OverlapAssignment result;
  std::vector<bool> used(problem.dw_ns.size());
  for (size_t a = 0; a < problem.a2a_ns.size(); ++a) {
    std::vector<bool> open(used.size());
    for (size_t dw = 0; dw < used.size(); ++dw) open[dw] = problem.allowed[a][dw] && !used[dw];
    Nanoseconds uncovered = problem.a2a_ns[a];
    while (uncovered > 0) {
      const int64_t found = best_fit(problem, open, uncovered, overshoot);
      if (found < 0) break;
      const auto dw = static_cast<size_t>(found);
      const OverlapPick pick{a, dw, uncovered};
      open[dw] = false;
      if (!accept(pick)) continue;
      used[dw] = true;
      uncovered -= problem.dw_ns[dw];
      result.picks.push_back(pick);
    }
  }
  result.hidden_ns = hidden_ns(problem, result.picks);
  return result;
}

std::optional<OverlapAssignment> assign_exact(const OverlapProblem& problem,
                                              int64_t most_branches) {
  return BranchAndBound(problem, most_branches).run();
}

Nanoseconds overlap_bound(const OverlapProblem& problem) {
  return MinCostFlow(problem).run();
}

}  // namespace moe
