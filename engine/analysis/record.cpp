#include "engine/analysis/record.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {

Times::Times(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  for (const auto& [lo, hi] : intervals) {
    if (hi <= lo) continue;
    if (!intervals_.empty() && lo <= intervals_.back().second) {
      intervals_.back().second = std::max(intervals_.back().second, hi);
    } else {
      intervals_.emplace_back(lo, hi);
    }
  }
  Nanoseconds sum = 0;
  for (const auto& [lo, hi] : intervals_) sums_.push_back(sum += hi - lo);
}

Nanoseconds Times::before(Nanoseconds at) const {
  const auto next = std::partition_point(intervals_.begin(), intervals_.end(),
                                         [at](const Interval& i) { return i.second <= at; });
  const auto index = static_cast<size_t>(next - intervals_.begin());
  const Nanoseconds whole = index == 0 ? 0 : sums_[index - 1];
  if (next == intervals_.end()) return whole;
  return whole + std::max<Nanoseconds>(at - next->first, 0);
}

Times Times::without(const Times& other) const {
  std::vector<Interval> left;
  auto cut = other.intervals_.begin();
  for (auto [lo, hi] : intervals_) {
    while (cut != other.intervals_.end() && cut->second <= lo) ++cut;
    for (auto c = cut; c != other.intervals_.end() && c->first < hi; ++c) {
      if (lo < c->first) left.emplace_back(lo, c->first);
      lo = std::max(lo, c->second);
    }
    if (lo < hi) left.emplace_back(lo, hi);
  }
  return Times(std::move(left));
}

Record::Record(const ReplayInput& input, const Timeline& timeline)
    : graph(input.graph),
      schedule(input.schedule),
      num_ranks(static_cast<size_t>(timeline.num_ranks)),
      deps(dependencies(graph)),
      edges_into(graph.num_ops()),
      edges_out(graph.num_ops()),
      compute(num_ranks),
      comm(num_ranks),
      chunks(graph.num_ops() * num_ranks),
      input_(input),
      by_lane_(num_ranks * schedule.lanes.size()),
      arbitrated_(schedule.lanes.size()),
      ends_(graph.num_ops() * num_ranks),
      last_post_(graph.num_ops() * num_ranks),
      first_begin_(graph.num_ops(), std::numeric_limits<Nanoseconds>::max()) {
  for (const OrderEdge& edge : schedule.order_edges) {
    edges_into[edge.to.index()].push_back(&edge);
    edges_out[edge.from.index()].push_back(&edge);
  }
  for (const Arbiter& lanes : arbiters(schedule)) {
    for (const LaneId lane : lanes) arbitrated_[lane.index()] = lanes;
  }
  for (const Span& span : timeline.spans) {
    MOE_CHECK(span.rank >= 0 && span.rank < timeline.num_ranks,
              "a span of the timeline is on rank {}, but must be on one of ranks 0 to {}",
              span.rank, timeline.num_ranks - 1);
    const auto rank = static_cast<size_t>(span.rank);
    chunks[at(span.op, rank)].push_back(&span);
    ends_[at(span.op, rank)] = std::max(ends_[at(span.op, rank)], span.end);
    Nanoseconds& first = first_begin_[span.op.index()];
    first = std::min(first, span.begin);
    (is_comm(span.op) ? comm : compute)[rank].push_back(&span);
  }
  for (std::vector<Spans>* all : {&compute, &comm}) {
    for (Spans& spans : *all) {
      std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
        return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
      });
    }
  }
  for (size_t r = 0; r < num_ranks; ++r) {
    for (const Span* span : comm[r]) {
      by_lane_[r * schedule.lanes.size() + span->lane.index()].push_back(span);
    }
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    Spans& spans = chunks[i];
    std::sort(spans.begin(), spans.end(),
              [](const Span* a, const Span* b) { return a->chunk < b->chunk; });
    if (spans.empty()) continue;
    const OpId op(static_cast<int64_t>(i / num_ranks));
    const Group group = posts_together(op);
    for (int64_t p = 0; p < group.size; ++p) {
      const int64_t rank = group.member(static_cast<int64_t>(i % num_ranks), p);
      Nanoseconds& last = last_post_[at(op, static_cast<size_t>(rank))];
      last = std::max(last, spans[0]->post);
    }
  }
}

Group posts_together(const Graph& graph, OpId op, int64_t num_ranks, bool arbitrated) {
  if (graph.def(op).collective == Collective::kNone) return {1, 1};
  return arbitrated ? Group{num_ranks, 1} : simulated_groups(graph, op, num_ranks);
}

Group Record::posts_together(OpId op) const {
  const LaneId lane = schedule.lane_of[op.index()];
  return moe::posts_together(graph, op, static_cast<int64_t>(num_ranks),
                             !arbitrated_[lane.index()].empty());
}

Nanoseconds Record::begin(OpId op, size_t rank) const {
  const Spans& spans = chunks[at(op, rank)];
  return spans.empty() ? 0 : spans[0]->begin;
}

Nanoseconds Record::data_ready(OpId op, size_t rank) const {
  Nanoseconds last = 0;
  for (const OpId before : deps.preds[op.index()]) last = std::max(last, end(before, rank));
  return last;
}

Nanoseconds Record::edges_ready(OpId op, size_t rank) const {
  Nanoseconds last = data_ready(op, rank);
  for (const OrderEdge* e : edges_into[op.index()]) last = std::max(last, end(e->from, rank));
  return last;
}

OpId Record::last_needed(OpId op, size_t rank) const {
  OpId last;
  for (const OpId before : deps.preds[op.index()]) {
    if (!last.valid() || end(last, rank) < end(before, rank)) last = before;
  }
  return last;
}

const OrderEdge* Record::last_ordered(OpId op, size_t rank) const {
  const OrderEdge* last = nullptr;
  for (const OrderEdge* edge : edges_into[op.index()]) {
    if (last == nullptr || end(last->from, rank) < end(edge->from, rank)) last = edge;
  }
  return last;
}

Nanoseconds Record::alone_ns(OpId op) const {
  Nanoseconds most = 0;
  for (int32_t r = 0; r < input_.num_ranks; ++r) most = std::max(most, input_.duration_ns(op, r));
  return most;
}

Nanoseconds Record::alone_ns(OpId op, size_t rank) const {
  const Group group = simulated_groups(graph, op, input_.num_ranks);
  Nanoseconds most = 0;
  for (int64_t p = 0; p < group.size; ++p) {
    const int64_t member = group.member(static_cast<int64_t>(rank), p);
    most = std::max(most, input_.duration_ns(op, static_cast<int32_t>(member)));
  }
  return most;
}

std::vector<Exposure> Record::made_of(OpId op, size_t rank) const {
  std::vector<Exposure> parts{{.op = op, .cause = Cause::kData, .from = op}};
  if (chunks[at(op, rank)].empty()) return parts;
  const Span& first = *chunks[at(op, rank)][0];
  const Nanoseconds ready = std::min(data_ready(op, rank), first.post);
  const Nanoseconds ordered = std::clamp(edges_ready(op, rank), ready, first.post);
  const Nanoseconds posted = std::clamp(last_post_[at(op, rank)], first.post, first.begin);
  if (ordered > ready) {
    const OrderEdge& edge = *last_ordered(op, rank);
    parts.push_back({op, Cause::kOrderEdge, edge.from, op, -1, edge.stage, ordered - ready});
  }
  const LaneId lane = first.lane;
  add_wait(parts, op, rank, ordered, first.post,
           schedule.picks(lane) ? std::vector<LaneId>{} : std::vector<LaneId>{lane});
  add_members(parts, op, rank, posted - first.post);
  add_transfers(parts, op, rank, posted);
  return parts;
}

void Record::add_members(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds ns) const {
  if (ns == 0) return;
  const Group group = posts_together(op);
  size_t late = 0;
  for (int64_t p = 0; p < group.size; ++p) {
    const auto r = static_cast<size_t>(group.member(static_cast<int64_t>(rank), p));
    const Spans& spans = chunks[at(op, r)];
    if (!spans.empty() && spans[0]->post == last_post_[at(op, r)]) {
      late = r;
      break;
    }
  }
  OpId keeper = last_needed(op, late);
  const OrderEdge* edge = last_ordered(op, late);
  if (edge != nullptr && (!keeper.valid() || end(edge->from, late) > end(keeper, late))) {
    keeper = edge->from;
  }
  parts.push_back({op, Cause::kMembers, keeper, op, static_cast<int32_t>(late), "", ns});
}

/// Adds the time of the chunks of `op` from `posted` on: their time alone to parts[0] (kData), and
/// to `parts` the wait before each chunk and what takes longer (kStartUp, kContention, kSlower).
void Record::add_transfers(std::vector<Exposure>& parts, OpId op, size_t rank,
                           Nanoseconds posted) const {
  const Spans& spans = chunks[at(op, rank)];
  const auto n = static_cast<int64_t>(spans.size());
  const Nanoseconds whole = alone_ns(op, rank);
  const bool priced = n > 1 && input_.chunk_ns;
  const Nanoseconds chunk =
      priced ? input_.chunk_ns(op, static_cast<int32_t>(rank), n) : (whole + n - 1) / n;
  const std::vector<LaneId>& lanes = arbitrated_[spans[0]->lane.index()];
  Exposure start_up{op, Cause::kStartUp, op, op, -1, set_by(schedule, op, Setting::kChunk)};
  Nanoseconds before = posted;
  for (int64_t c = 0; c < n; ++c) {
    const Span& span = *spans[static_cast<size_t>(c)];
    add_wait(parts, op, rank, before, span.begin, lanes);
    before = std::max(before, span.end);
    const Nanoseconds share = priced ? whole * (c + 1) / n - whole * c / n : chunk;
    const Nanoseconds took = span.end - span.begin;
    parts[0].ns += std::min(took, share);
    start_up.ns +=
        std::clamp<Nanoseconds>(took - share, 0, std::max<Nanoseconds>(chunk - share, 0));
    const Nanoseconds longer = took - std::max(share, chunk);
    if (longer <= 0) continue;
    const OpId other = met(span);
    parts.push_back(
        {op, other.valid() ? Cause::kContention : Cause::kSlower, other, op, -1, "", longer});
  }
  if (start_up.ns > 0) parts.push_back(std::move(start_up));
}

/// Adds the wait [lo, hi) of `op` to `parts`, one part per thing that `op` waited for: a transfer
/// on one of `lanes`, an earlier op of its lane that is not posted, a hold, or else the hand-over.
void Record::add_wait(std::vector<Exposure>& parts, OpId op, size_t rank, Nanoseconds lo,
                      Nanoseconds hi, const std::vector<LaneId>& lanes) const {
  if (lo >= hi) return;
  Spans busy;
  for (const LaneId lane : lanes) {
    const Spans& all = on_lane(rank, lane);
    auto span =
        std::partition_point(all.begin(), all.end(), [lo](const Span* s) { return s->end <= lo; });
    for (; span != all.end() && (*span)->post < hi; ++span) {
      if ((*span)->op != op) busy.push_back(*span);
    }
  }
  std::vector<Nanoseconds> cuts{lo, hi};
  const auto cut = [&](Nanoseconds t) {
    if (t > lo && t < hi) cuts.push_back(t);
  };
  const LaneId own = chunks[at(op, rank)][0]->lane;
  // On a lane that runs in order, an earlier op blocks this one once the earlier op is posted, even
  // while the earlier op still waits for members.
  const auto taken_from = [&](const Span& s) {
    return s.lane == own && !schedule.picks(own) ? s.post : s.begin;
  };
  for (const Span* s : busy) {
    cut(taken_from(*s));
    cut(s->end);
  }
  for (const Hold& hold : schedule.holds) {
    cut(first_begin_[hold.from.index()]);
    cut(last_post_[at(hold.until, 0)]);
  }
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 1; i < cuts.size(); ++i) {
    const Nanoseconds from = cuts[i - 1], ns = cuts[i] - from;
    if (ns == 0) continue;
    const auto carrier = std::find_if(busy.begin(), busy.end(), [&](const Span* s) {
      return taken_from(*s) <= from && from < s->end;
    });
    const auto ahead = std::find_if(busy.begin(), busy.end(), [&](const Span* s) {
      return s->lane == own && !schedule.picks(own) && from < s->post;
    });
    const Hold* hold = held(op, from);
    if (carrier != busy.end()) {
      const OpId carried = (*carrier)->op;
      parts.push_back({op, Cause::kLaneBusy, carried, op, -1, stage_of_busy(op, carried), ns});
    } else if (ahead != busy.end()) {  // *ahead is before `op` in the lane's order, but not posted
      const OpId first = (*ahead)->op;
      parts.push_back({op, Cause::kLaneOrder, first, op, -1, stage_of_busy(op, first), ns});
    } else if (hold != nullptr) {
      parts.push_back({op, Cause::kHold, hold->from, hold->until, -1, hold->stage, ns});
    } else {
      parts.push_back({op, Cause::kCoordination, {}, op, -1, "", ns});
    }
  }
}

/// Returns the collective of another lane that overlaps `span` longest; invalid if there is none.
OpId Record::met(const Span& span) const {
  OpId longest;
  Nanoseconds most = 0;
  const auto rank = static_cast<size_t>(span.rank);
  for (size_t l = 0; l < schedule.lanes.size(); ++l) {
    const LaneId lane(static_cast<int64_t>(l));
    if (lane == span.lane) continue;
    const Spans& all = on_lane(rank, lane);
    auto other = std::partition_point(all.begin(), all.end(),
                                      [&](const Span* s) { return s->end <= span.begin; });
    for (; other != all.end() && (*other)->begin < span.end; ++other) {
      const Nanoseconds ns =
          std::min((*other)->end, span.end) - std::max((*other)->begin, span.begin);
      if (ns <= most) continue;
      most = ns;
      longest = (*other)->op;
    }
  }
  return longest;
}

const Hold* Record::held(OpId op, Nanoseconds at) const {
  const std::vector<LaneId>& lanes = arbitrated_[schedule.lane_of[op.index()].index()];
  for (const Hold& hold : schedule.holds) {
    const LaneId lane = schedule.lane_of[hold.until.index()];
    if (std::find(lanes.begin(), lanes.end(), lane) == lanes.end()) continue;
    const bool active =
        first_begin_[hold.from.index()] <= at && at < last_post_[this->at(hold.until, 0)];
    if (active && schedule.priority_of(op) < schedule.priority_of(hold.until)) return &hold;
  }
  return nullptr;
}

/// Returns the stage because of which `carried` went before `op`; "" if there is none.
std::string Record::stage_of_busy(OpId op, OpId carried) const {
  const bool by_priority = schedule.priority_of(carried) > schedule.priority_of(op);
  const auto what = by_priority ? Setting::kPriority : Setting::kLane;
  for (const OpId set : {carried, op}) {
    std::string stage = set_by(schedule, set, what);
    if (!stage.empty()) return stage;
  }
  const LaneId lane = schedule.lane_of[op.index()];
  if (schedule.lane_of[carried.index()] == lane) return {};
  const Exclusive* group = exclusive_with(schedule, lane);
  return group == nullptr ? "" : group->stage;
}

}  // namespace moe
