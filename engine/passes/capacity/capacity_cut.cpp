#include "engine/passes/capacity/capacity_cut.h"

#include <fmt/ranges.h>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/rules.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/partition/axes.h"

namespace moe {
namespace {

bool is_counted(const Graph& graph, OpId exchange) {
  return graph.op(exchange).rows.irregular;
}

/// Returns the ops from `first` to the all-to-all back to the source ranks, following the only
/// reader of each output. Throws UserError when an output has not exactly one reader.
std::vector<OpId> chain_from(const Graph& graph, OpId first,
                             const std::vector<std::vector<OpId>>& readers,
                             const std::string& stage) {
  std::vector<OpId> chain{first};
  do {
    const std::vector<OpId>& next = readers[graph.out(chain.back()).index()];
    if (next.size() != 1) {
      throw user_error(
          "stage '{}': the output of op '{}' has {} readers; a cut along the capacity needs "
          "exactly one",
          stage, graph.op(chain.back()).name, next.size());
    }
    if (carries(graph, next[0], Payload::kRows) && graph.op(next[0]).rows.to_expert()) {
      throw user_error(
          "stage '{}': op '{}' is followed by '{}', a second all-to-all step to the experts; list "
          "the stage that cuts before the stage that makes steps (hierarchical_a2a)",
          stage, graph.op(chain.back()).name, graph.op(next[0]).name);
    }
    chain.push_back(next[0]);
    const Op& op = graph.op(next[0]);
    if (attr_string(op, "rows") != "used" || is_counted(graph, first)) continue;
    throw user_error(
        "stage '{}': op '{}' computes only rows in use (because of used_rows), but the all-to-all "
        "'{}' carries padded slots, which are cut at other places; add irregular_a2a",
        stage, op.name, graph.op(first).name);
  } while (!carries(graph, chain.back(), Payload::kRows));
  return chain;
}

}  // namespace

std::vector<CapacityChain> capacity_chains(const Graph& graph, const std::string& stage) {
  const std::vector<std::vector<OpId>> readers = readers_of(graph);
  std::vector<CapacityChain> chains;
  for (const OpId first : graph.op_ids()) {
    if (!carries(graph, first, Payload::kRows) || !graph.op(first).rows.to_expert()) {
      continue;
    }
    chains.push_back({chain_from(graph, first, readers, stage),
                      graph.tensor(graph.op(first).inputs[0]).shape[1], is_counted(graph, first)});
  }
  return chains;
}

double bytes_sent(const Graph& graph, const CapacityChain& chain) {
  const Op& first = graph.op(chain.ops[0]);
  const Tensor& slots = graph.tensor(first.inputs[0]);
  auto rows = static_cast<double>(num_elements(slots.shape) / slots.shape.back());
  for (const OpId gate : graph.op_ids()) {
    if (!is(graph, gate, MoeOp::kGate) || graph.op(gate).layer != first.layer) continue;
    if (!chain.counted) break;
    const Shape& choices = graph.tensor(output_of(graph, graph.op(gate), Role::kExpert)).shape;
    rows = std::min(rows, static_cast<double>(num_elements(choices)));
  }
  return rows * (chain.counted ? ops::share_of(first) : 1) *
         static_cast<double>(slots.shape.back() * dtype_bytes(slots.dtype));
}

std::string cut_text(const CapacityChain& chain, const std::vector<int64_t>& sizes,
                     std::string_view verb) {
  if (chain.counted) return fmt::format("rows in use {} {} parts", verb, sizes.size());
  return fmt::format("capacity {} {} parts of {}", chain.capacity, verb, fmt::join(sizes, ", "));
}

std::vector<int64_t> cut_capacity(Graph& graph, const CapacityChain& chain, int64_t degree) {
  const std::vector<OpId>& ops = chain.ops;
  const std::vector<int64_t> sizes = even_sizes(chain.capacity, degree);
  if (chain.counted) {
    std::vector<Attrs> parts;
    for (int64_t p = 0; p < degree; ++p) {
      parts.push_back({{"cut", ops::nested_cut(graph.op(ops[0]), p, degree)}});
    }
    cut_rows(graph, chain, parts);
    return sizes;
  }
  std::vector<CutAxis> cuts{{graph.op(ops[0]).inputs[0], 1}, {graph.out(ops.back()), 1}};
  for (size_t c = 0; c + 1 < ops.size(); ++c) cuts.push_back({graph.out(ops[c]), 2});
  split_ops(graph, ops, cuts, sizes);
  return sizes;
}

}  // namespace moe
