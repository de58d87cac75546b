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

void Schedule::set_priority(OpId op, int64_t value) {
  priority.resize(lane_of.size());
  priority[op.index()] = value;
}

void Schedule::set_chunk(const Graph& graph, OpId op, Bytes bytes, std::string stage) {
  const Bytes message = message_bytes(graph, op);
  if (graph.def(op).collective == Collective::kNone) {
    throw user_error("op '{}' is a {}; only transfers can be cut into chunks", graph.op(op).name,
                     graph.def(op).name);
  }
  if (carries(graph, op, Payload::kActivations)) {
    throw user_error(
        "op '{}' ({}) cannot be cut into chunks; all-to-alls, sums of gradients and their halves "
        "can",
        graph.op(op).name, graph.def(op).name);
  }
  if (bytes <= 0 || bytes > message) {
    throw user_error(
        "op '{}': chunks of {} bytes are not allowed; give 1 to {}, the bytes of its message",
        graph.op(op).name, bytes, message);
  }
  constexpr int64_t kMostChunks = 1 << 20;  // a limit, since each chunk is an event on every rank
  if (bytes < (message - 1) / kMostChunks + 1) {
    throw user_error(
        "op '{}': chunks of {} bytes would cut its {} bytes into more than {} chunks; give more "
        "bytes per chunk",
        graph.op(op).name, bytes, message, kMostChunks);
  }
  chunk_bytes.resize(lane_of.size());
  chunk_stage.resize(lane_of.size());
  if (chunk_bytes[op.index()] != 0) {
    throw user_error(
        "op '{}' is already cut into chunks of {} bytes (stages '{}' and '{}'); a transfer can be "
        "cut once",
        graph.op(op).name, chunk_bytes[op.index()], chunk_stage[op.index()], stage);
  }
  chunk_bytes[op.index()] = bytes;
  chunk_stage[op.index()] = std::move(stage);
}

namespace {

void refuse_compute(const Lane& lane) {
  if (lane.kind == LaneKind::kComm) return;
  throw user_error(
      "lane '{}' is a {} lane; only comm lanes can pick their next op or share a network "
      "exclusively",
      lane.name, name_of(lane.kind));
}

/// Returns the chains of HappensBefore: first the lanes that run in order, then chains for the ops
/// of the other lanes, made by first fit. In a chain each op comes after an op that is over in
/// every execution when it begins.
LaneOrders chains_of(const Schedule& schedule, const LaneOrders& orders, const Precedence& edges,
                     const std::vector<OpId>& serial) {
  LaneOrders chains = orders;
  const size_t num_ops = schedule.lane_of.size();
  std::vector<int32_t> number(num_ops, -1);  // numbers the ops on lanes that pick; -1 for others
  int32_t count = 0;
  for (const OpId op : serial) {
    if (schedule.picks(schedule.lane_of[op.index()])) number[op.index()] = count++;
  }
  if (count == 0) return chains;
  for (size_t l = 0; l < chains.lanes.size(); ++l) {
    if (schedule.picks(LaneId(static_cast<int64_t>(l)))) chains.lanes[l].clear();
  }
  std::vector<std::vector<bool>> over(num_ops);  // per op: numbered ops that are over at its begin
  std::vector<std::vector<OpId>> picked;
  for (const OpId op : serial) {
    std::vector<bool>& mine = over[op.index()];
    mine.resize(static_cast<size_t>(count));
    for (const OpId before : edges.deps.preds[op.index()]) {
      const std::vector<bool>& theirs = over[before.index()];
      for (size_t i = 0; i < theirs.size(); ++i) {
        if (theirs[i]) mine[i] = true;
      }
      if (number[before.index()] >= 0) mine[static_cast<size_t>(number[before.index()])] = true;
    }
    if (number[op.index()] < 0) continue;
    const auto fits = [&](const std::vector<OpId>& chain) {
      return mine[static_cast<size_t>(number[chain.back().index()])];
    };
    const auto chain = std::find_if(picked.begin(), picked.end(), fits);
    if (chain != picked.end()) {
      chain->push_back(op);
    } else {
      picked.push_back({op});
    }
  }
  chains.lanes.insert(chains.lanes.end(), picked.begin(), picked.end());
  return chains;
}

}  // namespace

void Schedule::set_pick(LaneId id, Pick pick, std::string stage, Choose choose) {
  Lane& lane = lanes[id.index()];
  refuse_compute(lane);
  if (!lane.stage.empty()) {
    throw user_error(
        "lane '{}' already has a discipline; a lane can have only one (set by stages '{}' and "
        "'{}')",
        lane.name, lane.stage, stage);
  }
  lane.pick = pick;
  lane.choose = std::move(choose);
  lane.stage = std::move(stage);
}

void Schedule::share_exclusively(std::vector<LaneId> shared, std::string stage) {
  for (size_t i = 0; i < shared.size(); ++i) {
    const Lane& lane = lanes[shared[i].index()];
    refuse_compute(lane);
    if (std::count(shared.begin(), shared.end(), shared[i]) > 1) {
      throw user_error("exclusive: lane '{}' is listed twice; list each lane once", lane.name);
    }
    for (const Exclusive& other : exclusive) {
      if (std::count(other.lanes.begin(), other.lanes.end(), shared[i]) == 0) continue;
      throw user_error(
          "exclusive: lane '{}' is already in a group of exclusive lanes; a lane can be in only "
          "one (set by stages '{}' and '{}')",
          lane.name, other.stage, stage);
    }
  }
  exclusive.push_back({std::move(shared), std::move(stage)});
}

void renumber(Schedule& schedule, std::span<const OpId> now) {
  const auto reorder = [&](auto& values) {
    if (values.empty()) return;
    auto old = values;
    for (size_t i = 0; i < old.size(); ++i) values[now[i].index()] = std::move(old[i]);
  };
  reorder(schedule.lane_of);
  reorder(schedule.priority);
  reorder(schedule.chunk_bytes);
  reorder(schedule.chunk_stage);
  const auto rename = [&](OpId& op) { op = now[op.index()]; };
  for (OrderEdge& edge : schedule.order_edges) rename(edge.from), rename(edge.to);
  for (Hold& hold : schedule.holds) rename(hold.from), rename(hold.until);
  for (Setting& setting : schedule.settings) rename(setting.op);
}

const Exclusive* exclusive_with(const Schedule& schedule, LaneId lane) {
  for (const Exclusive& group : schedule.exclusive) {
    if (std::find(group.lanes.begin(), group.lanes.end(), lane) != group.lanes.end()) return &group;
  }
  return nullptr;
}

std::string set_by(const Schedule& schedule, OpId op, Setting::What what) {
  const auto set = std::find_if(schedule.settings.rbegin(), schedule.settings.rend(),
                                [&](const Setting& s) { return s.op == op && s.what == what; });
  return set == schedule.settings.rend() ? "" : set->stage;
}

Bytes message_bytes(const Graph& graph, OpId id) {
  const std::vector<TensorId>& inputs = graph.op(id).inputs;
  const Collective collective = graph.def(id).collective;
  // An op that moves experts has no fixed message: the placement decides how many experts it moves.
  if (collective == Collective::kNone || collective == Collective::kExperts || inputs.empty()) {
    return 0;
  }
  if (collective == Collective::kAllToAll) {  // other inputs: counts
    const Tensor &in = graph.tensor(inputs[0]), &out = graph.tensor(graph.out(id));
    if (in.stored_rows == 0) return graph.bytes(inputs[0]);
    // The side of the tokens has no more room than for its rows; that of the experts has.
    return std::min(stored_elements(in), stored_elements(out)) * dtype_bytes(in.dtype);
  }
  Bytes bytes = 0;
  for (const TensorId t : inputs) bytes += graph.bytes(t);
  return bytes;
}

int64_t num_chunks(const Graph& graph, const Schedule& schedule, OpId op) {
  const Bytes chunk = schedule.chunk_bytes.empty() ? 0 : schedule.chunk_bytes[op.index()];
  return chunk == 0 ? 1 : (message_bytes(graph, op) + chunk - 1) / chunk;
}

std::vector<Arbiter> arbiters(const Schedule& schedule) {
  std::vector<Arbiter> all;
  std::vector<bool> shared(schedule.lanes.size());
  for (const Exclusive& group : schedule.exclusive) {
    all.push_back(group.lanes);
    std::sort(all.back().begin(), all.back().end());
    for (const LaneId lane : group.lanes) shared[lane.index()] = true;
  }
  for (size_t l = 0; l < shared.size(); ++l) {
    const LaneId lane(static_cast<int64_t>(l));
    if (!shared[l] && schedule.picks(lane)) all.push_back({lane});
  }
  return all;
}

Schedule default_schedule(const Graph& graph) {
  Schedule schedule;
  schedule.lanes = {{"compute", LaneKind::kCompute}, {"comm", LaneKind::kComm}};
  schedule.lane_of.reserve(graph.num_ops());
  for (const Op& op : graph.ops()) {
    const LaneKind kind = graph.def(op).lane;
    if (kind == LaneKind::kHost && schedule.lanes.size() == 2)
      schedule.lanes.push_back({"host", kind});
    schedule.lane_of.emplace_back(static_cast<int64_t>(kind));
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
    : chain_(graph.num_ops(), -1), index_(graph.num_ops()) {
  const Precedence edges(graph, schedule, &orders);
  serial_ = edges.order(graph, schedule);
  chains_ = chains_of(schedule, orders, edges, serial_);
  clock_.resize(graph.num_ops() * num_chains());
  size_t placed = 0;
  for (size_t c = 0; c < num_chains(); ++c) {
    for (size_t i = 0; i < chains_.lanes[c].size(); ++i, ++placed) {
      const size_t op = chains_.lanes[c][i].index();
      MOE_CHECK(chain_[op] < 0, "op '{}' must be in the lane orders once, but is there twice",
                graph.ops()[op].name);
      chain_[op] = static_cast<int32_t>(c);
      index_[op] = static_cast<int32_t>(i);
    }
  }
  MOE_CHECK(placed == graph.num_ops(),
            "every op must be in the lane orders, but only {} of {} ops are", placed,
            graph.num_ops());
  for (const OpId op : serial_) {
    int32_t* mine = &clock_[op.index() * num_chains()];
    for (const OpId p : edges.deps.preds[op.index()]) {
      const std::span<const int32_t> theirs = clock(p);
      for (size_t c = 0; c < num_chains(); ++c) mine[c] = std::max(mine[c], theirs[c]);
      mine[chain(p)] = std::max(mine[chain(p)], index(p) + 1);
    }
  }
}

HappensBefore HappensBefore::among(std::span<const OpId> ops) const {
  std::vector<OpId> here(chain_.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    here[ops[i].index()] = OpId(static_cast<int64_t>(i));
  }
  HappensBefore some;
  some.chain_.resize(ops.size());
  some.index_.resize(ops.size());
  std::vector<std::vector<int32_t>> kept;  // by chain of `some`: how many of the first ops it keeps
  std::vector<size_t> from;                // by chain of `some`: which chain it is
  for (size_t c = 0; c < num_chains(); ++c) {
    std::vector<OpId> chain;
    std::vector<int32_t> counts{0};
    for (const OpId op : chains_.lanes[c]) {
      if (const OpId mine = here[op.index()]; mine.valid()) {
        some.chain_[mine.index()] = static_cast<int32_t>(from.size());
        some.index_[mine.index()] = static_cast<int32_t>(chain.size());
        chain.push_back(mine);
      }
      counts.push_back(static_cast<int32_t>(chain.size()));
    }
    if (chain.empty()) continue;
    some.chains_.lanes.push_back(std::move(chain));
    kept.push_back(std::move(counts));
    from.push_back(c);
  }
  some.clock_.resize(ops.size() * from.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::span<const int32_t> all = clock(ops[i]);
    for (size_t c = 0; c < from.size(); ++c) {
      some.clock_[i * from.size() + c] = kept[c][static_cast<size_t>(all[from[c]])];
    }
  }
  for (const OpId op : serial_) {
    if (here[op.index()].valid()) some.serial_.push_back(here[op.index()]);
  }
  return some;
}

std::vector<std::vector<OpId>> cross_lane_waits(const Graph& graph, const Schedule& schedule,
                                                const LaneOrders& orders) {
  const HappensBefore hb(graph, schedule, orders);
  const Precedence edges(graph, schedule);
  std::vector<std::vector<OpId>> waits(graph.num_ops());
  std::vector<OpId> latest(hb.num_chains());
  for (size_t c = 0; c < hb.num_chains(); ++c) {
    OpId before;  // the previous op on this lane; all ops for which it waited are over
    for (const OpId op : hb.chains().lanes[c]) {
      const bool in_order = !schedule.picks(schedule.lane_of[op.index()]);
      std::fill(latest.begin(), latest.end(), OpId());
      for (const OpId p : edges.deps.preds[op.index()]) {
        OpId& last = latest[hb.chain(p)];
        if (in_order && hb.chain(p) == c) continue;
        if (!last.valid() || hb.index(last) < hb.index(p)) last = p;
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
      if (in_order) before = op;
    }
  }
  return waits;
}

}  // namespace moe
