#include "engine/sim/offloaded_experts.h"

#include <algorithm>

#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/ops/swap_in.h"

namespace moe {
namespace {

std::vector<int32_t> codes_of(const Placement& placement) {
  return {placement.codes().begin(), placement.codes().end()};
}

std::vector<int64_t> counts_of(const ExpertCounts& loads) {
  std::vector<int64_t> counts;
  for (int64_t e = 0; e < loads.experts; ++e) counts.push_back(loads.of_expert(e));
  return counts;
}

}  // namespace

OffloadedExperts::OffloadedExperts(const Graph& graph, const Group& holders,
                                   const std::vector<MoeLayer>& layers)
    : graph_(graph), holders_(holders), works_(graph.num_ops()) {
  std::vector<Layer> all(layers.size());
  for (const OpId id : graph.op_ids()) {
    const MoeOp what = graph.def(id).moe;
    if (what == MoeOp::kExpect) estimates_ = true;
    if (what != MoeOp::kPlaceExpected && what != MoeOp::kFineTune && what != MoeOp::kSwapIn) {
      continue;
    }
    const Op& op = graph.op(id);
    const auto of_block = std::find_if(layers.begin(), layers.end(),
                                       [&](const MoeLayer& l) { return l.block == op.layer; });
    Layer& layer = all[static_cast<size_t>(of_block - layers.begin())];
    if (what == MoeOp::kPlaceExpected) {
      layer.place = id;
      continue;
    }
    if (what == MoeOp::kFineTune) {
      layer.tune = id;
    } else {
      (attr_int(op, "keep") != 0 ? layer.load_again : layer.load) = id;
    }
    ops_.push_back(id);
    works_[id.index()].resize(static_cast<size_t>(graph.num_ranks));
  }
  for (size_t l = 0; l < all.size(); ++l) {
    all[l].number = l;
    if (all[l].load.valid()) layers_.push_back(all[l]);
  }
}

void OffloadedExperts::place(const std::vector<ExpertCounts>& kept,
                             const std::vector<Estimate>& estimates,
                             std::vector<Placement>& in_force) {
  records_.clear();
  alike_ = true;
  for (const Layer& layer : layers_) {
    place(layer, kept[layer.number], estimates[layer.number], in_force[layer.number]);
  }
}

/// Computes for one layer what the kernels of its ops compute, with the functions that they call.
void OffloadedExperts::place(const Layer& layer, const ExpertCounts& kept, const Estimate& estimate,
                             Placement& in_force) {
  OffloadRecord record = {.layer = graph_.op(layer.load).layer, .fine_tunes = layer.tune.valid()};
  if (layer.place.valid()) {
    in_force = ops::placed_as_expected(graph_.op(layer.place), estimate);
    record.expected = codes_of(in_force);
    set_copies(layer.load, in_force, nullptr);
  }
  if (layer.tune.valid()) {
    const auto placed = ops::placed_by_counts(graph_.op(layer.tune), estimate, counts_of(kept));
    for (RoutedWork& routed : works_[layer.tune.index()]) routed.work.again = placed.has_value();
    const Placement before = in_force;
    if (placed) in_force = *placed;
    record.again = codes_of(in_force) != record.expected;
    if (layer.place.valid()) {
      set_copies(layer.load_again, in_force, &before);
    } else {
      set_copies(layer.load, in_force, nullptr);
    }
  }
  record.in_force = codes_of(in_force);
  record.rows = device_loads(in_force, kept, holders_).computed;
  records_.push_back(std::move(record));
}

void OffloadedExperts::set_copies(OpId op, const Placement& placement, const Placement* before) {
  std::vector<RoutedWork>& works = works_[op.index()];
  for (size_t rank = 0; rank < works.size(); ++rank) {
    const int64_t device = holders_.place(static_cast<int64_t>(rank));
    works[rank].work.loaded_experts =
        static_cast<double>(ops::num_loaded(placement, before, device));
    alike_ = alike_ && works[rank].work.loaded_experts == works[0].work.loaded_experts;
  }
}

const RoutedWork* OffloadedExperts::routed_work(OpId op, int32_t rank) const {
  const std::vector<RoutedWork>& works = works_[op.index()];
  return works.empty() ? nullptr : &works[static_cast<size_t>(rank)];
}

}  // namespace moe
