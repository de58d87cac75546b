#include "engine/graph/edit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {

void redirect(Graph& graph, TensorId from, TensorId to, std::span<const OpId> but) {
  for (const OpId id : graph.op_ids()) {
    if (std::find(but.begin(), but.end(), id) != but.end()) continue;
    std::replace(graph.op(id).inputs.begin(), graph.op(id).inputs.end(), from, to);
  }
}

OpId add_like(Graph& graph, const Op& of, const OpDef& def, std::string name,
              std::vector<TensorId> inputs, Attrs attrs) {
  const auto [segment, layer] = std::pair(of.segment, of.layer);  // `of` may be in the graph
  const OpId made =
      graph.add_op(def, std::move(name), std::move(inputs), std::move(attrs), of.phase);
  graph.op(made).segment = segment;
  graph.op(made).layer = layer;
  return made;
}

int32_t part_of_part(const Op& op, size_t part, size_t parts) {
  return std::max(op.part, 0) * static_cast<int32_t>(parts) + static_cast<int32_t>(part);
}

namespace {

/// The state of one call of split_ops.
class Splitter {
 public:
  Splitter(Graph& graph, std::span<const OpId> ops, std::span<const CutAxis> cuts,
           std::span<const int64_t> sizes)
      : graph_(graph), ops_(ops), sizes_(sizes), clones_(sizes.size()) {
    for (const CutAxis& cut : cuts) axis_[cut.tensor] = cut.axis;
    for (const OpId id : ops) {
      for (const TensorId t : graph.op(id).outputs) inside_[t] = id;
    }
  }

  std::vector<std::vector<OpId>> run() {
    check();
    const std::vector<TensorId> kept = outputs_read_outside();
    for (size_t begin = 0; begin < ops_.size();) {
      const size_t end = end_of_stage(begin);
      for (size_t p = 0; p < sizes_.size(); ++p) {
        for (size_t i = begin; i < end; ++i) clones_[p].push_back(clone(ops_[i], p));
      }
      begin = end;
    }
    for (const OpId id : ops_) graph_.remove(id);
    for (const TensorId t : kept) put_together(t);
    return clones_;
  }

 private:
  void check() const {
    if (ops_.empty() || sizes_.empty()) {
      throw user_error(
          "split: there are {} ops and {} sizes of parts, but there must be at least 1 of each",
          ops_.size(), sizes_.size());
    }
    const int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
    for (const auto& [t, axis] : axis_) {
      if (axis < 0) continue;
      const Tensor& tensor = graph_.tensor(t);
      if (static_cast<size_t>(axis) >= tensor.shape.size()) {
        throw user_error("split: tensor '{}' {} has no axis {} (from 1)", tensor.name,
                         shape_text(tensor.shape), axis + 1);
      }
      if (tensor.shape[static_cast<size_t>(axis)] != total) {
        throw user_error(
            "split: sizes sum to {}, but axis {} (from 1) of tensor '{}' {} has length {}; both "
            "must be equal",
            total, axis + 1, tensor.name, shape_text(tensor.shape),
            tensor.shape[static_cast<size_t>(axis)]);
      }
    }
  }

  int axis(TensorId t) const {
    const auto found = axis_.find(t);
    return found == axis_.end() ? -1 : found->second;
  }

  /// Returns the end of the longest sequence of ops in ops_ that starts at `begin` and has one lane
  /// kind. Clones of all parts are made for one such sequence before the next sequence, so that in
  /// program order the transfer of part p + 1 is before the compute of part p.
  size_t end_of_stage(size_t begin) const {
    size_t end = begin + 1;
    while (end < ops_.size() && graph_.def(ops_[end]).lane == graph_.def(ops_[begin]).lane) ++end;
    return end;
  }

  std::vector<TensorId> outputs_read_outside() const {
    std::vector<TensorId> found;
    for (const OpId id : graph_.op_ids()) {
      if (std::find(ops_.begin(), ops_.end(), id) != ops_.end()) continue;
      for (const TensorId t : graph_.op(id).inputs) {
        if (!inside_.contains(t)) continue;
        if (axis(t) < 0) {
          throw user_error(
              "split: op '{}' outside the chain reads tensor '{}', so an axis along which it is "
              "cut must be given",
              graph_.op(id).name, graph_.tensor(t).name);
        }
        found.push_back(t);
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }

  OpId clone(OpId id, size_t p) {
    const Op op = graph_.op(id);
    std::vector<TensorId> inputs;
    for (size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(part_of_input(op, i, p));
    const OpId made = add_like(graph_, op, graph_.def(op), fmt::format("{}.p{}", op.name, p),
                               std::move(inputs), all_attrs(op));
    inherit(made, op);
    graph_.op(made).part = part_of_part(op, p, sizes_.size());
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      const TensorId t = graph_.out(made, i);
      graph_.tensor(t).held = graph_.tensor(op.outputs[i]).held;
      check_length(op.outputs[i], t, p);
      parts_[op.outputs[i]].push_back(t);
    }
    return made;
  }

  void check_length(TensorId whole, TensorId part, size_t p) const {
    const int at = axis(whole);
    if (at < 0) return;
    const Tensor& tensor = graph_.tensor(part);
    if (tensor.shape[static_cast<size_t>(at)] != sizes_[p]) {
      throw user_error("split: axis {} (from 1) of part '{}' {} must have length {}", at + 1,
                       tensor.name, shape_text(tensor.shape), sizes_[p]);
    }
  }

  TensorId part_of_input(const Op& op, size_t i, size_t p) {
    const TensorId t = op.inputs[i];
    if (!t.valid() || (!inside_.contains(t) && axis(t) < 0)) return t;
    if (!inside_.contains(t) && !parts_.contains(t)) cut(op, i);
    const std::vector<TensorId>& parts = parts_[t];
    if (p >= parts.size()) {
      throw user_error("split: op '{}' is listed before the producer of its input '{}'", op.name,
                       graph_.tensor(t).name);
    }
    return parts[p];
  }

  void cut(const Op& reader, size_t i) {
    const TensorId t = reader.inputs[i];
    const OpId made = add_like(
        graph_, reader, graph_.table().basic(BasicOp::kSplit),
        fmt::format("{}.split{}", reader.name, i), {t},
        {{"axis", int64_t{axis(t)}}, {"sizes", fmt::format("{}", fmt::join(sizes_, ","))}});
    inherit(made, reader);
    parts_[t] = graph_.op(made).outputs;
  }

  void put_together(TensorId t) {
    const Op op = graph_.op(inside_[t]);
    const auto i = std::find(op.outputs.begin(), op.outputs.end(), t) - op.outputs.begin();
    const OpId made =
        add_like(graph_, op, graph_.table().basic(BasicOp::kConcat),
                 fmt::format("{}.concat{}", op.name, i), parts_[t], {{"axis", int64_t{axis(t)}}});
    inherit(made, op);
    graph_.tensor(graph_.out(made)).held = graph_.tensor(t).held;
    redirect(graph_, t, graph_.out(made));
  }

  void inherit(OpId made, const Op& from) {
    Op& op = graph_.op(made);
    op.is_dw = from.is_dw;
    op.of = from.of;
  }

  Graph& graph_;
  std::span<const OpId> ops_;
  std::span<const int64_t> sizes_;
  std::vector<std::vector<OpId>> clones_;  // indexed by part
  std::map<TensorId, int> axis_;
  std::map<TensorId, OpId> inside_;  // key: an output of an op of the chain; value: this op
  std::map<TensorId, std::vector<TensorId>> parts_;
};

}  // namespace

std::vector<std::vector<OpId>> split_ops(Graph& graph, std::span<const OpId> ops,
                                         std::span<const CutAxis> cuts,
                                         std::span<const int64_t> sizes) {
  return Splitter(graph, ops, cuts, sizes).run();
}

}  // namespace moe
