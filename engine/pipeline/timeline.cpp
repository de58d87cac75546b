#include "engine/pipeline/timeline.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/errors.h"

namespace moe::pipeline {
namespace {

constexpr double kNever = -1;

double at_stage(const std::vector<double>& times, int32_t stage) {
  return times.empty() ? 0 : times[static_cast<size_t>(stage)];
}

/// Runs all rows; a rank whose next entry cannot begin yet is taken up again when something arrives
/// at it, so that each entry is looked at once per arrival.
class Clock {
 public:
  Clock(const std::vector<Row>& rows, const Shape& shape, const Costs& costs, bool spelled)
      : rows_(rows), shape_(shape), costs_(costs), spelled_(spelled), ranks_(rows.size()) {
    const size_t size = shape.index(shape.stages, 0);
    for (int what : {kActivation, kGradient}) {
      arrived_[what].assign(size, kNever);
      if (spelled) made_[what].assign(size, 0), sent_[what].assign(size, 0);
    }
    for (const LinkTime& link : costs.links) links_[{link.from, link.to}] = link.time;
    timeline_.entries.resize(rows.size());
  }

  void run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) waiting_.push_back(rank);
    while (!waiting_.empty()) {
      const size_t rank = waiting_.back();
      waiting_.pop_back();
      while (ranks_[rank].next < rows_[rank].size() && step(rank)) {
      }
    }
  }

  std::vector<Finding> stuck() const {
    std::vector<Finding> found;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next == rows_[rank].size()) continue;
      found.push_back(
          {"deadlock", static_cast<int64_t>(rank), entry_text(rows_[rank], ranks_[rank].next)});
    }
    return found;
  }

  Timeline timeline() {
    Timeline& t = timeline_;
    for (const auto& entries : t.entries) {
      if (!entries.empty()) t.step = std::max(t.step, entries.back().end);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto& entries = t.entries[rank];
      const double busy = ranks_[rank].busy;
      const double whole = entries.empty() ? 0 : entries.back().end - entries.front().begin;
      t.busy.push_back(busy);
      t.bubble.push_back(t.step - busy);
      t.inner.push_back(whole - busy);
      t.sending.push_back(ranks_[rank].sending);
    }
    return std::move(t);
  }

 private:
  static constexpr int kActivation = 0, kGradient = 1;
  struct Rank {
    size_t next = 0;  // the first action that has not run
    double free = 0;  // when the rank has nothing more to do
    double busy = 0, sending = 0;
  };

  /// Runs the next entry of the rank; returns whether it could begin.
  bool step(size_t rank) {
    const Row& row = rows_[rank];
    Rank& state = ranks_[rank];
    const Action& first = row[state.next];
    if (is_transfer(first.work)) return transfer(rank, first);
    const Action* second = first.beside ? &row[state.next + 1] : nullptr;
    double begin = ready(first);
    if (second != nullptr && begin != kNever) {
      const double other = ready(*second);
      begin = other == kNever ? kNever : std::max(begin, other);
    }
    if (begin == kNever) return false;
    begin = std::max(begin, state.free);
    const double length = second ? length_of_pair(first, *second) : length_of(first);
    timeline_.entries[rank].push_back({state.next, begin, begin + length});
    state.busy += length;
    state.free = begin + length;
    state.next += second ? 2 : 1;
    const double end = state.free;
    deliver(first, rank, end);
    if (second) deliver(*second, rank, end);
    return true;
  }

  /// Returns when the action can begin, apart from its rank; kNever if that is not known yet.
  double ready(const Action& a) const {
    const int what = a.work == Work::kF ? kActivation : kGradient;
    const int64_t last = what == kActivation ? 0 : shape_.stages - 1;
    if (a.work == Work::kW || a.stage == last) return 0;
    return arrived_[what][shape_.index(a.stage, a.micro)];
  }

  double length_of(const Action& a) const {
    if (a.work == Work::kF) return at_stage(costs_.f, a.stage);
    if (a.work == Work::kB && !costs_.b.empty()) return at_stage(costs_.b, a.stage);
    return (a.work == Work::kW ? 0 : at_stage(costs_.i, a.stage)) +
           (a.work == Work::kI ? 0 : at_stage(costs_.w, a.stage));
  }

  double length_of_pair(const Action& f, const Action& b) const {
    const double sum = length_of(f) + length_of(b);
    const double longer = std::max(length_of(f), length_of(b));
    switch (costs_.pair) {
      case PairRule::kSum:
        return sum;
      case PairRule::kMax:
        return longer;
      case PairRule::kFixed:
        return costs_.pair_value;
      case PairRule::kSaving:
        return std::max(sum - costs_.pair_value, longer);
    }
    return sum;
  }

  /// Hands the result of an action that ended at `end` to the stage that needs it, if any.
  void deliver(const Action& a, size_t rank, double end) {
    const int what = a.work == Work::kF ? kActivation : kGradient;
    const int64_t to = a.stage + (what == kActivation ? 1 : -1);
    if (a.work == Work::kW || to < 0 || to >= shape_.stages) return;
    const size_t index = shape_.index(to, a.micro);
    const auto receiver = static_cast<size_t>(shape_.rank_of(to, a.micro));
    if (spelled_) made_[what][index] = 1;
    if (receiver == rank) {
      arrived_[what][index] = end;
    } else if (!spelled_) {
      arrived_[what][index] = arrival(what, rank, receiver, end);
      waiting_.push_back(receiver);
    }
  }

  /// Returns when a transfer of what ended at `end` arrives; it takes its place on link or sender.
  double arrival(int what, size_t rank, size_t receiver, double end) {
    double time = what == kActivation ? costs_.send_f : costs_.send_b;
    const std::pair<int64_t, int64_t> link(rank, receiver);
    if (!links_.empty()) {
      const auto given = links_.find(link);
      if (given != links_.end()) time = given->second;
    }
    if (costs_.mode == SendMode::kAsync) return end + time;
    if (costs_.mode == SendMode::kLink) {
      double& free = link_free_[link];
      return free = std::max(free, end) + time;
    }
    ranks_[rank].sending += time;
    return ranks_[rank].free += time;
  }

  /// Runs a transfer that the row spells out; returns whether it could begin.
  bool transfer(size_t rank, const Action& a) {
    const bool sends = a.work == Work::kSendF || a.work == Work::kSendB;
    const int what = a.work == Work::kSendF || a.work == Work::kRecvF ? kActivation : kGradient;
    const int64_t to = a.stage + (!sends ? 0 : what == kActivation ? 1 : -1);
    const size_t index = shape_.index(to, a.micro);
    if ((sends ? made_ : sent_)[what][index] == 0) return false;
    if (sends) {
      sent_[what][index] = 1;
      waiting_.push_back(static_cast<size_t>(shape_.rank_of(to, a.micro)));
    } else {
      arrived_[what][index] = 0;
    }
    ++ranks_[rank].next;
    return true;
  }

  const std::vector<Row>& rows_;
  const Shape& shape_;
  const Costs& costs_;
  const bool spelled_;
  std::vector<Rank> ranks_;
  std::vector<size_t> waiting_;  // ranks whose next entry may begin
  // [activation, gradient][stage that needs it, micro-batch]
  std::array<std::vector<double>, 2> arrived_;       // when; kNever: not known yet
  std::array<std::vector<uint8_t>, 2> made_, sent_;  // only if transfers are spelled out
  std::map<std::pair<int64_t, int64_t>, double> links_, link_free_;
  Timeline timeline_;
};

}  // namespace

Timeline compose(const std::vector<Row>& rows, const Shape& shape, const Costs& costs) {
  std::vector<Row> turns = rows;
  for (Row& row : turns) std::erase_if(row, [](const Action& a) { return is_transfer(a.work); });
  Clock clock(turns, shape, costs, false);
  clock.run();
  MOE_CHECK(clock.stuck().empty(), "a pipeline waits at {}", clock.stuck()[0].action);
  return clock.timeline();
}

std::vector<Finding> find_deadlock(const std::vector<Row>& rows, const Shape& shape, bool spelled) {
  const Costs none;
  Clock clock(rows, shape, none, spelled);
  clock.run();
  return clock.stuck();
}

std::vector<double> peaks(const std::vector<Row>& rows, const std::vector<double>& act,
                          double keep_w) {
  std::vector<double> all;
  for (const Row& row : rows) {
    double held = 0, most = 0;
    for (const Action& a : row) {
      const double weight = act.empty() ? 1 : at_stage(act, a.stage);
      switch (a.work) {
        case Work::kF:
          held += weight;
          break;
        case Work::kB:
          held -= weight;
          break;
        case Work::kI:
          held -= weight * (1 - keep_w);
          break;
        case Work::kW:
          held -= weight * keep_w;
          break;
        default:
          break;
      }
      most = std::max(most, held);
    }
    all.push_back(most);
  }
  return all;
}

}  // namespace moe::pipeline
