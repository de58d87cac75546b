#include "engine/analysis/explain.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/analysis/record.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

using Key = std::tuple<OpId, Cause, OpId, OpId, int32_t, std::string>;

/// Assigns the exposed time of one rank to collectives and causes.
class Account {
 public:
  Account(const Record& record, const Reachability& reach, size_t rank,
          std::map<Key, Nanoseconds>& sums)
      : record_(record),
        reach_(reach),
        rank_(rank),
        compute_(record.compute[rank]),
        sums_(sums),
        idle_(record.graph.num_ops()) {
    std::vector<Times::Interval> computing, posted;
    for (const Span* s : compute_) computing.emplace_back(s->begin, s->end);
    for (const Span* s : record.comm[rank]) posted.emplace_back(s->post, s->end);
    const Times in_flight(std::move(posted));
    exposed_ = in_flight.without(Times(std::move(computing)));
    for (const Span* s : compute_) {
      idle_[s->op.index()] += s->end - s->begin - in_flight.within(s->begin, s->end);
    }
  }

  Nanoseconds run() {
    Nanoseconds stopped = 0;
    for (next_ = 0; next_ < compute_.size(); ++next_) {
      const Span& span = *compute_[next_];
      if (span.begin > stopped) gap(stopped, span.begin, span.op);
      stopped = std::max(stopped, span.end);
    }
    Nanoseconds over = stopped;
    for (const Span* s : record_.comm[rank_]) over = std::max(over, s->end);
    if (over > stopped) gap(stopped, over, OpId());
    return exposed_.total();
  }

 private:
  /// Assigns the exposed time in [lo, hi), in which the compute lane was idle until `op` began; an
  /// invalid `op` means until the end of the step.
  void gap(Nanoseconds lo, Nanoseconds hi, OpId op) {
    if (exposed_.within(lo, hi) == 0) return;
    if (op.valid()) hi = before_op(lo, hi, op);
    OpId waiting = op;
    while (hi > lo) {
      const OpId comm = waiting.valid() ? record_.last_needed(waiting, rank_) : last_comm();
      if (!comm.valid() || !record_.is_comm(comm)) break;
      const Nanoseconds from = std::min(record_.data_ready(comm, rank_), hi);
      if (from == hi) break;
      collective(comm, waiting, from, lo, hi);
      hi = from;
      waiting = comm;
    }
    hand_over(lo, hi);
  }

  /// Assigns the exposed time in the last part of the gap, in which the data of `op` was ready but
  /// `op` had not begun. Returns when that part begins.
  Nanoseconds before_op(Nanoseconds lo, Nanoseconds hi, OpId op) {
    const Nanoseconds ready = std::clamp(record_.data_ready(op, rank_), lo, hi);
    const Nanoseconds ordered = std::clamp(record_.edges_ready(op, rank_), ready, hi);
    hand_over(ordered, hi);
    if (ordered == ready) return ready;
    const OrderEdge& edge = *record_.last_ordered(op, rank_);
    if (record_.is_comm(edge.from)) {
      charge({edge.from, Cause::kOrderEdge, edge.from, op, -1, edge.stage}, ready, ordered);
    } else {  // edge.from is compute, which was idle: only an inexact clock can cause this
      hand_over(ready, ordered);
    }
    return ready;
  }

  /// Assigns the exposed time in [max(from, lo), hi) to the transfer and the delays of `comm`. Its
  /// data was ready at `from`; the gap begins at `lo`.
  void collective(OpId comm, OpId waiting, Nanoseconds from, Nanoseconds lo, Nanoseconds hi) {
    const std::vector<Exposure> parts = record_.made_of(comm, rank_);
    Nanoseconds at = from;
    for (const Exposure& part : parts) {
      const Nanoseconds a = std::clamp(at, lo, hi), b = std::clamp(at + part.ns, lo, hi);
      at += part.ns;
      if (part.cause == Cause::kData) {
        transfer(comm, waiting, a, b, std::max(from, lo));
      } else {
        charge({comm, part.cause, part.from, part.to, part.late_rank, part.stage}, a, b);
      }
    }
    hand_over(std::clamp(at, lo, hi), hi);
  }

  /// Assigns the exposed time in [a, b), in which `comm` transferred without a delay: first to the
  /// order edge or lane order that kept a compute op from running then, the rest to kData. `since`
  /// is the begin of the gap or the time when the data of `comm` was ready, whichever is later.
  void transfer(OpId comm, OpId waiting, Nanoseconds a, Nanoseconds b, Nanoseconds since) {
    Nanoseconds left = exposed_.within(a, b);
    for (size_t i = next_ + 1; i < compute_.size() && left > 0; ++i) {
      const OpId later = compute_[i]->op;
      if (idle_[later.index()] > 0 && record_.data_ready(later, rank_) <= since) {
        left -= kept_back(comm, later, since, left);
      }
    }
    for (size_t i = next_; i-- > 0 && left > 0;) {
      const OpId earlier = compute_[i]->op;
      if (idle_[earlier.index()] > 0 && could_wait(earlier, comm)) {
        left -= put_forward(comm, earlier, left);
      }
    }
    add({comm, Cause::kData, comm, waiting, -1, ""}, left);
  }

  Nanoseconds kept_back(OpId comm, OpId later, Nanoseconds since, Nanoseconds most) {
    const OrderEdge* edge = record_.last_ordered(later, rank_);
    if (edge != nullptr && record_.end(edge->from, rank_) > since) {
      return spend(later, most, {comm, Cause::kOrderEdge, edge->from, later, -1, edge->stage});
    }
    return spend(later, most, {comm, Cause::kLaneOrder, compute_[next_]->op, later, -1, ""});
  }

  Nanoseconds put_forward(OpId comm, OpId earlier, Nanoseconds most) {
    for (const OrderEdge* edge : record_.edges_out[earlier.index()]) {
      if (edge->to != comm && !reach_.reaches(edge->to, comm)) continue;
      return spend(earlier, most, {comm, Cause::kOrderEdge, earlier, edge->to, -1, edge->stage});
    }
    return spend(earlier, most, {comm, Cause::kLaneOrder, earlier, comm, -1, ""});
  }

  /// Whether the compute op `op`, which ran before the collective, could have run during it:
  /// neither the collective nor a compute op that began before the gap ended needs the output of
  /// `op`, and the compute op that ends the gap needs no collective that needs this output.
  bool could_wait(OpId op, OpId comm) const {
    if (reach_.reaches(op, comm)) return false;
    const Span* next = next_ < compute_.size() ? compute_[next_] : nullptr;
    const Nanoseconds now = next == nullptr ? record_.end(comm, rank_) : next->begin;
    const std::vector<OpId>& succs = record_.deps.succs[op.index()];
    return std::all_of(succs.begin(), succs.end(), [&](OpId s) {
      if (record_.is_comm(s)) return next == nullptr || !reach_.reaches(s, next->op);
      return record_.begin(s, rank_) >= now;
    });
  }

  Nanoseconds spend(OpId op, Nanoseconds most, Key key) {
    const Nanoseconds ns = std::min(most, idle_[op.index()]);
    idle_[op.index()] -= ns;
    add(std::move(key), ns);
    return ns;
  }

  /// Assigns the exposed time in [lo, hi), in which no op was waited for but a lane was being
  /// woken, to kCoordination of the collectives that were in flight.
  void hand_over(Nanoseconds lo, Nanoseconds hi) {
    if (lo >= hi || exposed_.within(lo, hi) == 0) return;
    std::vector<const Span*> spans = record_.comm[rank_];
    std::stable_sort(spans.begin(), spans.end(),
                     [](const Span* a, const Span* b) { return a->post < b->post; });
    for (const Span* s : spans) {
      const Nanoseconds from = std::max(lo, s->post), to = std::min(hi, s->end);
      if (from >= to) continue;
      charge({s->op, Cause::kCoordination, OpId(), s->op, -1, ""}, from, to);
      lo = to;
    }
  }

  OpId last_comm() const {
    OpId last;
    for (const Span* s : record_.comm[rank_]) {
      if (!last.valid() || record_.end(last, rank_) < s->end) last = s->op;
    }
    return last;
  }

  void charge(Key key, Nanoseconds lo, Nanoseconds hi) {
    add(std::move(key), exposed_.within(lo, hi));
  }
  void add(Key key, Nanoseconds ns) {
    if (ns > 0) sums_[std::move(key)] += ns;
  }

  const Record& record_;
  const Reachability& reach_;
  const size_t rank_;
  const std::vector<const Span*>& compute_;
  std::map<Key, Nanoseconds>& sums_;
  size_t next_ = 0;                // index in compute_ of the op that ends the gap
  std::vector<Nanoseconds> idle_;  // per compute op: its time while no transfer ran, minus spend()
  Times exposed_;
};

/// Returns the shares of collectives, indexed by op, with bytes and with waited, transfer and
/// hidden times, summed over ranks. An op that is no collective has a share with an invalid `op`.
std::vector<CollectiveShare> times_of(const Record& record) {
  std::vector<CollectiveShare> times(record.graph.num_ops());
  for (size_t r = 0; r < record.num_ranks; ++r) {
    const std::vector<const Span*>& compute = record.compute[r];
    for (const Span* s : record.comm[r]) {
      CollectiveShare& mine = times[s->op.index()];
      mine.op = s->op;
      mine.bytes += s->bytes;
      mine.waited_ns += s->begin - s->post;
      mine.transfer_ns += s->end - s->begin;
      auto over = std::partition_point(compute.begin(), compute.end(),
                                       [s](const Span* c) { return c->end <= s->begin; });
      for (; over != compute.end() && (*over)->begin < s->end; ++over) {
        const Nanoseconds ns = std::min((*over)->end, s->end) - std::max((*over)->begin, s->begin);
        if (ns <= 0) continue;
        mine.hidden_ns += ns;
        auto& by = mine.hidden_by;
        const auto known = std::find_if(
            by.begin(), by.end(), [&](const auto& pair) { return pair.first == (*over)->op; });
        if (known == by.end()) {
          by.emplace_back((*over)->op, ns);
        } else {
          known->second += ns;
        }
      }
    }
  }
  return times;
}

/// Returns the delays of a collective, hidden or exposed, each summed over ranks: one entry per
/// cause, ops and late rank.
std::vector<Exposure> delays_of(const Record& record, OpId op) {
  std::vector<Exposure> all;
  for (size_t r = 0; r < record.num_ranks; ++r) {
    for (Exposure& part : record.made_of(op, r)) {
      if (part.cause == Cause::kData) continue;
      const auto same = std::find_if(all.begin(), all.end(), [&](const Exposure& e) {
        return std::tie(e.cause, e.from, e.to, e.late_rank) ==
               std::tie(part.cause, part.from, part.to, part.late_rank);
      });
      if (same == all.end()) {
        all.push_back(std::move(part));
      } else {
        same->ns += part.ns;
      }
    }
  }
  return all;
}

/// Returns the complete shares of all collectives, in the order in which these began on rank 0.
std::vector<CollectiveShare> collectives_of(const Record& record,
                                            const std::vector<Exposure>& exposures) {
  std::vector<CollectiveShare> times = times_of(record);
  for (const Exposure& e : exposures) times[e.op.index()].exposed_ns += e.ns;
  std::erase_if(times, [](const CollectiveShare& t) { return !t.op.valid(); });
  std::vector<std::pair<Nanoseconds, size_t>> order;
  for (size_t i = 0; i < times.size(); ++i) {
    times[i].alone_ns = record.alone_ns(times[i].op);
    times[i].delays = delays_of(record, times[i].op);
    std::sort(times[i].hidden_by.begin(), times[i].hidden_by.end(),
              [](const auto& a, const auto& b) {
                return std::tie(b.second, a.first) < std::tie(a.second, b.first);
              });
    order.emplace_back(record.begin(times[i].op, 0), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<CollectiveShare> sorted;
  for (const auto& [begin, i] : order) sorted.push_back(std::move(times[i]));
  return sorted;
}

}  // namespace

Explanation explain(const ReplayInput& input, const Timeline& timeline) {
  const Record record(input, timeline);
  const Reachability reach(record.graph, record.deps);
  Explanation all;
  std::map<Key, Nanoseconds> sums;
  for (size_t r = 0; r < record.num_ranks; ++r) {
    all.exposed_ns.push_back(Account(record, reach, r, sums).run());
  }
  for (const auto& [key, ns] : sums) {
    const auto& [op, cause, from, to, late_rank, stage] = key;
    all.exposures.push_back({op, cause, from, to, late_rank, stage, ns});
  }
  std::stable_sort(all.exposures.begin(), all.exposures.end(),
                   [](const Exposure& a, const Exposure& b) { return a.ns > b.ns; });
  all.collectives = collectives_of(record, all.exposures);
  for (const Span& span : timeline.spans) all.makespan_ns = std::max(all.makespan_ns, span.end);
  all.bound = lower_bound(input);
  return all;
}

std::string by_stage(const std::string& stage) {
  return stage.empty() ? "" : fmt::format(" (stage '{}')", stage);
}

std::string cause_text(const Graph& graph, const Schedule& schedule, const Exposure& e) {
  const auto name = [&graph](OpId op) { return op.valid() ? graph.op(op).name : "the step's end"; };
  const std::string by = by_stage(e.stage);
  switch (e.cause) {
    case Cause::kData:
      if (!e.to.valid()) return "the step ends with it";
      return fmt::format("'{}' needs it ({})", name(e.to),
                         edge_text(graph, schedule, e.from, e.to));
    case Cause::kOrderEdge:
      return fmt::format("'{}' waits for '{}' ({})", name(e.to), name(e.from),
                         edge_text(graph, schedule, e.from, e.to));
    case Cause::kLaneOrder:
      if (graph.def(e.from).lane == LaneKind::kComm) {
        return fmt::format("'{}', which it does not need, comes before it on lane '{}'{}",
                           name(e.from),
                           schedule.lanes[schedule.lane_of[e.from.index()].index()].name, by);
      }
      return e.to == e.op
                 ? fmt::format("'{}', which it does not need, ran before it", name(e.from))
                 : fmt::format("'{}' was ready, but comes after '{}'", name(e.to), name(e.from));
    case Cause::kLaneBusy:
      return fmt::format("lane '{}' carried '{}'{}",
                         schedule.lanes[schedule.lane_of[e.from.index()].index()].name,
                         name(e.from), by);
    case Cause::kMembers:
      return fmt::format("rank {} posted it last, after '{}'", e.late_rank, name(e.from));
    case Cause::kHold:
      return fmt::format("held from '{}' until '{}'{}", name(e.from), name(e.to), by);
    case Cause::kCoordination:
      return "handed over";
    case Cause::kStartUp:
      return fmt::format("chunks{}", by);
    case Cause::kContention:
      return fmt::format("shared the network with '{}'", name(e.from));
    case Cause::kSlower:
      return "slower than in the cost model, although alone on the network";
  }
  return {};
}

}  // namespace moe
