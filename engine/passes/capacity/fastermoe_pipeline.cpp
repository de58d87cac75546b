#include <cmath>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// Replaces the chain of padded slots of one layer by its rounds: S_j to the experts, C_j the
/// experts, R_j back.
class Rounds {
 public:
  Rounds(Graph& graph, const CapacityChain& chain, int64_t rounds)
      : graph_(graph), chain_(chain.ops), rounds_(rounds) {}

  void run() {
    const Op first = graph_.op(chain_.front()), last = graph_.op(chain_.back());
    const OpId split = add_like(graph_, first, ops::kSplitPeers, first.name + ".split",
                                {first.inputs[0]}, rounds());
    std::vector<TensorId> parts = graph_.op(split).outputs;
    // Order in the program: transfers S_0..S_n-1, experts C_0..C_n-1, transfers R_0..R_n-1.
    const std::span<const OpId> ops(chain_);
    send(ops.front(), parts);
    for (int64_t j = 0; j < rounds_; ++j) {
      for (const OpId id : ops.subspan(1, ops.size() - 2)) {
        follow(id, j, parts[static_cast<size_t>(j)]);
      }
    }
    send(ops.back(), parts);
    const OpId join = add_like(graph_, last, ops::kJoinPeers, last.name + ".join", parts, rounds());
    graph_.tensor(graph_.out(join)).held = graph_.tensor(last.outputs[0]).held;
    redirect(graph_, last.outputs[0], graph_.out(join));
    for (const OpId id : chain_) graph_.remove(id);
  }

 private:
  Attrs rounds() const {
    Attrs attrs = {{"rounds", rounds_}};
    attrs.merge(group_attrs(group_of(graph_, graph_.op(chain_.front())), graph_.num_ranks));
    return attrs;
  }

  /// Adds a copy of op `id` for round j. The copy reads `part` as its first input; `part` is then
  /// set to the output of the copy.
  void follow(OpId id, int64_t j, TensorId& part, Attrs more = {}) {
    const Op op = graph_.op(id);
    std::vector<TensorId> inputs = op.inputs;
    inputs[0] = part;
    more.merge(all_attrs(op));
    const OpId made =
        add_like(graph_, op, graph_.def(id), fmt::format("{}.p{}", op.name, j), inputs, more);
    graph_.op(made).part = static_cast<int32_t>(j);
    part = graph_.out(made);
    graph_.tensor(part).held = graph_.tensor(op.outputs[0]).held;
  }

  void send(OpId id, std::vector<TensorId>& parts) {
    for (int64_t j = 0; j < rounds_; ++j) {
      Attrs attrs = rounds();
      attrs["round"] = j;
      follow(id, j, parts[static_cast<size_t>(j)], std::move(attrs));
    }
  }

  Graph& graph_;
  const std::vector<OpId>& chain_;
  const int64_t rounds_;
};

/// Returns into how many groups of workers the ranks that exchange rows are divided.
int64_t groups_of(const Graph& graph, const Group& exchange, const PassContext& context) {
  const double given = std::get<double>(context.options.at("groups"));
  const int64_t ranks = exchange.size, per_node = context.cluster.devices_per_node;
  if (given != std::floor(given)) {
    throw user_error("{}.groups = {}: a whole number is allowed", context.stage, given);
  }
  const bool by_node =
      graph.num_ranks == context.cluster.num_devices() && ranks > per_node && ranks % per_node == 0;
  if (given == 0) return by_node ? ranks / per_node : ranks;
  const auto groups = static_cast<int64_t>(given);
  if (ranks % groups != 0) {
    throw user_error("{}.groups = {}: must divide the {} ranks that exchange rows", context.stage,
                     groups, ranks);
  }
  return groups;
}

void check_chain(const Graph& graph, const CapacityChain& chain, const Group& exchange,
                 const std::string& stage) {
  for (const OpId id : chain.ops) {
    const Op& op = graph.op(id);
    if (op.part >= 0) {
      throw user_error(
          "stage '{}': op '{}' is already part {} of a cut; an op can be cut only once", stage,
          op.name, op.part);
    }
    const Group group = group_of(graph, op);
    if (carries(graph, id, Payload::kRows) && group != exchange) {
      throw user_error(
          "stage '{}': op '{}' exchanges rows among {} of {} ranks (because of hierarchical_a2a); "
          "groups of workers need one all-to-all among all ranks that hold the experts",
          stage, op.name, group.size, exchange.size);
    }
  }
}

}  // namespace

/// FasterMoE's smart scheduling (He et al., PPoPP 2022; FastMoE's smart_schedule.h): the
/// all-to-alls are cut between groups of workers, not along the capacity. In S_j group g sends to
/// group g + j (modulo `groups`) and receives from group g - j; C_j are the experts on the rows of
/// S_j, and R_j takes the results back. The comm lane runs S_0..S_n-1, then R_0..R_n-1. The pass
/// runs before autodiff, so the backward is cut in the same way, but in the reverse order: round
/// n-1 first, which is FastMoE's round 0. Differences to FastMoE: its default is groups of 4
/// workers (FMOE_FASTER_GROUP_SIZE), and it needs no memory copies, whereas split_peers and
/// join_peers copy once each; with counted rows (irregular_a2a, placements) there are no copies.
/// Its shadowed experts are not part of this pass. The workers are the ranks that hold all experts
/// together; all groups of such ranks are cut alike. Throws UserError when `groups` does not divide
/// their number, for ops that are already cut and for transfers that are not among all of them.
Graph fastermoe_pipeline(Graph graph, const PassContext& context) {
  const Group exchange = context.model.grid(graph.num_ranks).over(Axis::kEp);
  if (exchange.size == 1) return graph;
  const int64_t groups = groups_of(graph, exchange, context);
  if (groups == 1) return graph;
  for (const CapacityChain& chain : capacity_chains(graph, context.stage)) {
    check_chain(graph, chain, exchange, context.stage);
    const std::string name = graph.op(chain.ops[0]).name;
    if (chain.counted) {
      std::vector<Attrs> rounds;
      for (int64_t j = 0; j < groups; ++j) rounds.push_back({{"rounds", groups}, {"round", j}});
      cut_rows(graph, chain, rounds);
    } else {
      Rounds(graph, chain, groups).run();
    }
    context.log->push_back({name, context.stage,
                            fmt::format("exchanged in {} rounds between groups of {} ranks", groups,
                                        exchange.size / groups)});
  }
  return graph;
}

}  // namespace moe
