#include "engine/analysis/bubbles.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "engine/graph/op_def.h"
#include "engine/schedule/precedence.h"

namespace moe {
namespace {

class BubbleFinder {
 public:
  BubbleFinder(const Plan& plan, const Timeline& timeline)
      : plan_(plan),
        edges_(plan.graph, plan.schedule, &plan.orders),
        each_(static_cast<int32_t>(timeline.num_ranks / plan.spec.pipeline_ranks())),
        times_(plan.graph.num_ops() * static_cast<size_t>(each_)),
        computes_(static_cast<size_t>(timeline.num_ranks)) {
    for (const Span& span : timeline.spans) {
      Times& times = at(span.op, span.rank % each_);
      if (times.end < 0) times = {span.post, span.begin, span.end};
      times.begin = std::min(times.begin, span.begin);
      times.end = std::max(times.end, span.end);
      step_ = std::max(step_, span.end);
      if (plan.graph.def(span.op).lane == LaneKind::kCompute && span.end > span.begin) {
        computes_[static_cast<size_t>(span.rank)].push_back(&span);
      }
    }
  }

  std::vector<Bubbles> run() {
    std::vector<Bubbles> all(static_cast<size_t>(plan_.spec.pipeline_ranks()));
    for (size_t rank = 0; rank < computes_.size(); ++rank) {
      const auto r = static_cast<int32_t>(rank) % each_;
      Bubbles& mine = all[rank / static_cast<size_t>(each_)];
      const std::vector<const Span*>& spans = computes_[rank];
      if (spans.empty()) {
        mine.drain_ns += step_;
        continue;
      }
      mine.fill_ns += spans.front()->begin;
      mine.drain_ns += step_ - spans.back()->end;
      for (size_t i = 0; i < spans.size(); ++i) {
        mine.busy_ns += spans[i]->end - spans[i]->begin;
        if (i > 0) add_gap(*spans[i], r, spans[i - 1]->end, mine);
      }
    }
    for (Bubbles& mine : all) {
      for_each_field(mine, [&](const auto&, const auto&, Nanoseconds& ns) { ns /= each_; });
    }
    return all;
  }

 private:
  struct Times {
    Nanoseconds post = 0, begin = 0, end = -1;
  };
  Times& at(OpId op, int32_t r) {
    return times_[op.index() * static_cast<size_t>(each_) + static_cast<size_t>(r)];
  }
  bool is(OpId op, Collective collective) const {
    return plan_.graph.def(op).collective == collective;
  }

  /// Returns what the op waited for on the rank and ended last; an invalid id: nothing.
  OpId last_before(OpId op, int32_t r) {
    OpId last;
    for (const OpId p : edges_.deps.preds[op.index()]) {
      if (!last.valid() || at(p, r).end > at(last, r).end) last = p;
    }
    return last;
  }
  /// Returns the member of the op's group on rank r that posted it last.
  int32_t last_member(OpId op, int32_t r) {
    if (is(op, Collective::kNone) || is(op, Collective::kHandoff) || each_ == 1) return r;
    const Group group = group_of(plan_.graph, plan_.graph.op(op));
    int32_t last = r;
    for (int64_t p = 0; p < group.size; ++p) {
      const auto member = static_cast<int32_t>(group.member(r, p));
      if (at(op, member).post > at(op, last).post) last = member;
    }
    return last;
  }

  /// Adds the time from `from` to the begin of the compute op `span` on rank r, by cause.
  void add_gap(const Span& span, int32_t r, Nanoseconds from, Bubbles& mine) {
    const int32_t home = plan_.graph.op(span.op).pipeline_rank;
    const int32_t rank = r;
    Nanoseconds to = span.begin;  // what is behind has its cause
    const auto take = [&](Nanoseconds begin, Nanoseconds& sum) {
      begin = std::max(begin, from);
      if (begin >= to) return;
      sum += to - begin;
      to = begin;
    };
    OpId op = span.op;
    while (to > from) {
      const OpId before = last_before(op, r);
      if (!before.valid()) break;
      const Times& times = at(before, r);
      take(times.end, mine.host_ns);
      const bool other_member = r != rank;
      if (is(before, Collective::kHandoff)) {
        take(times.begin, mine.wire_ns);
      } else if (!is(before, Collective::kNone)) {
        take(times.begin, mine.exchange_ns);
        r = last_member(before, r);
      } else {
        const bool here = plan_.graph.op(before).pipeline_rank == home;
        take(times.begin, !here ? mine.stages_ns : other_member ? mine.members_ns : mine.host_ns);
      }
      op = before;
    }
    take(from, mine.host_ns);
  }

  const Plan& plan_;
  const Precedence edges_;
  const int32_t each_;                              // simulated ranks of a pipeline rank
  std::vector<Times> times_;                        // by op * each_ + rank
  std::vector<std::vector<const Span*>> computes_;  // by rank, ascending
  Nanoseconds step_ = 0;
};

}  // namespace

std::vector<std::vector<TurnTime>> turns_of(const Plan& plan, const Timeline& timeline) {
  using pipeline::Work;
  const PipelineSpec& spec = plan.spec.pipeline;
  std::vector<int32_t> stage_of_block;
  for (size_t s = 0; s < spec.layers.size(); ++s) {
    stage_of_block.insert(stage_of_block.end(), static_cast<size_t>(spec.layers[s]),
                          static_cast<int32_t>(s));
  }
  const auto each = static_cast<int32_t>(timeline.num_ranks / plan.spec.pipeline_ranks());
  // By stage, micro-batch and kind of work: begin and end.
  std::map<std::tuple<int64_t, int32_t, Work>, std::pair<Nanoseconds, Nanoseconds>> times;
  for (const Span& span : timeline.spans) {
    const Op& op = plan.graph.op(span.op);
    const bool turns = op.phase != Phase::kUpdate && op.segment != Segment::kUpdate;
    if (span.rank % each != 0 || plan.graph.def(op).lane != LaneKind::kCompute || !turns) continue;
    const int64_t stage = op.layer >= 0 ? stage_of_block[static_cast<size_t>(op.layer)]
                          : op.segment == Segment::kEmbed ? 0
                                                          : spec.shape.stages - 1;
    if (spec.shape.rank_of(stage, op.micro) != op.pipeline_rank) continue;  // made in every stage
    const Work work = op.phase == Phase::kForward ? Work::kF : op.is_dw ? Work::kW : Work::kI;
    const auto [known, fresh] =
        times.try_emplace({stage, op.micro, work}, std::pair{span.begin, span.end});
    known->second.first = std::min(known->second.first, span.begin);
    known->second.second = std::max(known->second.second, span.end);
  }
  std::vector<std::vector<TurnTime>> all;
  for (const pipeline::Turns& turns : spec.turns) {
    std::vector<TurnTime>& mine = all.emplace_back();
    for (const pipeline::Turn& turn : turns) {
      const int64_t stage = spec.shape.stage_of(std::ssize(all) - 1, turn.chunk);
      TurnTime time{fmt::format("{}{}{}", stage, name_of(turn.work), turn.micro)};
      for (const Work part : {Work::kF, Work::kI, Work::kW}) {
        const bool of_turn = part == turn.work || (turn.work == Work::kB && part != Work::kF);
        const auto found = times.find({stage, turn.micro, part});
        if (!of_turn || found == times.end()) continue;
        const auto [begin, end] = found->second;
        time.begin = time.end == 0 ? begin : std::min(time.begin, begin);
        time.end = std::max(time.end, end);
      }
      if (time.end > 0) mine.push_back(std::move(time));
    }
  }
  return all;
}

std::vector<Bubbles> bubbles_of(const Plan& plan, const Timeline& timeline) {
  return BubbleFinder(plan, timeline).run();
}

}  // namespace moe
