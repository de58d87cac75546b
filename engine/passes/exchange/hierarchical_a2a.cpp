
#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/op_def.h"
#include "engine/ops/defs.h"
#include "engine/ops/placed.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/pass.h"

namespace moe {
namespace {

/// The state of one call of the pass. The number of a rank in the group of its all-to-all is
/// written as (node a, place i); the slots for expert e of rank (b, j) are in block (b, j, e).
class Hierarchy {
 public:
  Hierarchy(const Graph& graph, const PassContext& context)
      : given_(graph),
        context_(context),
        graph_(graph),
        producer_(graph.producers()),
        replaced_(graph.tensors().size()) {}

  Graph run() {
    std::vector<OpId> order;
    for (const OpId id : given_.op_ids()) {
      for (TensorId& t : graph_.op(id).inputs) t = now(t);
      const size_t before = graph_.num_ops();
      if (carries(given_, id, Payload::kRows)) replace_transfer(id);
      if (carries(given_, id, Payload::kCounts)) replace_exchange(id);
      if (graph_.num_ops() == before) order.push_back(id);
      for (size_t made = before; made < graph_.num_ops(); ++made) {
        order.emplace_back(static_cast<int64_t>(made));
      }
    }
    return with_order(graph_, order);
  }

 private:
  struct Steps {
    int64_t nodes, per_node;
    Group intra, inter;
  };

  /// Counts for the irregular steps. sent: rows per (place, node, expert) that this rank sends.
  /// in_node: rows per (node, expert) that this rank has from each place of its own node after the
  /// step within the node.
  struct Counts {
    TensorId sent, in_node;
  };

  Steps steps_of(OpId id) const {
    const Op& op = graph_.op(id);
    const Group group = group_of(given_, given_.op(id));
    const int64_t per_node = context_.cluster.devices_per_node;
    const auto refuse = [&](const std::string& why) {
      throw user_error("stage '{}': op '{}' {}", context_.stage, op.name, why);
    };
    if (context_.cluster.num_devices() != given_.num_ranks) {
      refuse(fmt::format("runs on {} ranks, but the cluster has {} devices", given_.num_ranks,
                         context_.cluster.num_devices()));
    }
    const OpId maker = producer_[given_.op(id).inputs[0].index()];
    if (op.rows.round.of > 1) {
      refuse(
          "is cut into rounds by fastermoe_pipeline: in a round each rank exchanges rows with one "
          "group of ranks, so there is nothing for hierarchical_a2a to gather inside a node first; "
          "leave one of the two stages out");
    }
    if (group.stride != 1 || (maker.valid() && reorders_rows(maker))) {
      refuse("is already split into steps; list hierarchical_a2a only once");
    }
    if (per_node % group.size == 0) {
      refuse(
          fmt::format("stays among {} ranks of one node (with {} devices), so there is no step "
                      "between nodes",
                      group.size, per_node));
    }
    if (per_node == 1) refuse("has no step within a node, because a node has one device");
    if (group.size % per_node != 0) {
      refuse(fmt::format("exchanges rows among {} ranks, which do not fill nodes of {} devices",
                         group.size, per_node));
    }
    return {group.size / per_node, per_node, {per_node, 1}, {group.size / per_node, per_node}};
  }

  bool reorders_rows(OpId op) const {
    return is(given_, op, BasicOp::kTransposeBlocks) || &given_.def(op) == &ops::kReorderRows;
  }

  TensorId now(TensorId old) const {
    if (!old.valid() || old.index() >= replaced_.size()) return old;
    const TensorId made = replaced_[old.index()];
    return made.valid() ? made : old;
  }

  /// Adds an op that replaces (a part of) op `of`: it takes segment, layer and part from `of`.
  TensorId add(const OpDef& kind, const Op& of, const char* step, std::vector<TensorId> inputs,
               Attrs attrs) {
    const OpId made =
        add_like(graph_, of, kind, of.name + step, std::move(inputs), std::move(attrs));
    graph_.op(made).part = of.part;
    return graph_.out(made);
  }

  /// One step of transfer `of`, which sends `rows`. nodes: attribute nodes of the step in a node.
  TensorId transfer(const Op& of, const char* step, std::vector<TensorId> inputs, RowUse rows,
                    const Group& group, int64_t nodes = 0) {
    rows.group = group;
    Attrs attrs = of.attrs;
    for (const char* const whole :
         {"experts", "devices", "residents", "shadows", "weighted", "by_source"}) {
      attrs.erase(whole);
    }
    if (nodes > 0) attrs["nodes"] = nodes;
    attrs.merge(attrs_of(rows));
    return add(ops::kAllToAll, of, step, std::move(inputs), std::move(attrs));
  }

  static Attrs blocks(int64_t rows, int64_t cols) { return {{"rows", rows}, {"cols", cols}}; }

  void replace_transfer(OpId id) {
    const Steps s = steps_of(id);
    const Op op = graph_.op(id);
    // Inputs of the steps within a node and between nodes: the rows (set below), then the counts of
    // rows sent and received, if the all-to-all is irregular.
    std::vector<TensorId> near{TensorId()}, far{TensorId()};
    RowUse sent = op.rows;
    int64_t nodes = 0;
    if (op.rows.irregular) {
      const TensorId received = input_of(graph_, op, Role::kRecvCounts);
      const Counts counts = counts_of(op, received, s);
      near.insert(near.end(), {counts.sent, counts.in_node});
      far.insert(far.end(), {counts.in_node, received});
      if (!op.rows.cut.empty()) nodes = s.nodes;
      if (op.attrs.contains("residents")) sent.occupancy = ops::slot_ratio_of(ops::bounds_of(op));
    }
    TensorId rows = op.inputs[0];
    if (op.rows.to_expert()) {
      near[0] = order(op, rows, s, near);
      far[0] = transfer(op, ".intra", near, sent, s.intra, nodes);
      rows = transfer(op, ".inter", far, sent, s.inter);
    } else {
      far[0] = rows;
      RowUse gathered = sent;
      gathered.sources = s.per_node;
      near[0] = transfer(op, ".inter", far, gathered, s.inter);
      rows = transfer(op, ".intra", near, sent, s.intra, nodes);
      rows = order(op, rows, s, near);
    }
    replaced_[given_.out(id).index()] = rows;
    log(id);
  }

  /// Adds the op that puts the rows in the order of the two steps, or back in the order of experts.
  TensorId order(const Op& op, TensorId rows, const Steps& s, const std::vector<TensorId>& near) {
    const bool to_expert = op.rows.to_expert();
    if (!op.rows.irregular) {
      return add(ops::kTransposeBlocks, op, ".order", {rows},
                 to_expert ? blocks(s.nodes, s.per_node) : blocks(s.per_node, s.nodes));
    }
    Attrs attrs = attrs_of({.to = op.rows.to, .group = op.rows.group, .cut = op.rows.cut});
    attrs.insert({{"nodes", s.nodes}, {"per_node", s.per_node}});
    for (const char* const name :
         {"experts", "devices", "residents", "shadows", "weighted", "by_source"}) {
      if (op.attrs.contains(name)) attrs[name] = op.attrs.at(name);
    }
    const TensorId counts = input_of(graph_, op, Role::kCounts);
    attrs.insert({"experts", num_elements(graph_.tensor(counts).shape)});
    std::vector<TensorId> inputs{rows, counts, near[1]};
    const TensorId placement = input_of(graph_, op, Role::kPlacement);
    if (placement.valid()) inputs.insert(inputs.end(), {TensorId(), placement});
    return add(ops::kReorderRows, op, ".order", inputs, attrs);
  }

  void replace_exchange(OpId id) {
    const Steps s = steps_of(id);
    const Op op = graph_.op(id);
    const auto step = [&](const char* name, TensorId counts, const Group& group) {
      return add(ops::kExchangeCounts, op, name, {counts}, group_attrs(group, graph_.num_ranks));
    };
    Counts made;
    made.sent =
        add(ops::kTransposeBlocks, op, ".order", {op.inputs[0]}, blocks(s.nodes, s.per_node));
    made.in_node = step(".intra", made.sent, s.intra);
    const TensorId received = step(".inter", made.in_node, s.inter);
    counts_[received] = made;
    replaced_[given_.out(id).index()] = received;
  }

  /// Returns the counts of the steps of an irregular all-to-all: what replace_exchange() made, or
  /// for a placed layer further slot_rows ops, since every rank has the loads of all ranks.
  Counts counts_of(const Op& op, TensorId received, const Steps& s) {
    const auto known = counts_.find(received);
    if (known != counts_.end()) return known->second;
    const std::vector<OpId> producer = graph_.producers();
    const OpId maker = producer[received.index()];
    MOE_CHECK(is(graph_, maker, MoeOp::kSlotRows),
              "all-to-all '{}' must take its received counts from an exchange of counts or from a "
              "placement",
              op.name);
    const Op rows = graph_.op(maker);
    const auto count = [&](const char* what) {
      Attrs attrs = all_attrs(rows);
      attrs["of"] = std::string(what);
      attrs["nodes"] = s.nodes;
      return add(ops::kSlotRows, rows, what[0] == 's' ? ".sent" : ".in_node", rows.inputs,
                 std::move(attrs));
    };
    return counts_[received] = {count("sent"), count("in_node")};
  }

  void log(OpId id) const {
    if (!context_.cost.has_times()) return;
    const Nanoseconds whole_ns = context_.cost.op_ns(given_, id);
    Nanoseconds steps_ns = 0;
    for (size_t i = graph_.num_ops() - 3; i < graph_.num_ops(); ++i) {
      steps_ns += context_.cost.op_ns(graph_, OpId(static_cast<int64_t>(i)));
    }
    context_.log->push_back(
        {given_.op(id).name, context_.stage,
         fmt::format("re-ordered, in the node and between nodes: {:.3f} ms, was {:.3f} ms",
                     to_ms(steps_ns), to_ms(whole_ns))});
  }

  const Graph& given_;
  const PassContext& context_;
  Graph graph_;
  const std::vector<OpId> producer_;   // indexed by tensor of the given graph
  std::vector<TensorId> replaced_;     // indexed by tensor of the given graph
  std::map<TensorId, Counts> counts_;  // indexed by the tensor of received counts
};

}  // namespace

/// Replaces every all-to-all by two steps: blocks of rows are reordered in memory by place and
/// node, exchanged inside each node, then exchanged between the devices at the same place of all
/// nodes; the way back is the reverse. There are fewer and larger messages: n + m - 2 peers instead
/// of n m - 1 on n nodes of m devices, with the same bytes on the NICs (2DH all-to-all of Tutel,
/// Hwang et al., MLSys 2023; hierarchical all-to-all of DeepSpeed-MoE, Rajbhandari et al., ICML
/// 2022). The second reordering of these papers, between the steps, is not an op here: the first
/// step writes each block that it receives directly to the right place. Irregular all-to-alls
/// remain irregular; their counts take the same steps. Runs before autodiff, so the backward
/// follows. Results have the same bits. Throws UserError with the reason when an all-to-all stays
/// within one node, when nodes have one device, when its group is not a whole number of nodes, or
/// when another stage has already split it.
Graph hierarchical_a2a(Graph graph, const PassContext& context) {
  return Hierarchy(graph, context).run();
}

}  // namespace moe
