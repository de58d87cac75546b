// Four kinds of op whose sizes and times are attributes, so that tests of costs, timelines and
// replay need neither shapes nor kernels.
#pragma once

#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/graph/graph.h"
#include "engine/graph/op_def.h"

namespace moe::fake {

inline OpId op_id(size_t i) {
  return OpId(static_cast<int64_t>(i));
}

inline std::vector<TensorSpec> infer(const Graph&, const Op& op) {
  return {{{attr_int(op, "n", 1)}, DType::kF32}};
}

inline Work work(const Graph&, const Op& op, const WorkContext& context) {
  const double share = op.rows.irregular ? context.slot_occupancy : 1.0;
  return {.flops = attr_double(op, "flops"),
          .bytes = share * attr_double(op, "bytes"),
          .matrix = attr_int(op, "gemm") != 0 ? gemm_of(1, 1, 1) : MatrixWork{}};
}

inline OpDef def(const char* name, LaneKind lane, Collective collective,
                 Payload payload = Payload::kNone) {
  OpDef def;
  def.name = name;
  def.doc = "fake";
  def.lane = lane;
  def.collective = collective;
  def.payload = payload;
  def.inputs = {{"x", Role::kAny, true, 64}};
  def.outputs = {{"y", Role::kAny, true, 64}};
  def.infer = infer;
  def.work = work;
  return def;
}

/// compute, all_to_all, all_reduce and its halves; update, which overwrites its first input; and
/// view, which does nothing.
inline const OpTable& table() {
  static const OpDef compute = def("compute", LaneKind::kCompute, Collective::kNone);
  static const OpDef all_to_all =
      def("all_to_all", LaneKind::kComm, Collective::kAllToAll, Payload::kRows);
  static const OpDef all_reduce =
      def("all_reduce", LaneKind::kComm, Collective::kAllReduce, Payload::kGradients);
  static const OpDef reduce_scatter =
      def("reduce_scatter", LaneKind::kComm, Collective::kReduceScatter, Payload::kGradients);
  static const OpDef all_gather =
      def("all_gather", LaneKind::kComm, Collective::kAllGather, Payload::kParameters);
  static const OpDef update = [] {
    OpDef overwriting = def("update", LaneKind::kCompute, Collective::kNone);
    overwriting.mutates = {0};
    return overwriting;
  }();
  static const OpDef view = [] {
    OpDef still = def("view", LaneKind::kCompute, Collective::kNone);
    still.view = [](const Op& op) { return attr_int(op, "copies") == 0; };
    return still;
  }();
  static const OpTable table(
      {&compute, &all_to_all, &all_reduce, &update, &view, &reduce_scatter, &all_gather});
  return table;
}

/// Attributes of a collective among a random part of the ranks, or among all.
inline Attrs random_group(Rng& rng, int64_t num_ranks) {
  const Group group = {1 + rng.below(num_ranks), 1 + rng.below(num_ranks)};
  if (num_ranks % (group.size * group.stride) != 0) return {};
  return group_attrs(group, num_ranks);
}

inline TensorId param(Graph& graph, const std::string& name, int64_t n = 1) {
  return graph.add_tensor({.name = name, .shape = {n}, .kind = TensorKind::kParam});
}

}  // namespace moe::fake
