#include "engine/exec/results/gate_stats.h"
#include "engine/graph/op_def.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace moe {
namespace {

/// Returns the smallest gap, over all tokens, between the best and the second-best score of a row
/// [experts], with the biases (null: none) added.
template <class T>
double smallest_margin(const T* scores, const T* bias, int64_t tokens, int64_t experts) {
  double smallest = std::numeric_limits<double>::infinity();
  const auto at = [&](int64_t e) { return bias == nullptr ? scores[e] : scores[e] + bias[e]; };
  for (int64_t t = 0; t < tokens; ++t, scores += experts) {
    T best = at(0), next = -std::numeric_limits<T>::infinity();
    for (int64_t e = 1; e < experts; ++e) {
      next = std::max(next, std::min(best, at(e)));
      best = std::max(best, at(e));
    }
    smallest = std::min(smallest, static_cast<double>(best - next));
  }
  return smallest;
}

}  // namespace

GateRecord::GateRecord(const Graph& graph, OpId id, AssignmentCode assignment_code)
    : layer(graph.op(id).layer),
      micro(graph.op(id).micro),
      part(graph.op(id).part),
      code(assignment_code) {
  const auto shape = [&](Role role) -> const Shape& {
    return graph.tensor(output_of(graph, graph.op(id), role)).shape;
  };
  maps.tokens = shape(Role::kExpert)[0];
  maps.columns = shape(Role::kExpert)[1];
  maps.experts = shape(Role::kSlotChoice)[0];
  maps.capacity = shape(Role::kSlotChoice)[1];
  expert.resize(static_cast<size_t>(maps.tokens * maps.columns));
  choice_slot.resize(expert.size());
  counts.resize(static_cast<size_t>(maps.experts));
  maps.expert = expert.data();
  maps.choice_slot = choice_slot.data();
  maps.counts = counts.data();
}

template <class T>
void GateRecord::capture(const Graph& graph, OpId op,
                         const std::function<const void*(TensorId)>& at) {
  const auto copy = [&](Role role, std::vector<int32_t>& to) {
    const auto* from = static_cast<const int32_t*>(at(output_of(graph, graph.op(op), role)));
    std::copy_n(from, to.size(), to.begin());
  };
  copy(Role::kExpert, expert);
  copy(Role::kChoiceSlot, choice_slot);
  copy(Role::kCounts, counts);
  const TensorId biases = input_of(graph, graph.op(op), Role::kBias);
  const void* const bias = biases.valid() ? at(biases) : nullptr;
  margin = smallest_margin(static_cast<const T*>(at(output_of(graph, graph.op(op), Role::kProbs))),
                           static_cast<const T*>(bias), maps.tokens, maps.experts);
}

bool by_layer(const GateRecord* a, const GateRecord* b) {
  return std::tie(a->layer, a->micro, a->part) < std::tie(b->layer, b->micro, b->part);
}

template void GateRecord::capture<float>(const Graph&, OpId,
                                         const std::function<const void*(TensorId)>&);
template void GateRecord::capture<double>(const Graph&, OpId,
                                          const std::function<const void*(TensorId)>&);

std::function<Gate(const Op&)> gates_of(const Plan& plan, const Policies& policies, int64_t rank) {
  const PlanSpec& spec = plan.spec;
  if (spec.routing == nullptr && !policies.gate) {
    return [](const Op& op) { return builtin_gate(attr_string(op, "gate")); };
  }
  const bool by_gate = spec.routing == nullptr || spec.routing->runs_gate();
  Gate own = !by_gate        ? routed_gate(spec.routing, *spec.model, plan.graph.num_ranks)
             : policies.gate ? policies.gate(rank)
                             : builtin_gate(spec.gate.name);
  if (by_gate && spec.routing != nullptr) {
    own = scored_gate(std::move(own), spec.routing, *spec.model, plan.graph.num_ranks);
  }
  return [own = std::move(own)](const Op&) { return own; };
}

std::vector<MoeStats> moe_stats(const std::vector<std::vector<const GateRecord*>>& records,
                                const std::vector<std::vector<RouterLoss>>& losses) {
  std::map<int64_t, MoeStats> layers;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    std::vector<const GateRecord*> sorted = records[rank];
    std::sort(sorted.begin(), sorted.end(), by_layer);
    const size_t micros = sorted.empty() ? 1 : static_cast<size_t>(sorted.back()->micro) + 1;
    for (size_t i = 0; i < sorted.size(); ++i) {
      const GateRecord* const record = sorted[i];
      const RoutingMaps& maps = record->maps;
      const auto [at, fresh] = layers.try_emplace(record->layer);
      MoeStats& stats = at->second;
      if (fresh) {
        stats.layer = record->layer;
        stats.capacity = maps.capacity;
        stats.checksum = kChecksumStart;
        stats.counts.resize(micros * records.size() * static_cast<size_t>(maps.experts));
        stats.load.resize(static_cast<size_t>(maps.experts));
        stats.min_margin = record->margin;
      }
      for (const int32_t e : record->expert) {
        if (e >= 0) ++stats.load[static_cast<size_t>(e)];
      }
      stats.dropped += dropped(maps, record->code);
      stats.checksum = assignment_checksum(stats.checksum, maps, record->code);
      stats.min_margin = std::min(stats.min_margin, record->margin);
      // The counts of a part include those of the parts before it, so the last part's are those of
      // the layer in the micro-batch.
      const bool last = i + 1 == sorted.size() || sorted[i + 1]->layer != record->layer ||
                        sorted[i + 1]->micro != record->micro;
      if (!last) continue;
      const size_t row = static_cast<size_t>(record->micro) * records.size() + rank;
      std::copy(record->counts.begin(), record->counts.end(),
                stats.counts.begin() + static_cast<std::ptrdiff_t>(row * record->counts.size()));
    }
  }
  for (const std::vector<RouterLoss>& of_rank : losses) {
    for (const RouterLoss& loss : of_rank) {
      MoeStats& stats = layers[loss.layer];
      (loss.is_z ? stats.z_loss : stats.balance_loss) += loss.value;
    }
  }
  std::vector<MoeStats> result;
  for (auto& [layer, stats] : layers) result.push_back(std::move(stats));
  return result;
}

}  // namespace moe
