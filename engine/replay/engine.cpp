#include "engine/replay/engine.h"

#include <algorithm>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/stop.h"
#include "engine/graph/op_def.h"
#include "engine/replay/link_spans.h"

namespace moe {
namespace {

constexpr uint32_t kLookEvery = 256;  // number of events between two checks of the request to stop

/// Returns the lane of every op. Every op must be exactly once in the orders of the lanes.
std::vector<LaneId> lanes_of(const ReplayInput& input) {
  std::vector<LaneId> lanes(input.graph.num_ops());
  size_t placed = 0;
  for (size_t lane = 0; lane < input.orders.lanes.size(); ++lane) {
    for (const OpId op : input.orders.lanes[lane]) {
      MOE_CHECK(!lanes[op.index()].valid(),
                "replay: op '{}' is twice in the orders of the lanes, but must be there once",
                input.graph.op(op).name);
      lanes[op.index()] = LaneId(static_cast<int64_t>(lane));
      ++placed;
    }
  }
  MOE_CHECK(placed == lanes.size(),
            "replay: the orders of the lanes have {} ops, but must have all {} ops of the graph",
            placed, lanes.size());
  return lanes;
}

/// Returns whether two transfers of different lanes may be in progress at once: at least two comm
/// lanes of a pipeline rank have transfers, and no single arbiter takes the choices of all of them.
bool lanes_may_meet(const ReplayInput& input) {
  std::vector<size_t> owner(input.orders.lanes.size());
  for (size_t l = 0; l < owner.size(); ++l) owner[l] = l;
  for (const Arbiter& arbiter : arbiters(input.schedule)) {
    for (const LaneId lane : arbiter) owner[lane.index()] = arbiter[0].index();
  }
  // By pipeline rank: the owners of lanes with transfers among its ranks.
  std::vector<std::set<size_t>> used(static_cast<size_t>(input.pipeline_ranks));
  for (size_t l = 0; l < owner.size(); ++l) {
    for (const OpId op : input.orders.lanes[l]) {
      const Collective collective = input.graph.def(op).collective;
      if (collective == Collective::kNone || collective == Collective::kHandoff) continue;
      used[static_cast<size_t>(input.graph.op(op).pipeline_rank)].insert(owner[l]);
    }
  }
  return std::any_of(used.begin(), used.end(), [](const auto& of) { return of.size() > 1; });
}

/// Returns the latest time that the clock may reach: kLongestNs, or less if the sum over `ranks`
/// ranks would not fit into Nanoseconds.
Nanoseconds latest_for(int64_t ranks) {
  return std::min(kLongestNs, (Nanoseconds{1} << 62) / ranks);
}

/// Returns bytes * parts / n without overflow. Requires: parts <= n.
Bytes part_of(Bytes bytes, int64_t parts, int64_t n) {
  return bytes / n * parts + bytes % n * parts / n;
}

bool all_alike(const ReplayInput& input) {
  for (const OpId op : input.graph.op_ids()) {
    if (input.graph.def(op).collective == Collective::kNone) continue;
    const std::optional<NetworkOp> transfer = input.transfer(op, 0, 1);
    if (transfer && !is_alike(*transfer, *input.network)) return false;
  }
  return true;
}

}  // namespace

Engine::Engine(const ReplayInput& input)
    : input_(input),
      ranks_(static_cast<size_t>(input.num_ranks)),
      edges_(input.graph, input.schedule, &input.orders),
      lanes_(lanes_of(input)),
      together_(input.graph.num_ops()),
      announces_(input.graph.num_ops()),
      arbiter_of_(input.orders.lanes.size(), -1),
      may_meet_(lanes_may_meet(input)),
      latest_(latest_for(input.num_ranks * input.pipeline_ranks)),
      posts_(input.graph.num_ops() * ranks_) {
  // Throws RunError with the cycle, if there is one.
  std::vector<OpId> program = edges_.order(input.graph, input.schedule);
  if (input.host_ns) {
    host_order_.resize(static_cast<size_t>(input.pipeline_ranks));
    for (const OpId op : program) {
      host_order_[static_cast<size_t>(input.graph.op(op).pipeline_rank)].push_back(op);
    }
  }
  int32_t number = 0;
  for (const Arbiter& arbiter : arbiters(input.schedule)) {
    for (const LaneId lane : arbiter) arbiter_of_[lane.index()] = number;
    ++number;
  }
  for (const Hold& hold : input.schedule.holds) announces_[hold.from.index()] = true;
  size_t num_meetings = 0;
  for (size_t i = 0; i < together_.size(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (edges_.deps.preds[i].empty()) first_.push_back(op);
    if (input.graph.def(op).collective == Collective::kNone) continue;
    const Group group = simulated_groups(input.graph, op, input.num_ranks);
    const size_t num_groups = ranks_ / static_cast<size_t>(group.size);
    together_[i] = {.group = group,
                    .first = num_meetings,
                    .num_groups = num_groups,
                    .num_chunks = num_chunks(input.graph, input.schedule, op)};
    num_meetings += num_groups;
    const bool handoff = input.graph.def(op).collective == Collective::kHandoff;
    may_meet_ = may_meet_ || (num_groups > 1 && !handoff);
  }
  meetings_.resize(num_meetings);
}

void Engine::reset() {
  arbiters_.clear();
  for (const Arbiter& arbiter : arbiters(input_.schedule)) {
    arbiters_.emplace_back(input_.graph, input_.schedule, arbiter);
  }
  for (size_t i = 0; i < together_.size(); ++i) {
    Together& t = together_[i];
    t.groups_waiting = t.num_groups;
    std::fill_n(meetings_.begin() + static_cast<std::ptrdiff_t>(t.first), t.num_groups,
                Meeting{.ranks_waiting = static_cast<size_t>(t.group.size)});
    const Post start = {.waits = edges_.deps.preds[i].size() + (host_order_.empty() ? 0 : 1)};
    std::fill_n(posts_.begin() + static_cast<std::ptrdiff_t>(i * ranks_), ranks_, start);
  }
  const auto pipeline_ranks = static_cast<size_t>(input_.pipeline_ranks);
  hosts_.assign(host_order_.empty() ? 0 : pipeline_ranks * ranks_, {});
  sent_.assign(pipeline_ranks, {});
  wires_.clear();
  if (input_.network != nullptr && (input_.keep_links || may_meet_)) {
    const NetworkOptions sharing{.share = input_.network->share,
                                 .efficiency = input_.network->sharing_efficiency,
                                 .keep_use = input_.keep_links};
    const bool alike = all_alike(input_);
    for (size_t p = 0; p < pipeline_ranks; ++p) {
      wires_.push_back(std::make_unique<Wire>(*input_.network, sharing, alike, false));
    }
  }
  now_ = 0;
  num_over_ = 0;
  timeline_ = {};
  timeline_.num_ranks = input_.num_ranks * input_.pipeline_ranks;
  if (!host_order_.empty()) timeline_.host_ns.assign(hosts_.size(), 0);
  timeline_.spans.reserve(together_.size() * ranks_);
}

Timeline Engine::run() {
  reset();
  for (size_t number = 0; number < hosts_.size(); ++number) launch_on(number);
  if (hosts_.empty()) {
    for (const OpId op : first_) {
      for (size_t r = 0; r < ranks_; ++r) ready(op, r);
    }
  }
  std::vector<Done> ended;
  for (uint32_t round = 0;; ++round) {
    if (round % kLookEvery == 0) check_stop();
    Nanoseconds wire = kNever;
    size_t of = 0;  // the pipeline rank whose links have the next event
    for (size_t p = 0; p < wires_.size(); ++p) {
      const Nanoseconds next = wires_[p]->next_ns();
      if (next < wire) wire = next, of = p;
    }
    if (events_.empty() && wire == kNever) break;
    if (events_.empty() || wire <= events_.top().at) {
      set_now(wire);
      wires_[of]->advance(wire, ended);
      for (const Done& done : ended) {
        end_transfer(sent_[of][done.op].first, sent_[of][done.op].second);
      }
      ended.clear();
      continue;
    }
    const Event event = events_.top();
    events_.pop();
    set_now(event.at);
    take(event);
  }
  if (num_over_ < posts_.size()) fail_stuck();
  if (!wires_.empty() && input_.keep_links) {
    timeline_.links = link_spans(*wires_[0], wires_[0]->take_use());
  }
  const auto key = [](const Span& s) { return std::tie(s.begin, s.rank, s.lane, s.op); };
  std::sort(timeline_.spans.begin(), timeline_.spans.end(),
            [&key](const Span& a, const Span& b) { return key(a) < key(b); });
  return std::move(timeline_);
}

void Engine::set_now(Nanoseconds at) {
  if (at > latest_) {
    const auto order = [](const Span& a, const Span& b) { return a.end < b.end; };
    const auto& spans = timeline_.spans;
    const auto last = std::max_element(spans.begin(), spans.end(), order);
    fail_time(fmt::format("a step on {} rank{}, up to op '{}',", ranks_,
                          ranks_ == 1 ? "" : "s that differ",
                          last == spans.end() ? "" : input_.graph.op(last->op).name),
              static_cast<double>(at));
  }
  now_ = at;
}

void Engine::take(const Event& event) {
  const OpId op(event.which);
  const auto number = static_cast<size_t>(event.number);
  switch (event.kind) {
    case Kind::kEnd:
      if (together(op)) return end_transfer(op, number);
      // An op that takes no time begins its holds here, before what waits for it is posted.
      if (announces_[op.index()]) begun(op);
      return over(op, number);
    case Kind::kLaunch:
      post(op, number).launched = now_;
      return arrive(op, number);
    case Kind::kBegin:
      return begun(op);
    case Kind::kSend:
      return send(op, number);
    case Kind::kChoose:
      return choose(static_cast<size_t>(event.which));
  }
}

void Engine::begun(OpId op) {
  for (ArbiterState& arbiter : arbiters_) arbiter.begun(op);
}

/// The host of a rank launches ops up to one whose end it waits for, or to the last.
void Engine::launch_on(size_t number) {
  HostState& host = hosts_[number];
  const std::vector<OpId>& order = host_order_[number / ranks_];
  while (host.next < order.size()) {
    const OpId op = order[host.next++];
    const Nanoseconds ns = input_.host_ns(op);
    host.free = checked_ns(host.free + ns, [&] {
      return fmt::format("the host's launches up to op '{}'", input_.graph.op(op).name);
    });
    push(host.free, Kind::kLaunch, op.value, number % ranks_);
    if (input_.host_waits(op)) return;
  }
}

/// One of those for which the op waits is over.
void Engine::arrive(OpId op, size_t rank) {
  if (--post(op, rank).waits == 0) ready(op, rank);
}

/// Everything that the op waits for on this rank is over: the rank posts the op.
void Engine::ready(OpId op, size_t rank) {
  Post& mine = post(op, rank);
  // A lane with an arbiter does not wake when an op becomes ready but when the arbiter chooses it,
  // so the wake-up time (handoff_ns) is not added here.
  const bool chosen = arbiter_of_[lanes_[op.index()].index()] >= 0;
  mine.at = mine.lane_free;
  if (mine.others_over > mine.at) mine.at = mine.others_over + (chosen ? 0 : input_.handoff_ns);
  if (mine.launched > mine.at) {
    if (!together(op))
      timeline_.host_ns[static_cast<size_t>(global(op, rank))] += mine.launched - mine.at;
    mine.at = mine.launched;
  }
  if (!together(op)) return begin_compute(op, rank);
  const auto group =
      static_cast<size_t>(together_[op.index()].group.number(static_cast<int64_t>(rank)));
  Meeting& met = meeting(op, group);
  met.last_post = std::max(met.last_post, mine.at);
  if (--met.ranks_waiting == 0) all_posted(op, group);
}

void Engine::begin_compute(OpId op, size_t rank) {
  const Nanoseconds at = post(op, rank).at;
  const Nanoseconds ns = duration_ns(op, rank);
  if (announces_[op.index()] && ns > 0) push(at, Kind::kBegin, op.value);
  timeline_.spans.push_back({op, global(op, rank), lanes_[op.index()], at, at, at + ns,
                             input_.bytes ? input_.bytes(op, static_cast<int32_t>(rank)) : 0});
  push(at + ns, Kind::kEnd, op.value, rank);
}

/// All members of the group have posted the op. An arbiter waits for the other groups.
void Engine::all_posted(OpId op, size_t group) {
  const int32_t arbiter = arbiter_of_[lanes_[op.index()].index()];
  if (arbiter < 0) return begin_transfer(op, group, meeting(op, group).last_post);
  if (--together_[op.index()].groups_waiting > 0) return;
  ArbiterState& state = arbiters_[static_cast<size_t>(arbiter)];
  state.posted(op);
  if (!state.busy()) push(now_, Kind::kChoose, arbiter);
}

void Engine::choose(size_t number) {
  const auto transfer = arbiters_[number].next();
  if (!transfer) return;
  Together& t = together_[transfer->op.index()];
  t.groups_moving = t.num_groups;
  for (size_t g = 0; g < t.num_groups; ++g) begin_transfer(transfer->op, g, now_ + input_.pick_ns);
}

void Engine::begin_transfer(OpId op, size_t group, Nanoseconds at) {
  meeting(op, group).begin = at;
  if (!wires_.empty()) return push(at, Kind::kSend, op.value, group);
  push(at + alone_ns(op, group), Kind::kEnd, op.value, group);
}

/// Begins the group's next chunk of the op on the links.
void Engine::send(OpId op, size_t group) {
  const Nanoseconds ns = alone_ns(op, group);
  const Together& t = together_[op.index()];
  const auto rank = static_cast<int32_t>(t.group.first(static_cast<int64_t>(group)));
  std::optional<NetworkOp> transfer = input_.transfer(op, rank, t.num_chunks);
  const Nanoseconds closed = transfer && ns > 0 ? moe::alone_ns(*input_.network, *transfer) : 0;
  if (closed == 0) return push(now_ + ns, Kind::kEnd, op.value, group);
  const auto p = static_cast<size_t>(input_.graph.op(op).pipeline_rank);
  wires_[p]->begin(std::move(*transfer), static_cast<double>(now_),
                   static_cast<double>(ns) / static_cast<double>(closed));
  sent_[p].emplace_back(op, group);
}

Nanoseconds Engine::duration_ns(OpId op, size_t rank) const {
  const Nanoseconds ns = input_.duration_ns(op, static_cast<int32_t>(rank));
  MOE_CHECK(ns >= 0, "replay: op '{}' takes {} ns, but a duration must be at least 0",
            input_.graph.op(op).name, ns);
  return checked_ns(ns, [&] { return fmt::format("op '{}'", input_.graph.op(op).name); });
}

/// Returns the duration of one chunk of the op when the group has the links for itself.
Nanoseconds Engine::alone_ns(OpId op, size_t group) const {
  Nanoseconds ns = 0;
  each_member(op, group, [&](size_t r) { ns = std::max(ns, duration_ns(op, r)); });
  const Together& t = together_[op.index()];
  const int64_t n = t.num_chunks;
  if (n == 1) return ns;
  const auto rank = static_cast<int32_t>(t.group.first(static_cast<int64_t>(group)));
  return input_.chunk_ns ? input_.chunk_ns(op, rank, n) : (ns + n - 1) / n;
}

/// A chunk has ended on all members of the group.
void Engine::end_transfer(OpId op, size_t group) {
  Together& t = together_[op.index()];
  Meeting& met = meeting(op, group);
  const int64_t n = t.num_chunks, c = met.chunk++;
  each_member(op, group, [&](size_t r) {
    const Bytes bytes = input_.bytes ? input_.bytes(op, static_cast<int32_t>(r)) : 0;
    const Bytes share = part_of(bytes, c + 1, n) - part_of(bytes, c, n);
    const Nanoseconds posted = c == 0 ? post(op, r).at : met.chunk_post;
    timeline_.spans.push_back({op, global(op, r), lanes_[op.index()], posted, met.begin, now_,
                               share, static_cast<int32_t>(c)});
    if (input_.graph.def(op).collective != Collective::kHandoff) return;
    // The other end waits for what it has no part in until the transfer begins.
    timeline_.spans.push_back(
        {op,
         static_cast<int32_t>(attr_int(input_.graph.op(op), "peer") * input_.num_ranks +
                              static_cast<int64_t>(r)),
         lanes_[op.index()], met.begin, met.begin, now_, 0, static_cast<int32_t>(c)});
  });
  met.chunk_post = now_;
  const int32_t arbiter = arbiter_of_[lanes_[op.index()].index()];
  if (arbiter >= 0 && --t.groups_moving == 0) {
    arbiters_[static_cast<size_t>(arbiter)].done();
    push(now_, Kind::kChoose, arbiter);
  }
  if (met.chunk == n) {
    each_member(op, group, [&](size_t r) { over(op, r); });
  } else if (arbiter < 0) {
    begin_transfer(op, group, now_);
  }
}

void Engine::over(OpId op, size_t rank) {
  ++num_over_;
  for (const OpId next : edges_.deps.succs[op.index()]) {
    Post& theirs = post(next, rank);
    const bool same_lane = lanes_[next.index()] == lanes_[op.index()];
    Nanoseconds& latest = same_lane ? theirs.lane_free : theirs.others_over;
    latest = std::max(latest, now_);
    arrive(next, rank);
  }
  if (!hosts_.empty() && input_.host_waits(op)) {
    HostState& mine = host(op, rank);
    mine.free = std::max(mine.free, now_);
    launch_on(static_cast<size_t>(global(op, rank)));
  }
}

void Engine::fail_stuck() const {
  for (const ArbiterState& arbiter : arbiters_) {
    if (arbiter.waiting().empty()) continue;
    throw run_error(
        "op '{}' is held back forever: a hold ends when another op is posted, which never happens; "
        "hold nothing back (priority {{ hold = false }}, or a discipline without hold)",
        input_.graph.op(arbiter.waiting()[0]).name);
  }
  MOE_CHECK(false,
            "replay: no event is left, but only {} of {} pairs of op and rank have ended; all must",
            num_over_, posts_.size());
}

}  // namespace moe
