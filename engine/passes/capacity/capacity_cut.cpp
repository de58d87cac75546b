#include "engine/passes/capacity/capacity_cut.h"

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/partition/axes.h"

namespace moe {
namespace {

void refuse_counted_rows(const Graph& graph, OpId id, const std::string& stage) {
  const Op& op = graph.op(id);
  const bool irregular = attr_int(op, "irregular") != 0;
  if (!irregular && attr_string(op, "rows") != "used") return;
  throw user_error(
      "stage '{}': op '{}' works on counted rows (because of {}), but the rows of a part of the "
      "capacity are not counted; leave one of the two stages out",
      stage, op.name, counted_by(graph, id));
}

/// Returns the ops from `first` to the all-to-all back to the source ranks, following the only
/// reader of each output. Throws UserError when an output has not exactly one reader.
std::vector<OpId> chain_from(const Graph& graph, OpId first,
                             const std::vector<std::vector<OpId>>& readers,
                             const std::string& stage) {
  std::vector<OpId> chain{first};
  refuse_counted_rows(graph, first, stage);
  do {
    const std::vector<OpId>& next = readers[graph.out(chain.back()).index()];
    if (next.size() != 1) {
      throw user_error(
          "stage '{}': the output of op '{}' has {} readers; a cut along the capacity needs "
          "exactly one",
          stage, graph.op(chain.back()).name, next.size());
    }
    if (carries(graph, next[0], Payload::kRows) &&
        attr_string(graph.op(next[0]), "to") == "expert") {
      throw user_error(
          "stage '{}': op '{}' is followed by '{}', a second all-to-all step to the experts; list "
          "the stage that "
          "cuts before the stage that makes steps (hierarchical_a2a)",
          stage, graph.op(chain.back()).name, graph.op(next[0]).name);
    }
    chain.push_back(next[0]);
    refuse_counted_rows(graph, next[0], stage);
  } while (!carries(graph, chain.back(), Payload::kRows));
  return chain;
}

}  // namespace

std::vector<CapacityChain> capacity_chains(const Graph& graph, const std::string& stage) {
  const std::vector<std::vector<OpId>> readers = readers_of(graph);
  std::vector<CapacityChain> chains;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId first(static_cast<int64_t>(i));
    if (!carries(graph, first, Payload::kRows) || attr_string(graph.op(first), "to") != "expert") {
      continue;
    }
    chains.push_back({chain_from(graph, first, readers, stage),
                      graph.tensor(graph.op(first).inputs[0]).shape[1]});
  }
  return chains;
}

std::vector<int64_t> cut_capacity(Graph& graph, const CapacityChain& chain, int64_t degree) {
  const std::vector<OpId>& ops = chain.ops;
  const std::vector<int64_t> sizes = even_sizes(chain.capacity, degree);
  std::vector<CutAxis> cuts{{graph.op(ops[0]).inputs[0], 1}, {graph.out(ops.back()), 1}};
  for (size_t c = 0; c + 1 < ops.size(); ++c) cuts.push_back({graph.out(ops[c]), 2});
  split_ops(graph, ops, cuts, sizes);
  return sizes;
}

}  // namespace moe
