#include "engine/schedule/join.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/schedule/precedence.h"

namespace moe {
namespace {

class Joiner {
 public:
  explicit Joiner(std::span<const ScheduledGraph> programs)
      : programs_(programs),
        ops_(programs.size()),
        lanes_(programs.size()),
        all_{Graph(programs[0].graph.table()), {}} {}

  Joined run() {
    all_.graph.name = programs_[0].graph.name;
    all_.graph.num_ranks = programs_[0].graph.num_ranks;
    for (size_t p = 0; p < programs_.size(); ++p) add_lanes(p);
    for (size_t p = 0; p < programs_.size(); ++p) add_ops(p);
    for (size_t p = 0; p < programs_.size(); ++p) add_schedule(p);
    for (const auto& [key, op] : open_) {
      MOE_CHECK(false, "op '{}' has no other end in another pipeline rank", all_.graph.op(op).name);
    }
    return in_order();
  }

 private:
  void add_lanes(size_t p) {
    for (const Lane& lane : programs_[p].schedule.lanes) {
      if (lane.pick == Pick::kPolicy) {
        throw user_error(
            "lane '{}' (stage '{}') has a pick function, which a plan on several pipeline ranks "
            "cannot have yet; leave the stage out, or give grid.pp = 1",
            lane.name, lane.stage);
      }
      Lane mine = lane;
      mine.name = fmt::format("{} {}", lane.name, p + 1);
      for (size_t q = 0; q < programs_.size(); ++q) {
        if (lane.name == lane_to(static_cast<int64_t>(q)))
          mine.name = fmt::format("{} to {}", p + 1, q + 1);
        if (lane.name == lane_from(static_cast<int64_t>(q)))
          mine.name = fmt::format("{} to {}", q + 1, p + 1);
      }
      std::vector<Lane>& lanes = all_.schedule.lanes;
      const auto known = std::find_if(lanes.begin(), lanes.end(),
                                      [&](const Lane& l) { return l.name == mine.name; });
      lanes_[p].emplace_back(known - lanes.begin());
      if (known == lanes.end()) lanes.push_back(std::move(mine));
    }
  }

  void add_ops(size_t p) {
    const Graph& graph = programs_[p].graph;
    const auto rename = [&](std::string& name, std::unordered_set<std::string>& names) {
      if (names.insert(name).second) return;
      const size_t at = name.rfind(':');
      name.insert(std::min(at, name.size()), fmt::format(".p{}", p + 1));
      names.insert(name);
    };
    std::vector<TensorId> tensors;
    for (const Tensor& tensor : graph.tensors()) {
      Tensor copy = tensor;
      rename(copy.name, tensor_names_);
      tensors.push_back(all_.graph.add_tensor(std::move(copy)));
    }
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId id(static_cast<int64_t>(i));
      MOE_CHECK(!graph.removed(id), "join: op {} of pipeline rank {} is removed", i, p);
      if (graph.def(id).collective == Collective::kHandoff && meet(p, id, tensors)) continue;
      Op op = graph.op(id);
      rename(op.name, op_names_);
      op.pipeline_rank = static_cast<int32_t>(p);
      for (std::vector<TensorId>* list : {&op.inputs, &op.outputs}) {
        for (TensorId& t : *list) {
          if (t.valid()) t = tensors[t.index()];
        }
      }
      if (op.of.valid()) op.of = tensors[op.of.index()];
      ops_[p].push_back(all_.graph.append(std::move(op)));
      all_.schedule.lane_of.push_back(lanes_[p][programs_[p].schedule.lane_of[i].index()]);
    }
  }

  void add_schedule(size_t p) {
    const Schedule& from = programs_[p].schedule;
    Schedule& to = all_.schedule;
    const std::vector<OpId>& ops = ops_[p];
    const size_t n = all_.graph.num_ops();
    const auto copy = [&](const auto& values, auto& all) {
      if (values.empty()) return;
      all.resize(n);
      for (size_t i = 0; i < values.size(); ++i) all[ops[i].index()] = values[i];
    };
    copy(from.priority, to.priority);
    copy(from.chunk_bytes, to.chunk_bytes);
    copy(from.chunk_stage, to.chunk_stage);
    for (const OrderEdge& edge : from.order_edges) {
      to.before(ops[edge.from.index()], ops[edge.to.index()], edge.stage, edge.why);
    }
    for (const Hold& hold : from.holds) {
      to.holds.push_back({ops[hold.from.index()], ops[hold.until.index()], hold.stage});
    }
    for (Exclusive group : from.exclusive) {
      for (LaneId& lane : group.lanes) lane = lanes_[p][lane.index()];
      to.exclusive.push_back(std::move(group));
    }
    to.log.insert(to.log.end(), from.log.begin(), from.log.end());
    for (Setting setting : from.settings) {
      setting.op = ops[setting.op.index()];
      to.settings.push_back(std::move(setting));
    }
    pinned_.lanes.resize(to.lanes.size());
    const LaneOrders orders = lane_orders(programs_[p].graph, from);
    for (size_t lane = 0; lane < orders.lanes.size(); ++lane) {
      if (from.lanes[lane].kind != LaneKind::kCompute) continue;
      std::vector<OpId>& pinned = pinned_.lanes[lanes_[p][lane].index()];
      for (const OpId op : orders.lanes[lane]) pinned.push_back(ops[op.index()]);
    }
  }

  /// For one end of a transfer between pipeline ranks whose other end is there: completes the op,
  /// and returns true.
  bool meet(size_t p, OpId id, const std::vector<TensorId>& tensors) {
    const Op& op = programs_[p].graph.op(id);
    const auto key = std::tuple(attr_string(op, "what"), attr_int(op, "from_stage"),
                                attr_int(op, "to_stage"), op.phase, op.micro);
    const auto known = open_.find(key);
    if (known == open_.end()) {
      open_.emplace(key, OpId(static_cast<int64_t>(all_.graph.num_ops())));
      return false;
    }
    Op& there = all_.graph.op(known->second);
    int32_t peer = static_cast<int32_t>(p);
    for (const TensorId t : op.inputs) there.inputs.push_back(tensors[t.index()]);
    for (const TensorId t : op.outputs) there.outputs.push_back(tensors[t.index()]);
    if (op.inputs.empty()) {  // it receives what the op there sends
      there.kind = op.kind;
      there.attrs = op.attrs;
    } else if (op.outputs.empty()) {
      std::swap(there.pipeline_rank, peer);
    }
    there.attrs["peer"] = int64_t{peer};
    ops_[p].push_back(known->second);
    open_.erase(known);
    return true;
  }

  /// Renumbers the ops in an order in which they can run.
  Joined in_order() {
    const std::vector<OpId> order =
        Precedence(all_.graph, all_.schedule, &pinned_).order(all_.graph, all_.schedule);
    std::vector<OpId> now(order.size());  // by number in all_
    Joined joined{{Graph(all_.graph.table()), std::move(all_.schedule)}, {}, {}, lanes_};
    Graph& graph = joined.step.graph;
    Schedule& schedule = joined.step.schedule;
    graph.name = all_.graph.name;
    graph.num_ranks = all_.graph.num_ranks;
    for (const Tensor& tensor : all_.graph.tensors()) graph.add_tensor(tensor);
    joined.orders.lanes.resize(schedule.lanes.size());
    for (const OpId op : order) {
      now[op.index()] = graph.append(std::move(all_.graph.op(op)));
      joined.orders.lanes[schedule.lane_of[op.index()].index()].push_back(now[op.index()]);
    }
    renumber(schedule, now);
    for (std::vector<OpId>& ops : ops_) {
      for (OpId& op : ops) op = now[op.index()];
    }
    joined.ops = std::move(ops_);
    return joined;
  }

  const std::span<const ScheduledGraph> programs_;
  std::vector<std::vector<OpId>> ops_;
  std::vector<std::vector<LaneId>> lanes_;
  ScheduledGraph all_;
  LaneOrders pinned_;  // compute lanes, in the order of the programs
  std::unordered_set<std::string> op_names_, tensor_names_;
  /// Transfers of which one end is in all_: the op, by what, from, to, phase and micro-batch.
  std::map<std::tuple<std::string, int64_t, int64_t, Phase, int32_t>, OpId> open_;
};

}  // namespace

std::string lane_to(int64_t pipeline_rank) {
  return fmt::format("to {}", pipeline_rank + 1);
}
std::string lane_from(int64_t pipeline_rank) {
  return fmt::format("from {}", pipeline_rank + 1);
}

Joined join(std::span<const ScheduledGraph> programs) {
  MOE_CHECK(programs.size() > 1, "join: {} programs, must be at least 2", programs.size());
  return Joiner(programs).run();
}

}  // namespace moe
