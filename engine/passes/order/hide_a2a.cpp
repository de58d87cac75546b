// hide_a2a: orders the ops of two turns that run beside each other, the forward of one micro-batch
// and the backward of another, so that one computes while the rows of the other travel (Megatron-LM
// d98e8a6, --overlap-moe-expert-parallel-comm, with and without --delay-wgrad-compute; DualPipe,
// DeepSeek-V3, arXiv 2412.19437, section 3.2.1).
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "engine/graph/op_def.h"
#include "engine/passes/pass.h"
#include "engine/schedule/lane_search.h"
#include "engine/schedule/precedence.h"
#include "engine/schedule/unroll.h"

namespace moe {
namespace {

constexpr size_t kMostSearched = 1024;  // tasks of a pair; a search takes time with their square

/// The ops of a turn on a lane that keep their order: all but weight gradients that are delayed,
/// which follow only what they read.
struct Chain {
  int side = 0;  // 0: the forward, 1: the backward
  LaneId lane;
  bool dw = false;
  auto operator<=>(const Chain&) const = default;
};

/// Ops of a chain that run without a break, since nothing outside of it waits for an op of them but
/// the last, and none but the first waits for anything outside that the first does not wait for.
struct Piece {
  Chain chain;
  std::vector<size_t> ops;  // as the pair numbers them
  int64_t level = 0;        // exchanges of its turn that must be over before it
};

/// The ops of two turns.
class TurnPair {
 public:
  TurnPair(const Graph& graph, const Schedule& schedule, const Precedence& edges,
           const std::vector<size_t>& place, std::vector<OpId> ops, size_t forwards, bool delay_dw)
      : graph_(graph), schedule_(schedule), ops_(std::move(ops)), piece_of_(ops_.size()) {
    std::map<OpId, size_t> number;
    for (size_t i = 0; i < ops_.size(); ++i) number[ops_[i]] = i;
    preds_.resize(ops_.size());
    succs_.resize(ops_.size());
    std::map<Chain, std::vector<size_t>> chains;
    for (size_t i = 0; i < ops_.size(); ++i) {
      for (const OpId p : edges.deps.preds[ops_[i].index()]) {
        const auto found = number.find(p);
        if (found == number.end()) continue;
        preds_[i].push_back(found->second);
        succs_[found->second].push_back(i);
      }
      const LaneId lane = schedule.lane_of[ops_[i].index()];
      const bool dw = delay_dw && graph.op(ops_[i]).is_dw && lane.index() == 0;
      chain_of_.push_back({i < forwards ? 0 : 1, lane, dw});
      chains[chain_of_.back()].push_back(i);
    }
    // Weight gradients last, since their pieces depend on those of the others.
    for (const bool dw : {false, true}) {
      for (auto& [chain, members] : chains) {
        if (chain.dw != dw) continue;
        std::sort(members.begin(), members.end(), [&](size_t a, size_t b) {
          return place[ops_[a].index()] < place[ops_[b].index()];
        });
        cut(chain, members);
      }
    }
    set_levels();
  }

  std::vector<LaneTask> tasks(const CostModel& cost) const {
    std::vector<LaneTask> tasks;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      LaneTask task{.lane = static_cast<int32_t>(pieces_[p].chain.lane.index())};
      for (const size_t op : pieces_[p].ops) {
        task.time += static_cast<double>(cost.op_ns(graph_, ops_[op]));
      }
      task.needs.assign(needs_[p].begin(), needs_[p].end());
      tasks.push_back(std::move(task));
    }
    return tasks;
  }

  /// Returns the orders in which the two turns run one after the other.
  TaskOrders in_sequence() const {
    return sorted([](const Piece& p) { return std::tuple{p.chain.side, int64_t{0}, 0}; });
  }
  /// Returns those in which they take turns between exchanges: of each level the backward, its
  /// weight gradients, the forward.
  TaskOrders in_turns() const {
    return sorted([](const Piece& p) {
      return std::tuple{0, p.level, p.chain.side == 0 ? 2 : p.chain.dw ? 1 : 0};
    });
  }
  /// Returns the orders as sequences of ops.
  TaskOrders ops_in(const TaskOrders& orders) const {
    TaskOrders ops(orders.size());
    for (size_t lane = 0; lane < orders.size(); ++lane) {
      for (const int32_t p : orders[lane]) {
        const Piece& piece = pieces_[static_cast<size_t>(p)];
        for (const size_t op : piece.ops) ops[lane].push_back(static_cast<int32_t>(op));
      }
    }
    return ops;
  }
  size_t num_pieces() const { return pieces_.size(); }

 private:
  void cut(const Chain& chain, const std::vector<size_t>& members) {
    std::set<size_t> reads;  // what the piece waits for: ops, or of weight gradients pieces
    bool fresh = true;
    for (const size_t op : members) {
      std::set<size_t> more;
      for (const size_t p : preds_[op]) {
        if (chain_of_[p] != chain) more.insert(chain.dw ? piece_of_[p] : p);
      }
      if (fresh || !std::includes(reads.begin(), reads.end(), more.begin(), more.end())) {
        pieces_.push_back({chain, {}});
        reads = more;
      }
      piece_of_[op] = pieces_.size() - 1;
      pieces_.back().ops.push_back(op);
      fresh = std::any_of(succs_[op].begin(), succs_[op].end(), [&](size_t s) {
        return chain_of_[s].lane != chain.lane || chain_of_[s].side != chain.side;
      });
    }
  }

  /// Sets what each piece needs, and its level.
  void set_levels() {
    needs_.resize(pieces_.size());
    for (size_t p = 0; p < pieces_.size(); ++p) {
      const Chain& chain = pieces_[p].chain;
      const bool follows = p > 0 && pieces_[p - 1].chain == chain && !chain.dw;
      if (follows && !schedule_.picks(chain.lane)) needs_[p].insert(static_cast<int32_t>(p) - 1);
      for (const size_t op : pieces_[p].ops) {
        for (const size_t pred : preds_[op]) {
          if (piece_of_[pred] != p) needs_[p].insert(static_cast<int32_t>(piece_of_[pred]));
        }
      }
    }
    readers_.resize(pieces_.size());
    waits_.resize(pieces_.size());
    std::vector<size_t> ready;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      for (const int32_t n : needs_[p]) readers_[static_cast<size_t>(n)].push_back(p);
      waits_[p] = needs_[p].size();
      if (waits_[p] == 0) ready.push_back(p);
    }
    std::vector<size_t> waits = waits_;
    while (!ready.empty()) {
      const size_t p = ready.back();
      ready.pop_back();
      const bool compute = pieces_[p].chain.lane.index() == 0;
      for (const size_t r : readers_[p]) {
        const bool over = !compute && pieces_[r].chain.lane.index() == 0;
        pieces_[r].level = std::max(pieces_[r].level, pieces_[p].level + over);
        if (--waits[r] == 0) ready.push_back(r);
      }
    }
  }

  /// Returns the orders of lanes in one order of all pieces: each after what it needs, otherwise by
  /// its key.
  template <class Key>
  TaskOrders sorted(const Key& key) const {
    TaskOrders orders(schedule_.lanes.size());
    std::vector<size_t> waits = waits_;
    std::set<std::pair<decltype(key(pieces_[0])), size_t>> ready;
    const auto add = [&](size_t p) { ready.emplace(key(pieces_[p]), p); };
    for (size_t p = 0; p < pieces_.size(); ++p) {
      if (waits[p] == 0) add(p);
    }
    while (!ready.empty()) {
      const size_t p = ready.extract(ready.begin()).value().second;
      orders[pieces_[p].chain.lane.index()].push_back(static_cast<int32_t>(p));
      for (const size_t r : readers_[p]) {
        if (--waits[r] == 0) add(r);
      }
    }
    return orders;
  }

  const Graph& graph_;
  const Schedule& schedule_;
  const std::vector<OpId> ops_;
  std::vector<std::vector<size_t>> preds_, succs_;  // by op, among those of the pair
  std::vector<Chain> chain_of_;
  std::vector<size_t> piece_of_;
  std::vector<Piece> pieces_;
  std::vector<std::set<int32_t>> needs_;  // by piece
  std::vector<std::vector<size_t>> readers_;
  std::vector<size_t> waits_;  // by piece: how many it needs
};

/// The order of a pair, which pairs with equal ops share.
struct Found {
  TaskOrders ops;  // by lane, as the pair numbers them
  double length = 0, in_sequence = 0;
};

Found order_of(const TurnPair& pair, const PassContext& context) {
  TaskOrders best = pair.in_turns();
  if (!std::get<bool>(context.options.at("search"))) return {pair.ops_in(best)};
  const std::vector<LaneTask> tasks = pair.tasks(context.cost);
  double length = times_in(tasks, best).length;
  if (tasks.size() <= kMostSearched) {
    TaskOrders other = shortest_orders(tasks);
    const double found = times_in(tasks, other).length;
    if (found < length) {
      length = found;
      best = std::move(other);
    }
  }
  return {pair.ops_in(best), length, times_in(tasks, pair.in_sequence()).length};
}

/// Returns the ops of each turn, but transfers to other pipeline ranks.
std::vector<std::vector<OpId>> ops_of(const StepTurns& turns, const Graph& graph) {
  std::vector<std::vector<OpId>> ops(turns.turns.size() + 1);
  for (size_t i = 0; i < turns.turn_of.size(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (graph.removed(op) || graph.def(op).collective == Collective::kHandoff) continue;
    ops[static_cast<size_t>(turns.turn_of[i])].push_back(op);
  }
  return ops;
}

/// Adds the order of a pair, whose ops are `both`, to the schedule.
void add_order(const Found& found, const std::vector<OpId>& both, const Precedence& edges,
               const std::string& stage, const std::string& why, Schedule& schedule) {
  for (size_t lane = 0; lane < found.ops.size(); ++lane) {
    if (schedule.picks(LaneId(static_cast<int64_t>(lane)))) continue;
    const std::vector<int32_t>& order = found.ops[lane];
    for (size_t i = 1; i < order.size(); ++i) {
      const OpId from = both[static_cast<size_t>(order[i - 1])];
      const OpId to = both[static_cast<size_t>(order[i])];
      const std::vector<OpId>& waits = edges.deps.preds[to.index()];
      if (std::find(waits.begin(), waits.end(), from) != waits.end()) continue;
      schedule.before(from, to, stage, why);
    }
  }
}

}  // namespace

Schedule hide_a2a(const Graph& graph, Schedule schedule, const PassContext& context) {
  const StepTurns& turns = *context.turns;
  const std::vector<std::vector<OpId>> ops = ops_of(turns, graph);
  std::vector<size_t> place(graph.num_ops());  // on the lane
  for (const std::vector<OpId>& lane : lane_orders(graph, schedule).lanes) {
    for (size_t i = 0; i < lane.size(); ++i) place[lane[i].index()] = i;
  }
  const Precedence edges(graph, schedule);
  using Alike = std::vector<std::tuple<OpKind, LaneId, bool>>;
  std::map<std::pair<size_t, Alike>, Found> known;
  size_t pairs = 0;
  Found longest;
  for (size_t s = 0; s + 1 < turns.turns.size(); ++s) {
    if (!turns.turns[s].beside) continue;
    std::vector<OpId> both = ops[s];
    both.insert(both.end(), ops[s + 1].begin(), ops[s + 1].end());
    Alike alike;
    for (const OpId op : both) {
      alike.emplace_back(graph.op(op).kind, schedule.lane_of[op.index()], graph.op(op).is_dw);
    }
    const auto [at, fresh] = known.try_emplace({ops[s].size(), std::move(alike)});
    if (fresh) {
      const TurnPair pair(graph, schedule, edges, place, both, ops[s].size(),
                          std::get<bool>(context.options.at("delay_dw")));
      at->second = order_of(pair, context);
    }
    const Found& found = at->second;
    if (found.length > longest.length) longest = found;
    add_order(found, both, edges, context.stage,
              fmt::format("{} beside {}", turns.turns[s].text, turns.turns[s + 1].text), schedule);
    ++pairs;
  }
  if (pairs == 0) {
    context.skip(
        "no forward runs beside a backward; take a pipeline schedule in which they do "
        "(combined_1f1b, paired_1f1b, dualpipe, dualpipev), and several micro-batches");
    return schedule;
  }
  std::string text = fmt::format("{} pairs of turns", pairs);
  if (longest.length > 0) {
    text +=
        fmt::format("; by the times of ops the longest takes {:.3f} ms, one after the other {:.3f}",
                    longest.length / 1e6, longest.in_sequence / 1e6);
  }
  context.log->push_back({context.stage, context.stage, text, false});
  return schedule;
}

}  // namespace moe
