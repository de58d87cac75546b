#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>

#include "engine/base/errors.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// Returns, for each tensor, the ops that overwrite it in place, in program order.
std::vector<std::vector<OpId>> mutators(const Graph& graph) {
  std::vector<std::vector<OpId>> mutator(graph.tensors().size());
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    for (const int m : mutated_inputs(graph, op)) {
      mutator[op.inputs[static_cast<size_t>(m)].index()].push_back(id);
    }
  }
  return mutator;
}

/// Returns, for each joined tensor (Piece::whole), the tensors in its storage that ops overwrite.
/// An op that reads the joined tensor also reads these tensors.
std::map<TensorId, std::vector<TensorId>> overwritten_in(
    const Graph& graph, const std::vector<std::vector<OpId>>& mutator) {
  std::map<TensorId, std::vector<TensorId>> held;
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    const auto persists = [&](TensorId t) {
      return t.valid() && (!mutator[t.index()].empty() || held.contains(t));
    };
    if (graph.def(op).pieces == nullptr ||
        std::none_of(op.inputs.begin(), op.inputs.end(), persists)) {
      continue;
    }
    for (const Piece& p : pieces(graph, op)) {
      if (!mutator[p.piece.index()].empty()) held[p.whole].push_back(p.piece);
      const auto inner = held.find(p.piece);
      if (inner == held.end()) continue;
      const std::vector<TensorId> tensors = inner->second;
      held[p.whole].insert(held[p.whole].end(), tensors.begin(), tensors.end());
    }
  }
  return held;
}

/// Returns the names of a cycle, "a -> b -> a", among the ops that topological_order() could not
/// add to its order (those with waiting > 0).
std::string cycle_text(const Graph& graph, const std::vector<std::vector<OpId>>& preds,
                       const std::vector<int32_t>& waiting, OpId start) {
  std::vector<OpId> path;
  std::vector<bool> seen(preds.size());
  OpId at = start;
  while (!seen[at.index()]) {
    seen[at.index()] = true;
    path.push_back(at);
    const std::vector<OpId>& from = preds[at.index()];
    at = *std::find_if(from.begin(), from.end(),
                       [&waiting](OpId p) { return waiting[p.index()] > 0; });
  }
  std::vector<std::string> names{graph.op(at).name};
  for (size_t i = path.size(); path[--i] != at;) names.push_back(graph.op(path[i]).name);
  names.push_back(graph.op(at).name);
  return fmt::format("{}", fmt::join(names, " -> "));
}

[[noreturn]] void fail_cycle(const Graph& graph, const Dependencies& deps,
                             std::span<const Edge> more_edges,
                             const std::vector<int32_t>& waiting) {
  std::vector<std::vector<OpId>> preds = deps.preds;
  for (const auto& [from, to] : more_edges) preds[to.index()].push_back(from);
  const auto first = std::find_if(waiting.begin(), waiting.end(), [](int32_t n) { return n > 0; });
  const OpId start(first - waiting.begin());
  throw user_error("graph '{}': ops form a cycle: {}", graph.name,
                   cycle_text(graph, preds, waiting, start));
}

}  // namespace

Dependencies dependencies(const Graph& graph) {
  const size_t n = graph.num_ops();
  Dependencies deps{std::vector<std::vector<OpId>>(n), std::vector<std::vector<OpId>>(n)};
  const std::vector<OpId> producer = graph.producers();
  const std::vector<std::vector<OpId>> mutator = mutators(graph);
  const std::map<TensorId, std::vector<TensorId>> held = overwritten_in(graph, mutator);
  for (const OpId id : graph.op_ids()) {
    for (const TensorId t : graph.op(id).inputs) {
      if (!t.valid()) continue;
      if (producer[t.index()].valid()) deps.preds[id.index()].push_back(producer[t.index()]);
      const auto before_overwriting = [&](TensorId kept) {
        const std::vector<OpId>& ops = mutator[kept.index()];
        auto next = std::find(ops.begin(), ops.end(), id);
        next = next == ops.end() ? ops.begin() : next + 1;
        if (next != ops.end()) deps.preds[next->index()].push_back(id);
      };
      before_overwriting(t);
      if (const auto parts = held.find(t); parts != held.end()) {
        std::for_each(parts->second.begin(), parts->second.end(), before_overwriting);
      }
    }
  }
  for (const OpId id : graph.op_ids()) {
    std::vector<OpId>& preds = deps.preds[id.index()];
    std::sort(preds.begin(), preds.end());
    preds.erase(std::unique(preds.begin(), preds.end()), preds.end());
    for (const OpId p : preds) deps.succs[p.index()].push_back(id);
  }
  return deps;
}

std::vector<OpId> topological_order(const Graph& graph, const Dependencies& deps,
                                    std::span<const Edge> more_edges) {
  const size_t n = graph.num_ops();
  std::vector<int32_t> waiting(n);
  std::vector<std::vector<OpId>> more(more_edges.empty() ? 0 : n);
  for (size_t i = 0; i < n; ++i) waiting[i] = static_cast<int32_t>(deps.preds[i].size());
  for (const auto& [from, to] : more_edges) {
    more[from.index()].push_back(to);
    ++waiting[to.index()];
  }
  std::priority_queue<OpId, std::vector<OpId>, std::greater<>> ready;
  size_t live = 0;
  for (const OpId id : graph.op_ids()) {
    ++live;
    if (waiting[id.index()] == 0) ready.push(id);
  }
  std::vector<OpId> order;
  order.reserve(live);
  const auto release = [&](OpId to) {
    if (--waiting[to.index()] == 0) ready.push(to);
  };
  while (!ready.empty()) {
    const OpId next = ready.top();
    ready.pop();
    order.push_back(next);
    for (const OpId s : deps.succs[next.index()]) release(s);
    if (!more.empty()) {
      for (const OpId s : more[next.index()]) release(s);
    }
  }
  if (order.size() != live) fail_cycle(graph, deps, more_edges, waiting);
  return order;
}

Reachability::Reachability(const Graph& graph, const Dependencies& deps,
                           std::span<const Edge> more_edges)
    : words_((graph.num_ops() + 63) / 64), bits_(graph.num_ops() * words_) {
  std::vector<std::vector<OpId>> more(more_edges.empty() ? 0 : graph.num_ops());
  for (const auto& [from, to] : more_edges) more[from.index()].push_back(to);
  const std::vector<OpId> order = topological_order(graph, deps, more_edges);
  const auto absorb = [this](OpId from, OpId to) {
    uint64_t* row = &bits_[from.index() * words_];
    const uint64_t* other = &bits_[to.index() * words_];
    for (size_t w = 0; w < words_; ++w) row[w] |= other[w];
    row[to.index() / 64] |= uint64_t{1} << (to.index() % 64);
  };
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    for (const OpId s : deps.succs[it->index()]) absorb(*it, s);
    if (!more.empty()) {
      for (const OpId s : more[it->index()]) absorb(*it, s);
    }
  }
}

bool Reachability::reaches(OpId from, OpId to) const {
  return (bits_[from.index() * words_ + to.index() / 64] >> (to.index() % 64)) & 1;
}

Graph compact(const Graph& graph) {
  return with_order(graph, topological_order(graph, dependencies(graph)));
}

Graph with_order(const Graph& graph, std::span<const OpId> order) {
  std::vector<bool> used(graph.tensors().size());
  for (const OpId id : order) {
    for (const TensorId t : graph.op(id).inputs) {
      if (t.valid()) used[t.index()] = true;
    }
    for (const TensorId t : graph.op(id).outputs) used[t.index()] = true;
  }
  Graph result(graph.table());
  result.name = graph.name;
  result.num_ranks = graph.num_ranks;
  std::vector<TensorId> renamed(used.size());
  for (size_t t = 0; t < used.size(); ++t) {
    const Tensor& tensor = graph.tensors()[t];
    const bool persistent =
        tensor.kind != TensorKind::kActivation && tensor.kind != TensorKind::kGradient;
    if (used[t] || persistent) renamed[t] = result.add_tensor(tensor);
  }
  for (const OpId id : order) {
    Op op = graph.op(id);
    for (TensorId& t : op.inputs) {
      if (t.valid()) t = renamed[t.index()];
    }
    for (TensorId& t : op.outputs) t = renamed[t.index()];
    if (op.of.valid()) op.of = renamed[op.of.index()];
    result.append(std::move(op));
  }
  return result;
}

}  // namespace moe
