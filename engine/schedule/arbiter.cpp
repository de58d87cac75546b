#include "engine/schedule/arbiter.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {

ArbiterState::ArbiterState(const Graph& graph, const Schedule& schedule, Arbiter lanes,
                           std::function<Choose(LaneId)> choose)
    : graph_(graph), schedule_(schedule), lanes_(std::move(lanes)) {
  for (const LaneId lane : lanes_) {
    const Lane& own = schedule_.lanes[lane.index()];
    const bool policy = own.pick == Pick::kPolicy;
    choose_.push_back(!policy ? nullptr : choose ? choose(lane) : own.choose);
    MOE_CHECK(!policy || choose_.back(),
              "lane '{}' picks its next op by a policy, so it must have a pick function", own.name);
  }
  for (const Hold& hold : schedule_.holds) {
    const LaneId lane = schedule_.lane_of[hold.until.index()];
    if (std::find(lanes_.begin(), lanes_.end(), lane) != lanes_.end()) mine_.push_back(&hold);
  }
}

void ArbiterState::begun(OpId op) {
  for (const Hold* hold : mine_) {
    if (hold->from == op && std::find(active_.begin(), active_.end(), hold) == active_.end()) {
      active_.push_back(hold);
    }
  }
}

void ArbiterState::posted(OpId op) {
  const auto at = std::lower_bound(waiting_.begin(), waiting_.end(), op);
  MOE_CHECK(at == waiting_.end() || *at != op,
            "arbiter: op '{}' was posted twice in a step, must be once", graph_.op(op).name);
  chunks_over_.insert(chunks_over_.begin() + (at - waiting_.begin()), 0);
  waiting_.insert(at, op);
  std::erase_if(active_, [op](const Hold* hold) { return hold->until == op; });
}

bool ArbiterState::held_back(OpId op) const {
  return std::any_of(active_.begin(), active_.end(), [&](const Hold* hold) {
    return schedule_.priority_of(op) < schedule_.priority_of(hold->until);
  });
}

OpId ArbiterState::named(LaneId id, const std::vector<OpId>& candidates) const {
  const auto at = std::find(lanes_.begin(), lanes_.end(), id) - lanes_.begin();
  const OpId op = choose_[static_cast<size_t>(at)](candidates);
  if (std::binary_search(candidates.begin(), candidates.end(), op)) return op;
  const Lane& lane = schedule_.lanes[id.index()];
  if (!op.valid()) {
    throw run_error(
        "lane '{}' (stage '{}'): its pick function returned no op, although '{}' is ready{}",
        lane.name, lane.stage, graph_.op(candidates[0]).name,
        candidates.size() > 1 ? fmt::format(" and {} more", candidates.size() - 1) : "");
  }
  throw run_error("lane '{}' (stage '{}'): its pick function returned op '{}', which is not ready",
                  lane.name, lane.stage,
                  op.index() < graph_.num_ops() ? graph_.op(op).name : "(no op of the graph)");
}

std::optional<ArbiterState::Transfer> ArbiterState::next() {
  if (in_flight_) return std::nullopt;
  std::vector<OpId> candidates;
  for (const OpId op : waiting_) {
    if (!held_back(op)) candidates.push_back(op);
  }
  for (const LaneId lane : lanes_) {
    if (schedule_.lanes[lane.index()].pick != Pick::kPolicy) continue;
    const auto on_lane = [&](OpId op) { return schedule_.lane_of[op.index()] == lane; };
    std::vector<OpId> own;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(own), on_lane);
    if (own.empty()) continue;
    const OpId choice = named(lane, own);
    std::erase_if(candidates, [&](OpId op) { return on_lane(op) && op != choice; });
  }
  const auto best = std::max_element(candidates.begin(), candidates.end(), [&](OpId a, OpId b) {
    return schedule_.priority_of(a) < schedule_.priority_of(b);  // on a tie the lowest op id
  });
  if (best == candidates.end()) return std::nullopt;
  const auto at = std::lower_bound(waiting_.begin(), waiting_.end(), *best) - waiting_.begin();
  in_flight_ =
      Transfer{*best, chunks_over_[static_cast<size_t>(at)], num_chunks(graph_, schedule_, *best)};
  return in_flight_;
}

bool ArbiterState::done() {
  MOE_CHECK(in_flight_,
            "arbiter: done() must be called while a transfer is in flight, but none is");
  const auto at = std::lower_bound(waiting_.begin(), waiting_.end(), in_flight_->op);
  const auto chunks = chunks_over_.begin() + (at - waiting_.begin());
  const bool over = ++*chunks == in_flight_->num_chunks;
  if (over) {
    waiting_.erase(at);
    chunks_over_.erase(chunks);
  }
  in_flight_.reset();
  return over;
}

}  // namespace moe
