// Cuts chains of counted rows into parts and joins their tensors.
#include <algorithm>
#include <map>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/row_cut.h"
#include "engine/passes/capacity/capacity_cut.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The state of one call of cut_rows.
class RowCutter {
 public:
  RowCutter(Graph& graph, const CapacityChain& chain, const std::vector<Attrs>& parts)
      : graph_(graph), chain_(chain.ops), parts_(parts) {}

  void run() {
    const Op first = graph_.op(chain_.front()), last = graph_.op(chain_.back());
    const TensorId counts = input_of(graph_, first, Role::kCounts);
    count_experts(input_of(graph_, first, Role::kRecvCounts));
    const OpId split =
        add_like(graph_, first, ops::kSplitRows, first.name + ".split", {counts, first.inputs[0]},
                 {{"parts", static_cast<int64_t>(parts_.size())}});
    std::vector<TensorId> rows = graph_.op(split).outputs;
    for (size_t begin = 0; begin < chain_.size();) {
      const size_t end = end_of_stage(begin);
      for (size_t p = 0; p < parts_.size(); ++p) {
        for (size_t i = begin; i < end; ++i) clone(chain_[i], p, rows[p]);
      }
      begin = end;
    }
    std::vector<TensorId> inputs{counts};
    inputs.insert(inputs.end(), rows.begin(), rows.end());
    const OpId whole = add_like(graph_, last, ops::kConcatRows, last.name + ".concat", inputs);
    graph_.tensor(graph_.out(whole)).held = graph_.tensor(last.outputs[0]).held;
    redirect(graph_, last.outputs[0], graph_.out(whole));
    for (const OpId id : chain_) graph_.remove(id);
  }

 private:
  /// Gives the experts that compute padded rows the number of rows in use, by which they are cut.
  void count_experts(TensorId received) {
    for (const OpId id : chain_) {
      const OpDef& def = graph_.def(id);
      MOE_CHECK(place_of(def.inputs, Role::kRecvCounts).has_value(),
                "op '{}' of kind {} must have an input of received counts to be cut by rows",
                graph_.op(id).name, def.name);
      if (!input_of(graph_, graph_.op(id), Role::kRecvCounts).valid()) {
        set_input(graph_, id, Role::kRecvCounts, received);
      }
    }
  }

  /// Returns the end of the ops of one lane kind that begin at `begin`: the parts of such a run
  /// come before those of the next, so that the transfer of part p + 1 is before the compute of
  /// part p.
  size_t end_of_stage(size_t begin) const {
    size_t end = begin + 1;
    while (end < chain_.size() && graph_.def(chain_[end]).lane == graph_.def(chain_[begin]).lane) {
      ++end;
    }
    return end;
  }

  /// Adds part p of an op. It reads `rows`, which is then set to its output.
  void clone(OpId id, size_t p, TensorId& rows) {
    const Op op = graph_.op(id);
    std::vector<TensorId> inputs = op.inputs;
    std::replace(inputs.begin(), inputs.end(), op.inputs[0], rows);
    Attrs attrs = parts_[p];
    attrs.merge(group_attrs(group_of(graph_, graph_.op(chain_[0])), graph_.num_ranks));
    attrs.merge(all_attrs(op));
    const OpId made = add_like(graph_, op, graph_.def(id), fmt::format("{}.p{}", op.name, p),
                               std::move(inputs), std::move(attrs));
    graph_.op(made).part = part_of_part(op, p, parts_.size());
    rows = graph_.out(made);
    graph_.tensor(rows).held = graph_.tensor(op.outputs[0]).held;
  }

  Graph& graph_;
  const std::vector<OpId>& chain_;
  const std::vector<Attrs>& parts_;
};

/// Returns an op's name without the suffixes ".p0" of parts.
std::string name_of_whole(const std::string& name) {
  std::string whole;
  for (size_t at = 0; at < name.size();) {
    size_t end = std::min(name.find('.', at + 1), name.size());
    const bool part = name.compare(at, 2, ".p") == 0 && end > at + 2 &&
                      std::all_of(name.begin() + static_cast<int64_t>(at) + 2,
                                  name.begin() + static_cast<int64_t>(end), ::isdigit);
    if (!part) whole += name.substr(at, end - at);
    at = end;
  }
  return whole;
}

/// The parts of one tensor, in program order.
struct Parts {
  TensorId counts;
  OpId last;  // the op that makes the last part
  std::vector<TensorId> tensors;
};

}  // namespace

void cut_rows(Graph& graph, const CapacityChain& chain, const std::vector<Attrs>& parts) {
  RowCutter(graph, chain, parts).run();
}

/// Puts the parts of each tensor that cut_rows() made, and their gradients, into one storage; ops
/// of another phase then read the whole tensor. Called once, after autodiff.
Graph join_row_parts(Graph graph, const PassContext&) {
  std::map<std::pair<std::string, size_t>, Parts> all;
  const std::vector<std::vector<OpId>> readers = readers_of(graph);
  const auto joined = [&](TensorId t) {
    return std::any_of(readers[t.index()].begin(), readers[t.index()].end(),
                       [&](OpId r) { return &graph.def(r) == &ops::kConcatRows; });
  };
  for (const OpId id : graph.op_ids()) {
    if (graph.op(id).is_dw || !ops::is_row_part(graph, graph.op(id))) continue;
    const Op& op = graph.op(id);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (output_of(graph, op, Role::kWeight) == op.outputs[o]) continue;  // not of rows
      Parts& parts = all[{name_of_whole(op.name), o}];
      parts.last = id;
      parts.counts = ops::counts_of_rows(graph, op);
      if (!joined(op.outputs[o])) parts.tensors.push_back(op.outputs[o]);
    }
  }
  if (all.empty()) return graph;
  std::vector<std::vector<OpId>> after(graph.num_ops());  // the new ops, by the op they follow
  for (const auto& [key, parts] : all) {
    if (parts.tensors.size() < 2) continue;
    const Op last = graph.op(parts.last);
    std::vector<TensorId> inputs{parts.counts};
    inputs.insert(inputs.end(), parts.tensors.begin(), parts.tensors.end());
    const OpId whole = add_like(graph, last, ops::kConcatRows,
                                output_name(key.first + ".rows", key.second), inputs);
    // A part's gradient is in use at least until the op that joins it. That of activations stays
    // behind: the weight gradients that read the whole then leave the first turn to the gradients
    // of the rows, on which the exchange waits.
    const bool gradient = last.phase == Phase::kBackward;
    (gradient ? after[parts.last.index()] : after.back()).push_back(whole);
    for (const TensorId t : parts.tensors) {
      for (const OpId reader : readers[t.index()]) {
        if (graph.op(reader).phase == last.phase) continue;
        std::replace(graph.op(reader).inputs.begin(), graph.op(reader).inputs.end(), t,
                     graph.out(whole));
      }
    }
  }
  std::vector<OpId> order;
  for (const OpId id : graph.op_ids(0, after.size())) {
    order.push_back(id);
    order.insert(order.end(), after[id.index()].begin(), after[id.index()].end());
  }
  return compact(with_order(graph, order));
}

}  // namespace moe
