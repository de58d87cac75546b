#include <fmt/ranges.h>

#include <cmath>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/passes/axes.h"
#include "engine/passes/builtin.h"
#include "engine/passes/moe_layer.h"

namespace moe {
namespace {

/// The readers of every tensor.
std::vector<std::vector<OpId>> readers_of(const Graph& graph) {
  std::vector<std::vector<OpId>> readers(graph.tensors().size());
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (graph.removed(id)) continue;
    for (const TensorId t : graph.op(id).inputs) {
      if (t.valid()) readers[t.index()].push_back(id);
    }
  }
  return readers;
}

void refuse_counted_rows(const Graph& graph, OpId id, const PassContext& context) {
  const Op& op = graph.op(id);
  const bool irregular = attr_int(op, "irregular") != 0;
  if (!irregular && attr_string(op, "rows") != "used") return;
  throw user_error(
      "stage '{}': op '{}' works on counted rows (pass {}), and nobody counts the rows of a part "
      "of "
      "the capacity; the two exclude each other",
      context.stage, op.name, irregular ? "irregular_a2a" : "used_rows");
}

/// From the all-to-all to the experts along the one reader of each tensor to the all-to-all back.
std::vector<OpId> experts_chain(const Graph& graph, OpId first, const PassContext& context) {
  const std::vector<std::vector<OpId>> readers = readers_of(graph);
  std::vector<OpId> chain{first};
  refuse_counted_rows(graph, first, context);
  do {
    const std::vector<OpId>& next = readers[graph.out(chain.back()).index()];
    if (next.size() != 1) {
      throw user_error("stage '{}': the rows of op '{}' have {} readers, not one that leads back",
                       context.stage, graph.op(chain.back()).name, next.size());
    }
    chain.push_back(next[0]);
    refuse_counted_rows(graph, next[0], context);
  } while (!is_kind(graph, chain.back(), "all_to_all"));
  return chain;
}

int64_t degree_of(const PassContext& context) {
  const double degree = std::get<double>(context.options.at("degree"));
  if (degree != std::floor(degree)) {
    throw user_error("{}.degree = {}: a whole number is allowed", context.stage, degree);
  }
  return static_cast<int64_t>(degree);
}

}  // namespace

Graph capacity_pipeline(Graph graph, const PassContext& context) {
  const int64_t degree = degree_of(context);
  const size_t num_ops = graph.num_ops();
  for (size_t i = 0; i < num_ops && degree > 1; ++i) {
    const OpId first(static_cast<int64_t>(i));
    if (!is_kind(graph, first, "all_to_all") || attr_string(graph.op(first), "to") != "expert") {
      continue;
    }
    const std::vector<OpId> chain = experts_chain(graph, first, context);
    const TensorId slots = graph.op(first).inputs[0];  // [E, C, d]
    const int64_t capacity = graph.tensor(slots).shape[1];
    if (degree > capacity) {
      throw user_error("{}.degree = {}: op '{}' has a capacity of {}, so 1 to {} is allowed",
                       context.stage, degree, graph.op(first).name, capacity, capacity);
    }
    const std::string name = graph.op(first).name;
    const std::vector<int64_t> sizes = even_sizes(capacity, degree);
    std::vector<CutAxis> cuts{{slots, 1}, {graph.out(chain.back()), 1}};
    for (size_t c = 0; c + 1 < chain.size(); ++c) cuts.push_back({graph.out(chain[c]), 2});
    split_ops(graph, chain, cuts, sizes);
    context.log->push_back(
        {name, context.stage,
         fmt::format("capacity {} cut into parts of {}", capacity, fmt::join(sizes, ", "))});
  }
  return graph;
}

}  // namespace moe
