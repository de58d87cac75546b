#include "engine/analysis/findings.h"

#include <algorithm>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/stop.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/precedence.h"

namespace moe {
namespace {

constexpr const char* kStage = "explain";  // the stage of order edges that a remedy adds

/// Number of chunks into which a remedy cuts a transfer that blocks other transfers.
constexpr Bytes kChunks = 8;
/// How many transfers of a busy lane are searched for causes: the one that blocks another, and
/// those before it on the lane.
constexpr size_t kCarriers = 64;

void erase_edges(Schedule& schedule, OpId from, OpId to) {
  std::erase_if(schedule.order_edges,
                [=](const OrderEdge& e) { return e.from == from && e.to == to; });
}

/// A change of the schedule, or of the plan, that may shorten an exposure.
struct Remedy {
  std::string advice;  // remedies with equal advice are the same remedy
  std::string group;   // name shared by remedies of the same stage or lane
  bool wide = false;   // true: changes the whole stage or lane, not one op or edge of it
  std::function<void(Schedule&)> change;  // null if the remedy needs another plan
  Nanoseconds estimate_ns = 0;            // if `change` is null: estimated gain for this exposure
  Exposure cause = {};  // the exposure that the remedy shortens, if not the given one
};

class Remedies {
 public:
  /// Keeps a reference to `input`. The returned remedies must not outlive this object.
  explicit Remedies(const FindingsInput& input)
      : input_(input),
        graph_(input.graph),
        schedule_(input.schedule),
        deps_(dependencies(graph_)),
        reach_(graph_, deps_),
        alone_(graph_.num_ops()),
        shares_(graph_.num_ops()) {
    for (const CollectiveShare& t : input.explanation.collectives) shares_[t.op.index()] = &t;
    const LaneOrders orders = lane_orders(graph_, schedule_);
    const ReplayInput now = input.make_input(schedule_, orders);
    for (size_t i = 0; i < alone_.size(); ++i) {
      for (int32_t r = 0; r < now.num_ranks; ++r) {
        alone_[i] = std::max(alone_[i], now.duration_ns(OpId(static_cast<int64_t>(i)), r));
      }
    }
  }

  std::vector<Remedy> of(const Exposure& e) const {
    switch (e.cause) {
      case Cause::kData:
        return of_data(e);
      case Cause::kOrderEdge:
        return of_order_edge(e);
      case Cause::kLaneOrder:
        return is_comm(e.from) ? of_comm_lane(e) : of_lane_order(e);
      case Cause::kLaneBusy:
        return of_comm_lane(e);
      case Cause::kHold:
        return {{fmt::format("no hold from '{}' until '{}' (stage '{}')", name(e.from), name(e.to),
                             e.stage),
                 "hold", false, [e](Schedule& s) {
                   std::erase_if(s.holds, [&](const Hold& hold) {
                     return hold.from == e.from && hold.until == e.to;
                   });
                 }}};
      case Cause::kStartUp:
        return {{fmt::format("'{}' whole, or in larger chunks{}", name(e.op), by_stage(e.stage)),
                 "chunks", false, [e](Schedule& s) { s.chunk_bytes[e.op.index()] = 0; }},
                {fmt::format("no chunks{}", by_stage(e.stage)), "chunks", true,
                 [](Schedule& s) { s.chunk_bytes.clear(); }}};
      case Cause::kContention:
        return of_contention(e);
      case Cause::kMembers:
      case Cause::kCoordination:
      case Cause::kSlower:
        return {};
    }
    return {};
  }

 private:
  /// Returns remedies that need another graph, so they cannot be replayed: cutting into parts, more
  /// even parts, smaller buckets. Their estimate_ns is a guess: half of what could be hidden.
  std::vector<Remedy> of_data(const Exposure& e) const {
    const Op& op = graph_.op(e.op);
    const auto ranks = static_cast<Nanoseconds>(input_.explanation.exposed_ns.size());
    const Nanoseconds exposed = e.ns / ranks;
    const auto advise = [&](std::string advice, Nanoseconds worth) -> std::vector<Remedy> {
      return {{std::move(advice), "another plan", false, nullptr, worth}};
    };
    if (const Payload payload = graph_.def(e.op).payload; is_sync(payload)) {
      if (op.inputs.size() < 2 || payload == Payload::kParameters) return {};
      return advise(fmt::format("smaller buckets: '{}' waits for {} gradients, the last of '{}' "
                                "(stage 'gradient sync')",
                                op.name, op.inputs.size(), graph_.tensor(op.inputs.back()).name),
                    exposed / 2);
    }
    const Nanoseconds whole = alone_ns(e.op), least = shortest_part(e.op);
    if (whole > 2 * least) {
      return advise(
          fmt::format("even parts: '{}' (part {}) takes {:.1f} times as long as the shortest{}",
                      op.name, op.part, static_cast<double>(whole) / static_cast<double>(least),
                      by_stage(set_by(schedule_, e.op, Setting::kPart))),
          std::min(exposed, (whole - least) / 2));
    }
    if (op.part >= 0) return {};
    const auto cuts = std::find_if(input_.idle.begin(), input_.idle.end(),
                                   [](const IdleStage& s) { return s.cuts; });
    const std::string stage =
        cuts == input_.idle.end()
            ? "no stage cuts them"
            : fmt::format("stage '{}' changed nothing: {}", cuts->name, cuts->why);
    return advise(
        fmt::format("transfers in parts, since nothing else is ready while they run ({})", stage),
        std::min(exposed, work_behind(e.op) / 2));
  }

  /// Remedies against an order edge: remove it, remove all order edges of its stage, or remove it
  /// and run a compute op (movable()) during the collective.
  std::vector<Remedy> of_order_edge(const Exposure& e) const {
    const std::string group = "order " + e.stage;
    std::vector<Remedy> remedies;
    remedies.push_back(
        {fmt::format("no order edge '{}' -> '{}' of stage '{}'", name(e.from), name(e.to), e.stage),
         group, false, [e](Schedule& s) { erase_edges(s, e.from, e.to); }});
    remedies.push_back(
        {fmt::format("no order edges of stage '{}'", e.stage), group, true, [e](Schedule& s) {
           std::erase_if(s.order_edges, [&](const OrderEdge& o) { return o.stage == e.stage; });
         }});
    const OpId op = movable(e);
    if (!op.valid()) return remedies;
    remedies.push_back(
        {fmt::format("'{}' under '{}', without the order edge '{}' -> '{}' of stage '{}'", name(op),
                     name(e.op), name(e.from), name(e.to), e.stage),
         group, false, [this, e, op](Schedule& s) {
           erase_edges(s, e.from, e.to);
           run_under(s, op, e.op);
         }});
    return remedies;
  }

  std::vector<Remedy> of_lane_order(const Exposure& e) const {
    const OpId op = movable(e);
    if (!op.valid()) return {};
    const auto all = [this](Schedule& s) {
      for (const Exposure& other : input_.explanation.exposures) {
        if (other.cause != Cause::kLaneOrder) continue;
        Schedule more = s;
        const OpId moved = movable(other);
        if (!moved.valid()) continue;
        run_under(more, moved, other.op);
        try {
          lane_orders(graph_, more);
          s = std::move(more);
        } catch (const RunError&) {  // a cycle with the edges that an earlier `moved` got
        }
      }
    };
    return {{fmt::format("'{}' under '{}'", name(op), name(e.op)), "lane order", false,
             [this, e, op](Schedule& s) { run_under(s, op, e.op); }},
            {"weight gradients and updates that wait for nothing under transfers (as dw_schedule)",
             "lane order", true, all}};
  }

  std::vector<Remedy> of_busy_lane(const Exposure& e) const {
    const OpId first = e.from, second = e.op;
    const LaneId lane = schedule_.lane_of[second.index()], other = schedule_.lane_of[first.index()];
    const std::string& on = schedule_.lanes[other.index()].name;
    const std::string by = by_stage(e.stage);
    std::vector<Remedy> remedies;
    const auto add = [&](std::string advice, std::function<void(Schedule&)> change) {
      remedies.push_back({std::move(advice), "lane " + on + by, false, std::move(change)});
    };
    const auto kind = [this](OpId op) { return graph_.def(op).collective; };
    if (lane != other) {
      remedies.push_back(not_exclusive(lane, other));
    } else if (kind(first) != kind(second)) {
      for (const OpId op : {first, second}) {
        const LaneId usual = lane_for(kind(op));
        if (usual == lane) continue;
        add(fmt::format("'{}' on lane '{}' instead of '{}'{}", name(op),
                        schedule_.lanes[usual.index()].name, on, by),
            [op, usual](Schedule& s) { s.lane_of[op.index()] = usual; });
      }
      remedies.push_back(own_lane(e));
    }
    const std::vector<Arbiter> all = arbiters(schedule_);
    const bool chosen = std::any_of(all.begin(), all.end(), [lane](const Arbiter& lanes) {
      return std::find(lanes.begin(), lanes.end(), lane) != lanes.end();
    });
    if (chosen) {
      const int64_t above = schedule_.priority_of(first) + 1;
      const bool pressing = kind(second) == Collective::kAllToAll;
      if (pressing && schedule_.priority_of(second) < above) {
        add(fmt::format("a priority of '{}' above that of '{}'{}", name(second), name(first), by),
            [second, above](Schedule& s) { s.set_priority(second, above); });
      }
      const Bytes part = message_bytes(graph_, first) / kChunks;
      if (pressing && part > 0 && num_chunks(graph_, schedule_, first) < kChunks) {
        add(fmt::format("'{}' in chunks of {} bytes, between which others may go first{}",
                        name(first), part, by_stage(set_by(schedule_, first, Setting::kChunk))),
            [first, second, above, part](Schedule& s) {
              s.chunk_bytes.resize(s.lane_of.size());
              s.chunk_bytes[first.index()] = part;
              s.set_priority(second, std::max(s.priority_of(second), above));
            });
      }
    } else if (kind(second) == Collective::kAllToAll && reach_.independent(first, second)) {
      add(fmt::format("'{}' before '{}' on lane '{}'", name(second), name(first), on),
          [first, second](Schedule& s) { s.before(second, first, kStage, "first on its lane"); });
    }
    return remedies;
  }

  /// Returns remedies for a collective that waits for its lane: against the transfer that blocks
  /// it, and against the causes that made this transfer and those before it on the lane late.
  std::vector<Remedy> of_comm_lane(const Exposure& e) const {
    std::vector<Remedy> remedies = of_busy_lane(e);
    const auto add = [&](Exposure cause, std::vector<Remedy> more) {
      for (Remedy& r : more) {
        r.cause = cause;
        remedies.push_back(std::move(r));
      }
    };
    std::vector<OpId> carried{e.from};
    for (size_t i = 0; i < carried.size() && i < kCarriers; ++i) {
      for (Exposure delay : shares_[carried[i].index()]->delays) {
        delay.op = e.op;
        delay.ns = std::min(delay.ns, e.ns);
        if (delay.cause != Cause::kLaneBusy && delay.cause != Cause::kLaneOrder) {
          add(delay, of(delay));
          continue;
        }
        if (std::find(carried.begin(), carried.end(), delay.from) != carried.end()) continue;
        carried.push_back(delay.from);
        delay.to = e.op;
        const bool other = graph_.def(delay.from).collective != graph_.def(e.op).collective;
        if (other && delay.from != e.op) add(delay, of_busy_lane(delay));
      }
    }
    return remedies;
  }

  std::vector<Remedy> of_contention(const Exposure& e) const {
    const LaneId a = schedule_.lane_of[e.op.index()], b = schedule_.lane_of[e.from.index()];
    const auto change = [a, b, e](Schedule& s) {
      const auto has = [&](const Exclusive& x) {
        return std::any_of(x.lanes.begin(), x.lanes.end(),
                           [&](LaneId lane) { return lane == a || lane == b; });
      };
      if (std::any_of(s.exclusive.begin(), s.exclusive.end(), has)) return;
      s.exclusive.push_back({{a, b}, kStage});
      s.set_priority(e.op, s.priority_of(e.from) + 1);
    };
    return {
        {fmt::format("lanes '{}' and '{}' exclusive, '{}' first", schedule_.lanes[a.index()].name,
                     schedule_.lanes[b.index()].name, name(e.op)),
         "contention", false, change}};
  }

  /// Returns the remedy that moves all collectives of the kind of e.from, which blocks e.op, from
  /// the lane of e.op to a lane of their own.
  Remedy own_lane(const Exposure& e) const {
    const LaneId lane = schedule_.lane_of[e.op.index()];
    const std::string& on = schedule_.lanes[lane.index()].name;
    const Collective kind = graph_.def(e.from).collective;
    const auto change = [this, lane, kind](Schedule& s) {
      const LaneId own(static_cast<int64_t>(s.lanes.size()));
      s.lanes.push_back({"own", LaneKind::kComm});
      for (const OpId op : graph_.op_ids()) {
        LaneId& on = s.lane_of[op.index()];
        if (graph_.def(op).collective == kind && on == lane) on = own;
      }
    };
    return {fmt::format("each {} of lane '{}' on a lane of their own{}", graph_.def(e.from).name,
                        on, by_stage(e.stage)),
            "lane " + on + by_stage(e.stage), true, change};
  }

  Remedy not_exclusive(LaneId lane, LaneId other) const {
    const Exclusive* both = exclusive_with(schedule_, lane);
    const std::string by = by_stage(both == nullptr ? "" : both->stage);
    const std::string& on = schedule_.lanes[other.index()].name;
    return {fmt::format("lanes '{}' and '{}' not exclusive{}", schedule_.lanes[lane.index()].name,
                        on, by),
            "lane " + on + by, true, [lane](Schedule& s) {
              std::erase_if(s.exclusive, [lane](const Exclusive& group) {
                return std::find(group.lanes.begin(), group.lanes.end(), lane) != group.lanes.end();
              });
            }};
  }

  /// Adds order edges so that `op` runs during `comm`: after all ops whose data `comm` needs, and
  /// before all ops that need the data of `comm`.
  void run_under(Schedule& schedule, OpId op, OpId comm) const {
    const std::string why = "under " + name(comm);
    for (const OpId p : deps_.preds[comm.index()]) schedule.before(p, op, kStage, why);
    for (const OpId s : deps_.succs[comm.index()]) schedule.before(op, s, kStage, why);
  }

  /// Returns which of e.from and e.to is a compute op that could run during the collective e.op;
  /// invalid if neither is.
  OpId movable(const Exposure& e) const {
    const auto free = [&](OpId op) {
      return op.valid() && !is_comm(op) && reach_.independent(op, e.op);
    };
    if (e.cause == Cause::kLaneOrder && e.to == e.op) return free(e.from) ? e.from : OpId();
    if (free(e.to)) return e.to;
    return free(e.from) ? e.from : OpId();
  }

  /// Returns the summed time of the compute ops of the same layer and phase that need `comm`
  /// without another collective between. This compute could hide parts of `comm`, if it were cut.
  Nanoseconds work_behind(OpId comm) const {
    const Op& sent = graph_.op(comm);
    Nanoseconds sum = 0;
    std::vector<OpId> next = deps_.succs[comm.index()];
    std::vector<bool> seen(graph_.num_ops());
    while (!next.empty()) {
      const OpId op = next.back();
      next.pop_back();
      const Op& o = graph_.op(op);
      if (seen[op.index()] || is_comm(op) || o.layer != sent.layer || o.phase != sent.phase)
        continue;
      seen[op.index()] = true;
      sum += alone_ns(op);
      for (const OpId s : deps_.succs[op.index()]) next.push_back(s);
    }
    return sum;
  }

  /// If the collective is one part of a cut op, returns the time of the shortest part of that op;
  /// otherwise the time of the collective.
  Nanoseconds shortest_part(OpId comm) const {
    const Op& op = graph_.op(comm);
    Nanoseconds least = alone_ns(comm);
    for (size_t i = 0; op.part >= 0 && i < graph_.num_ops(); ++i) {
      const Op& o = graph_.ops()[i];
      const bool sibling = o.kind == op.kind && o.part >= 0 && o.layer == op.layer &&
                           o.phase == op.phase && o.segment == op.segment;
      if (sibling) least = std::min(least, alone_[i]);
    }
    return least;
  }

  /// Returns the lane that has the most collectives of `kind`.
  LaneId lane_for(Collective kind) const {
    std::vector<int> count(schedule_.lanes.size());
    for (const OpId op : graph_.op_ids()) {
      if (graph_.def(op).collective == kind) ++count[schedule_.lane_of[op.index()].index()];
    }
    return LaneId(std::max_element(count.begin(), count.end()) - count.begin());
  }

  Nanoseconds alone_ns(OpId op) const { return alone_[op.index()]; }
  const std::string& name(OpId op) const { return graph_.op(op).name; }
  bool is_comm(OpId op) const { return graph_.def(op).lane == LaneKind::kComm; }

  const FindingsInput& input_;
  const Graph& graph_;
  const Schedule& schedule_;
  const Dependencies deps_;
  const Reachability reach_;  // over data and mutation edges
  std::vector<Nanoseconds> alone_;
  std::vector<const CollectiveShare*> shares_;  // indexed by op; null if it is no collective
};

/// A remedy, and the finding that it becomes if it helps.
struct Trial {
  Remedy remedy;
  Finding finding;
  const Exposure* last;  // the last exposure that the remedy was added for
};

/// Returns one trial per different remedy of all exposures, those with the longest exposed time
/// first; a remedy for several exposures gets the sum of their exposed times and estimates. Of the
/// micro-batches between the first and the last, which are alike, the second stands for all.
std::vector<Trial> trials_of(const FindingsInput& in, const Remedies& remedies) {
  std::vector<Trial> trials;
  const int32_t last = num_micro_batches(in.graph) - 1;
  for (const Exposure& e : in.explanation.exposures) {
    const int32_t micro = in.graph.op(e.op).micro;
    if (micro > 1 && micro < last) continue;
    for (Remedy& remedy : remedies.of(e)) {
      const auto same = std::find_if(trials.begin(), trials.end(), [&](const Trial& t) {
        return t.remedy.advice == remedy.advice;
      });
      const Exposure cause = remedy.cause.op.valid() ? remedy.cause : e;
      if (same != trials.end()) {
        if (std::exchange(same->last, &e) == &e) continue;
        same->finding.exposed_ns += cause.ns;
        same->finding.worth_ns += remedy.estimate_ns;
        continue;
      }
      Finding finding{cause, cause.ns, std::nullopt, remedy.estimate_ns, remedy.advice};
      trials.push_back({std::move(remedy), std::move(finding), &e});
    }
  }
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return a.finding.exposed_ns > b.finding.exposed_ns;
  });
  return trials;
}

/// Returns the replayed time of a step with this schedule; nullopt if the schedule cannot run.
std::optional<Nanoseconds> step_ns(const Graph& graph, const Schedule& schedule,
                                   const MakeReplayInput& make_input) {
  try {
    const LaneOrders orders = lane_orders(graph, schedule);
    Nanoseconds end = 0;
    for (const Span& s : replay(make_input(schedule, orders)).spans) end = std::max(end, s.end);
    return end;
  } catch (const Interrupted&) {
    throw;
  } catch (const RunError&) {  // the edges form a cycle, or a hold never ends
    return std::nullopt;
  }
}

void try_out(const FindingsInput& in, std::vector<Trial>& trials) {
  const std::optional<Nanoseconds> now = step_ns(in.graph, in.schedule, in.make_input);
  MOE_CHECK(now.has_value(),
            "findings: the unchanged schedule of graph '{}' cannot be replayed, but must be",
            in.graph.name);
  int left = in.max_replays;
  for (Trial& trial : trials) {
    if (!trial.remedy.change || left-- <= 0) continue;
    Schedule changed = in.schedule;
    trial.remedy.change(changed);
    const std::optional<Nanoseconds> then = step_ns(in.graph, changed, in.make_input);
    if (!then || *then >= *now) continue;
    trial.finding.gain_ns = trial.finding.worth_ns = *now - *then;
  }
  std::erase_if(trials, [](const Trial& t) { return t.finding.worth_ns <= 0; });
}

bool same_exposure(const Exposure& a, const Exposure& b) {
  return a.op == b.op && a.cause == b.cause && a.from == b.from && a.to == b.to;
}

/// Whether trial b is left out of the list because trial a, of the same group, is in it. If one of
/// the two is wide (for the whole group) and the other is not, the wide trial covers the other when
/// it is worth more than 1.1 times as much; else the other covers the wide one. If both are wide or
/// neither is, a covers b when both are for the same exposure and a is worth at least as much.
bool covers(const Trial& a, const Trial& b) {
  if (a.remedy.group != b.remedy.group) return false;
  const Nanoseconds x = a.finding.worth_ns, y = b.finding.worth_ns;
  if (a.remedy.wide != b.remedy.wide) {
    return a.remedy.wide ? x > y + y / 10 : x + x / 10 >= y;
  }
  return same_exposure(a.finding.exposure, b.finding.exposure) && x >= y;
}

}  // namespace

std::vector<Finding> findings(const FindingsInput& input) {
  const Remedies remedies(input);
  std::vector<Trial> trials = trials_of(input, remedies);
  try_out(input, trials);
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return a.finding.worth_ns > b.finding.worth_ns;
  });
  std::vector<Finding> found;
  for (size_t i = 0; i < trials.size(); ++i) {
    bool covered = false;
    for (size_t j = 0; j < trials.size() && !covered; ++j) {
      const bool both = covers(trials[i], trials[j]);  // if they cover each other, keep the first
      covered = i != j && covers(trials[j], trials[i]) && (j < i || !both);
    }
    if (!covered) found.push_back(trials[i].finding);
  }
  return found;
}

}  // namespace moe
