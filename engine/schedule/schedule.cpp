#include "engine/schedule/schedule.h"

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/schedule/precedence.h"

namespace moe {

LaneId Schedule::lane(std::string_view name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].name == name) return LaneId(static_cast<int64_t>(i));
    names.push_back(lanes[i].name);
  }
  throw UserError(unknown_name("lane", name, std::move(names)));
}

void Schedule::before(OpId from, OpId to, std::string stage, std::string why) {
  order_edges.push_back({from, to, std::move(stage), std::move(why)});
}

Schedule default_schedule(const Graph& graph) {
  Schedule schedule;
  schedule.lanes = {{"compute", LaneKind::kCompute}, {"comm", LaneKind::kComm}};
  schedule.lane_of.reserve(graph.num_ops());
  for (const Op& op : graph.ops()) {
    schedule.lane_of.emplace_back(graph.def(op).lane == LaneKind::kCompute ? 0 : 1);
  }
  return schedule;
}

LaneOrders lane_orders(const Graph& graph, const Schedule& schedule) {
  LaneOrders orders;
  orders.lanes.resize(schedule.lanes.size());
  for (const OpId op : Precedence(graph, schedule).order(graph, schedule)) {
    orders.lanes[schedule.lane_of[op.index()].index()].push_back(op);
  }
  return orders;
}

HappensBefore::HappensBefore(const Graph& graph, const Schedule& schedule, const LaneOrders& orders)
    : num_lanes_(orders.lanes.size()),
      lane_(graph.num_ops(), -1),
      index_(graph.num_ops()),
      clock_(graph.num_ops() * num_lanes_) {
  size_t placed = 0;
  for (size_t l = 0; l < num_lanes_; ++l) {
    for (size_t i = 0; i < orders.lanes[l].size(); ++i, ++placed) {
      const size_t op = orders.lanes[l][i].index();
      MOE_CHECK(lane_[op] < 0, "op '{}' twice in the lane orders", graph.ops()[op].name);
      lane_[op] = static_cast<int32_t>(l);
      index_[op] = static_cast<int32_t>(i);
    }
  }
  MOE_CHECK(placed == graph.num_ops(), "{} of {} ops have a lane", placed, graph.num_ops());
  const Precedence edges(graph, schedule, &orders);
  serial_ = edges.order(graph, schedule);
  for (const OpId op : serial_) {
    int32_t* mine = &clock_[op.index() * num_lanes_];
    for (const OpId p : edges.deps.preds[op.index()]) {
      const std::span<const int32_t> theirs = clock(p);
      for (size_t l = 0; l < num_lanes_; ++l) mine[l] = std::max(mine[l], theirs[l]);
      mine[lane(p)] = std::max(mine[lane(p)], index(p) + 1);
    }
  }
}

std::vector<std::vector<OpId>> cross_lane_waits(const Graph& graph, const Schedule& schedule,
                                                const LaneOrders& orders) {
  const HappensBefore hb(graph, schedule, orders);
  const Precedence edges(graph, schedule);
  std::vector<std::vector<OpId>> waits(graph.num_ops());
  std::vector<OpId> latest(hb.num_lanes());
  for (size_t l = 0; l < hb.num_lanes(); ++l) {
    OpId before;  // the op before on this lane: what it waited for is over
    for (const OpId op : orders.lanes[l]) {
      std::fill(latest.begin(), latest.end(), OpId());
      for (const OpId p : edges.deps.preds[op.index()]) {
        OpId& last = latest[hb.lane(p)];
        if (hb.lane(p) != l && (!last.valid() || hb.index(last) < hb.index(p))) last = p;
      }
      std::vector<OpId>& mine = waits[op.index()];
      for (const OpId p : latest) {
        if (!p.valid() || (before.valid() && hb.before(p, before))) continue;
        const bool implied = std::any_of(latest.begin(), latest.end(), [&](OpId other) {
          return other.valid() && hb.before(p, other);
        });
        if (!implied) mine.push_back(p);
      }
      std::sort(mine.begin(), mine.end());
      before = op;
    }
  }
  return waits;
}

}  // namespace moe
