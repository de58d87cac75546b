#include "engine/pipeline/timeline.h"

#include <algorithm>

namespace moe::pipeline {
namespace {

constexpr double kNever = -1;

double at_stage(const std::vector<double>& values, int32_t stage, double none) {
  return values.empty() ? none : values[static_cast<size_t>(stage)];
}

/// Runs all rows: each rank as far as it can, again and again.
class Clock {
 public:
  Clock(const std::vector<Row>& rows, const Shape& shape, const Costs& costs, bool transfers)
      : rows_(rows), shape_(shape), costs_(costs), transfers_(transfers), next_(rows.size()) {
    t_.begins.resize(rows.size()), t_.ends.resize(rows.size()), t_.ways.resize(rows.size());
    t_.busy = t_.sending = t_.peak = held_ = free_ = std::vector<double>(rows.size());
    for (size_t work = 0; work < (transfers ? 8 : 2); ++work) {
      ready_[work].assign(shape.index(shape.stages, 0), kNever);
    }
    for (int64_t micro = 0; micro < shape.micro_batches; ++micro) {
      ready(Work::kF, 0, micro) = 0;
      ready(Work::kB, shape.stages - 1, micro) = 0;
    }
  }

  Timeline run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < rows_.size(); ++rank) {
        while (next_[rank] < rows_[rank].size() && step(rank)) moved = true;
      }
    }
    for (const auto& ends : t_.ends) t_.step = std::max(t_.step, ends.empty() ? 0 : ends.back());
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      const std::vector<double>& ends = t_.ends[rank];
      const double whole = ends.empty() ? 0 : ends.back() - t_.begins[rank].front();
      t_.bubble.push_back(t_.step - t_.busy[rank]);
      t_.inner.push_back(whole - t_.busy[rank]);
      if (next_[rank] == rows_[rank].size()) continue;
      t_.stuck.push_back({"deadlock", static_cast<int64_t>(rank), text_of(entry(rank))});
    }
    return std::move(t_);
  }

 private:
  /// The rank's next entry.
  std::span<const Action> entry(size_t rank) const {
    const Action* const first = &rows_[rank][next_[rank]];
    return {first, first->beside ? size_t{2} : size_t{1}};
  }

  /// When an action can begin, apart from its rank; kNever if that is not known yet. B also of I.
  double& ready(Work work, int64_t stage, int64_t micro) {
    return ready_[static_cast<size_t>(work)][shape_.index(stage, micro)];
  }

  /// Runs the rank's next entry; returns whether it could begin.
  bool step(size_t rank) {
    const std::span<const Action> actions = entry(rank);
    double begin = free_[rank];
    for (const Action& a : actions) {
      if (a.work == Work::kW) continue;
      const double at = ready(a.work == Work::kI ? Work::kB : a.work, a.stage, a.micro);
      if (at == kNever) return false;
      begin = std::max(begin, at);
    }
    next_[rank] += actions.size();
    const Paths* const paths =
        costs_.paths.empty() ? nullptr : costs_.paths[rank][t_.ends[rank].size()];
    if (!is_transfer(actions[0].work)) {
      const double time = paths != nullptr ? paths->busy : length(actions);
      if (paths != nullptr) {
        free_[rank] = go(*paths, actions, rank);
        begin = free_[rank] - time;
      } else {
        free_[rank] = begin + time;
      }
      t_.busy[rank] += time;
      t_.begins[rank].push_back(begin), t_.ends[rank].push_back(free_[rank]);
    }
    const double end = free_[rank];
    for (const Action& a : actions) {
      if (!is_transfer(a.work)) hold(rank, a);
      if (a.work == Work::kW) continue;
      const size_t result = a.work == Work::kF ? 0 : 1;
      const double given = paths == nullptr ? kNever : t_.ways[rank].back()[paths->lanes + result];
      wire_ = paths == nullptr ? kNever : paths->wires[result];
      deliver(a, rank, given < 0 ? end : given);
    }
    return true;
  }

  /// Takes the ways through an entry; returns when the compute lane is free behind it.
  double go(const Paths& paths, std::span<const Action> actions, size_t rank) {
    std::vector<double> from(paths.lanes + 2, 0);
    if (!t_.ways[rank].empty())
      std::copy_n(t_.ways[rank].back().begin(), paths.lanes, from.begin());
    std::fill_n(from.end() - 2, 2, Paths::kNone);
    for (const Action& a : actions) {
      if (a.work == Work::kF) from[paths.lanes] = ready(Work::kF, a.stage, a.micro);
      if (a.work == Work::kB || a.work == Work::kI) {
        from[paths.lanes + 1] = ready(Work::kB, a.stage, a.micro);
      }
    }
    std::vector<double>& to = t_.ways[rank].emplace_back();
    for (const std::vector<double>& delays : paths.delays) {
      double& at = to.emplace_back(Paths::kNone);
      for (size_t i = 0; i < delays.size(); ++i) at = std::max(at, from[i] + delays[i]);
    }
    return to[0];
  }

  double length(std::span<const Action> actions) const {
    double sum = 0, longer = 0;
    for (const Action& a : actions) {
      const std::vector<double>& times = costs_.times[static_cast<size_t>(a.work)];
      const bool of_each = std::ssize(times) > shape_.stages;
      const double one =
          of_each ? times[shape_.index(a.stage, a.micro)] : at_stage(times, a.stage, 0);
      sum += one;
      longer = std::max(longer, one);
    }
    if (actions.size() == 1) return sum;
    return costs_.pair.value_or(std::max(sum - costs_.pair_saving, longer));
  }

  void hold(size_t rank, const Action& a) {
    const std::array<double, 4> taken = {1, -1, costs_.keep_w - 1, -costs_.keep_w};  // F, B, I, W
    held_[rank] += at_stage(costs_.act, a.stage, 1) * taken[static_cast<size_t>(a.work)];
    t_.peak[rank] = std::max(t_.peak[rank], held_[rank]);
  }

  /// Lets begin what waits for an action that ended at `end`.
  void deliver(const Action& a, size_t rank, double end) {
    const bool activation = a.work == Work::kF || a.work == Work::kSendF || a.work == Work::kRecvF;
    const bool sends = a.work == Work::kSendF || a.work == Work::kSendB;
    const bool receives = is_transfer(a.work) && !sends;
    const Work work = activation ? Work::kF : Work::kB;
    const int32_t to = receives ? a.stage : a.other();
    if (to < 0 || to >= shape_.stages) return;
    const auto receiver = static_cast<size_t>(shape_.rank_of(to, a.micro));
    if (sends) {
      ready(activation ? Work::kRecvF : Work::kRecvB, to, a.micro) = end;
    } else if (receiver == rank) {
      ready(work, to, a.micro) = end;
    } else if (!transfers_) {
      ready(work, to, a.micro) = arrival(activation, rank, receiver, end);
    }
    if (transfers_ && !is_transfer(a.work)) {
      ready(activation ? Work::kSendF : Work::kSendB, a.stage, a.micro) = end;
    }
  }

  /// Returns when a transfer of what ended at `end` arrives; it takes its place on link or sender.
  double arrival(bool activation, size_t from, size_t to, double end) {
    const std::pair<int64_t, int64_t> link(from, to);
    const auto given = costs_.links.find(link);
    const double usual = wire_ >= 0 ? wire_ : activation ? costs_.send_f : costs_.send_b;
    const double time = given == costs_.links.end() ? usual : given->second;
    if (costs_.mode == SendMode::kAsync) return end + time;
    if (costs_.mode == SendMode::kLink) {
      double& free = link_free_[link];
      return free = std::max(free, end) + time;
    }
    t_.sending[from] += time;
    return free_[from] += time;
  }

  const std::vector<Row>& rows_;
  const Shape& shape_;
  const Costs& costs_;
  const bool transfers_;
  std::vector<size_t> next_;                  // [rank]: the first action to run
  std::vector<double> held_, free_;           // [rank]: activations; when it has nothing more to do
  std::array<std::vector<double>, 8> ready_;  // [work][stage, micro-batch]
  std::map<std::pair<int64_t, int64_t>, double> link_free_;
  double wire_ = kNever;  // how long a transfer takes by Costs::paths
  Timeline t_;
};

}  // namespace

Timeline compose(const std::vector<Row>& rows, const Shape& shape, const Costs& costs,
                 bool transfers) {
  return Clock(rows, shape, costs, transfers).run();
}

}  // namespace moe::pipeline
