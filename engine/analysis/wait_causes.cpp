#include "engine/analysis/wait_causes.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "engine/analysis/record.h"
#include "engine/graph/op_def.h"

namespace moe {

WaitCauses::WaitCauses(const Graph& graph, const Schedule& schedule, const Timeline& timeline)
    : graph_(graph),
      schedule_(schedule),
      num_ranks_(static_cast<size_t>(timeline.num_ranks)),
      deps_(dependencies(graph)),
      edges_into_(graph.num_ops()),
      arbitrated_(schedule.lanes.size()),
      on_lane_(num_ranks_ * schedule.lanes.size()),
      ends_(graph.num_ops() * num_ranks_),
      posted_(graph.num_ops() * num_ranks_) {
  for (const OrderEdge& edge : schedule.order_edges) edges_into_[edge.to.index()].push_back(&edge);
  for (const Arbiter& lanes : arbiters(schedule)) {
    for (const LaneId lane : lanes) arbitrated_[lane.index()] = lanes;
  }
  for (const Span& span : timeline.spans) {
    const auto rank = static_cast<size_t>(span.rank);
    on_lane_[rank * schedule.lanes.size() + span.lane.index()].push_back(&span);
    Nanoseconds& end = ends_[at(span.op, span.rank)];
    end = std::max(end, span.end);
    if (span.chunk == 0) post(span);
  }
  for (auto& spans : on_lane_) {
    std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
      return std::tie(a->begin, a->end) < std::tie(b->begin, b->end);
    });
  }
}

void WaitCauses::post(const Span& span) {
  const Group group = posts_together(graph_, span.op, static_cast<int64_t>(num_ranks_),
                                     !arbitrated_[span.lane.index()].empty());
  for (int64_t p = 0; p < group.size; ++p) {
    const auto rank = static_cast<int32_t>(group.member(span.rank, p));
    Posted& posted = posted_[at(span.op, rank)];
    if (span.post > posted.last) posted = {span.post, span.rank};
  }
}

/// Returns the last span on `lane` of the same rank that was over when `span` began; null if there
/// is none.
const Span* WaitCauses::before_on(LaneId lane, const Span& span) const {
  const auto& all =
      on_lane_[static_cast<size_t>(span.rank) * schedule_.lanes.size() + lane.index()];
  auto next = std::partition_point(all.begin(), all.end(),
                                   [&](const Span* s) { return s->begin <= span.begin; });
  while (next != all.begin()) {
    const Span* const before = *--next;
    if (before != &span && before->end <= span.begin) return before;
  }
  return nullptr;
}

std::string WaitCauses::of(const Span& span) const {
  std::string cause = before_begin(span);
  return cause.empty() && span.chunk == 0 ? before_post(span) : cause;
}

/// Returns what the span waited for after its rank had posted it; "" if it did not wait.
std::string WaitCauses::before_begin(const Span& span) const {
  if (graph_.def(span.op).lane != LaneKind::kComm || span.begin <= span.post) return {};
  const Posted& posted = posted_[at(span.op, span.rank)];
  const Span* carried = nullptr;
  for (const LaneId lane : arbitrated_[span.lane.index()]) {
    const Span* const before = before_on(lane, span);
    if (before == nullptr || before->op == span.op) continue;
    if (carried == nullptr || carried->end < before->end) carried = before;
  }
  const Nanoseconds from = std::max(span.post, span.chunk == 0 ? posted.last : 0);
  if (carried != nullptr && carried->end > from) {
    return fmt::format("lane {}, busy with {}", schedule_.lanes[carried->lane.index()].name,
                       graph_.op(carried->op).name);
  }
  if (span.chunk == 0 && posted.last > span.post) {
    return fmt::format("rank {}, which posted last", posted.rank);
  }
  return arbitrated_[span.lane.index()].empty() ? "" : "the choice of the next op";
}

/// Returns what the span waited for until its rank could post it.
std::string WaitCauses::before_post(const Span& span) const {
  const size_t op = span.op.index();
  Nanoseconds data = 0, order = 0;
  OpId needed;
  for (const OpId pred : deps_.preds[op]) {
    const Nanoseconds end = ends_[at(pred, span.rank)];
    if (end > data) std::tie(data, needed) = std::tuple(end, pred);
  }
  const OrderEdge* edge = nullptr;
  for (const OrderEdge* e : edges_into_[op]) {
    const Nanoseconds end = ends_[at(e->from, span.rank)];
    if (end > order) std::tie(order, edge) = std::tuple(end, e);
  }
  const Span* const before = schedule_.picks(span.lane) ? nullptr : before_on(span.lane, span);
  const Nanoseconds lane = before == nullptr ? 0 : before->end;
  if (needed.valid() && data >= std::max(order, lane)) {
    const bool follows = before != nullptr && before->op == needed;
    return follows ? "" : fmt::format("data of {}", graph_.op(needed).name);
  }
  if (edge != nullptr && order >= lane) {
    return fmt::format("order edge from {} (stage {})", graph_.op(edge->from).name, edge->stage);
  }
  if (before == nullptr) return {};
  return fmt::format("lane {}, busy with {}", schedule_.lanes[span.lane.index()].name,
                     graph_.op(before->op).name);
}

}  // namespace moe
