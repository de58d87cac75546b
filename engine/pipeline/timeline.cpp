#include "engine/pipeline/timeline.h"

#include <algorithm>

namespace moe::pipeline {
namespace {

constexpr double kNever = -1;

double at_stage(const std::vector<double>& values, int32_t stage, double none) {
  return values.empty() ? none : values[static_cast<size_t>(stage)];
}

/// Runs all rows; a rank whose next entry cannot begin yet is taken up again when something arrives
/// at it, so that each entry is looked at once per arrival.
class Clock {
 public:
  Clock(const std::vector<Row>& rows, const Shape& shape, const Costs& costs, bool spelled)
      : rows_(rows), shape_(shape), costs_(costs), spelled_(spelled), ranks_(rows.size()) {
    for (const Work work : {Work::kF, Work::kB}) ready_of(work).assign(size(), kNever);
    for (size_t work = 4; spelled && work < 8; ++work) ready_[work].assign(size(), kNever);
    const int64_t last = shape.stages - 1;
    for (int64_t micro = 0; micro < shape.micro_batches; ++micro) {
      ready_of(Work::kF)[shape.index(0, micro)] = 0;
      ready_of(Work::kB)[shape.index(last, micro)] = 0;
    }
    t_.begins.resize(rows.size()), t_.ends.resize(rows.size());
  }

  Timeline run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) waiting_.push_back(rank);
    while (!waiting_.empty()) {
      const size_t rank = waiting_.back();
      waiting_.pop_back();
      while (ranks_[rank].next < rows_[rank].size() && step(rank)) {
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) finish(rank);
    for (const double busy : t_.busy) t_.bubble.push_back(t_.step - busy);
    return std::move(t_);
  }

 private:
  struct Rank {
    size_t next = 0;  // the first action that has not run
    double free = 0;  // when the rank has nothing more to do
    double busy = 0, sending = 0, held = 0, peak = 0;
  };

  size_t size() const { return shape_.index(shape_.stages, 0); }
  std::vector<double>& ready_of(Work work) { return ready_[static_cast<size_t>(work)]; }

  /// When the action can begin, apart from its rank; kNever if that is not known yet. Requires: no
  /// W, which waits for nothing.
  double& ready(Work work, int64_t stage, int64_t micro) {
    return ready_of(work == Work::kI ? Work::kB : work)[shape_.index(stage, micro)];
  }

  /// Runs the rank's next entry; returns whether it could begin.
  bool step(size_t rank) {
    Rank& state = ranks_[rank];
    const Action* const first = &rows_[rank][state.next];
    const std::span<const Action> entry(first, first->beside ? 2 : 1);
    double begin = state.free;
    for (const Action& a : entry) {
      const double ready_at = a.work == Work::kW ? 0 : ready(a.work, a.stage, a.micro);
      if (ready_at == kNever) return false;
      begin = std::max(begin, ready_at);
    }
    state.next += entry.size();
    if (!is_transfer(first->work)) {
      state.free = begin + length(entry);
      state.busy += state.free - begin;
      t_.begins[rank].push_back(begin), t_.ends[rank].push_back(state.free);
    }
    const double end = state.free;
    for (const Action& a : entry) {
      hold(state, a);
      deliver(a, rank, end);
    }
    return true;
  }

  double length(std::span<const Action> entry) const {
    double sum = 0, longer = 0;
    for (const Action& a : entry) {
      const double one = at_stage(costs_.times[static_cast<size_t>(a.work)], a.stage, 0);
      sum += one;
      longer = std::max(longer, one);
    }
    if (entry.size() == 1) return sum;
    return costs_.pair.value_or(std::max(sum - costs_.pair_saving, longer));
  }

  void hold(Rank& state, const Action& a) const {
    if (is_transfer(a.work)) return;
    const std::array<double, 4> taken = {1, -1, costs_.keep_w - 1, -costs_.keep_w};  // F, B, I, W
    state.held += at_stage(costs_.act, a.stage, 1) * taken[static_cast<size_t>(a.work)];
    state.peak = std::max(state.peak, state.held);
  }

  /// Lets begin what waits for an action that ended at `end`.
  void deliver(const Action& a, size_t rank, double end) {
    const bool activation = a.work == Work::kF || a.work == Work::kSendF || a.work == Work::kRecvF;
    const Work work = activation ? Work::kF : Work::kB;
    const bool receives = a.work == Work::kRecvF || a.work == Work::kRecvB;
    const int32_t to = receives ? a.stage : a.other();
    if (a.work == Work::kW || to < 0 || to >= shape_.stages) return;
    const auto receiver = static_cast<size_t>(shape_.rank_of(to, a.micro));
    if (is_transfer(a.work) && !receives) {
      ready(activation ? Work::kRecvF : Work::kRecvB, to, a.micro) = end;
    } else if (receiver == rank) {
      ready(work, to, a.micro) = end;
    } else if (!spelled_) {
      ready(work, to, a.micro) = arrival(activation, rank, receiver, end);
    }
    if (spelled_ && !is_transfer(a.work)) {
      ready(activation ? Work::kSendF : Work::kSendB, a.stage, a.micro) = end;
    }
    if (receiver != rank) waiting_.push_back(receiver);
  }

  /// Returns when a transfer of what ended at `end` arrives; it takes its place on link or sender.
  double arrival(bool activation, size_t from, size_t to, double end) {
    const std::pair<int64_t, int64_t> link(from, to);
    const auto given = costs_.links.find(link);
    const double usual = activation ? costs_.send_f : costs_.send_b;
    const double time = given == costs_.links.end() ? usual : given->second;
    if (costs_.mode == SendMode::kAsync) return end + time;
    if (costs_.mode == SendMode::kLink) {
      double& free = link_free_[link];
      return free = std::max(free, end) + time;
    }
    ranks_[from].sending += time;
    return ranks_[from].free += time;
  }

  void finish(size_t rank) {
    const Rank& state = ranks_[rank];
    const std::vector<double>& ends = t_.ends[rank];
    const double whole = ends.empty() ? 0 : ends.back() - t_.begins[rank].front();
    t_.step = std::max(t_.step, ends.empty() ? 0 : ends.back());
    t_.busy.push_back(state.busy);
    t_.inner.push_back(whole - state.busy);
    t_.sending.push_back(state.sending);
    t_.peak.push_back(state.peak);
    if (state.next == rows_[rank].size()) return;
    const Action* const at = &rows_[rank][state.next];
    t_.stuck.push_back(
        {"deadlock", static_cast<int64_t>(rank), text_of(std::span(at, at->beside ? 2 : 1))});
  }

  const std::vector<Row>& rows_;
  const Shape& shape_;
  const Costs& costs_;
  const bool spelled_;
  std::vector<Rank> ranks_;
  std::vector<size_t> waiting_;               // ranks whose next entry may begin
  std::array<std::vector<double>, 8> ready_;  // [work][stage, micro-batch]; B also of I
  std::map<std::pair<int64_t, int64_t>, double> link_free_;
  Timeline t_;
};

}  // namespace

Timeline compose(const std::vector<Row>& rows, const Shape& shape, const Costs& costs,
                 bool spelled) {
  return Clock(rows, shape, costs, spelled).run();
}

}  // namespace moe::pipeline
