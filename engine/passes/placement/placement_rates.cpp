// The rates that the planner of a placement uses, fitted to the cost model of the plan.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/graph/op_def.h"
#include "engine/network/contention.h"
#include "engine/passes/moe_layer.h"
#include "engine/passes/placement/place_experts.h"
#include "engine/placement/expert_transfers.h"

namespace moe {
namespace {

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// The share of all inputs that the most loaded device receives when B (bytes per second) of
/// Pro-Prophet's equation (1) is fitted: about the skew of its figure 3. Even all-to-alls would
/// give a wrong rate: where devices share a NIC, the one that receives most gets more of the NIC.
constexpr double kShareOfMost = 1.0 / 3;

/// Returns the bytes per second that the first rank of each group receives while every rank sends
/// about `bytes`.
double a2a_rate(const PassContext& context, const Graph& graph, OpId exchange, double bytes) {
  const Group group = group_of(graph, graph.op(exchange));
  const int64_t ranks = graph.num_ranks;
  const auto devices = static_cast<size_t>(group.size);
  const double others = static_cast<double>(devices - 1);
  const Cluster* const cluster = context.cost.network();
  if (cluster == nullptr) {
    const double sent = bytes * others / static_cast<double>(devices);
    return sent / std::max(seconds(context.cost.op_ns(graph, exchange)), 1e-9);
  }
  const double share = std::max(kShareOfMost, 1.0 / static_cast<double>(devices));
  const auto time = [&](double factor) {
    AllToAll skewed;
    skewed.bytes.resize(static_cast<size_t>(ranks * ranks));
    for (int64_t source = 0; source < ranks; ++source) {
      for (int64_t place = 0; place < group.size; ++place) {
        skewed.bytes[static_cast<size_t>(source * ranks + group.member(source, place))] =
            place == 0 ? factor * bytes * share
                       : factor * bytes * (1 - share) / std::max(others, 1.0);
      }
    }
    return seconds(alone_ns(*cluster, {std::move(skewed), group}));
  };
  return bytes * share * others / std::max(time(2) - time(1), 1e-12);
}

/// Sets the rates of copies to those of one expert that copy_experts sends to all other devices of
/// each group.
void fit_copies(const PassContext& context, const Group& group, int64_t ranks,
                PlacementRates& rates) {
  const Cluster* const cluster = context.cost.network();
  const int64_t devices = group.size;
  if (cluster == nullptr) {
    // The expert is scattered to h devices; then each of them receives the other (h - 1) / h.
    const auto h = static_cast<double>(std::max<int64_t>(devices - 1, 1));
    rates.copy_bytes_per_s = rates.a2a_bytes_per_s * h / (2 * h - 1);
    rates.scatter_share = h / (2 * h - 1);
    return;
  }
  Placement p({.experts = devices, .devices = devices, .residents = 1, .shadows = 1});
  for (int64_t d = 1; d < devices; ++d) p.add_shadow(0, d, 0);
  std::vector<double> steps_s;
  const ShadowRange range = {0, 1};
  for (const auto& pieces : copy_steps(p, {&range, 1}, cluster->devices_per_node)) {
    AllToAll step;
    step.bytes.assign(static_cast<size_t>(ranks * ranks), 0);
    add_bytes(pieces, {&rates.expert_bytes, 1}, group, ranks, step.bytes);
    steps_s.push_back(pieces.empty() ? 0 : seconds(alone_ns(*cluster, {std::move(step), group})));
  }
  const double total_s = std::max(std::accumulate(steps_s.begin(), steps_s.end(), 0.0), 1e-12);
  rates.copy_bytes_per_s = rates.expert_bytes / total_s;
  rates.scatter_share = std::min(1.0, steps_s.front() / total_s);
  if (devices > cluster->devices_per_node) {
    rates.scatter_group = std::max<int64_t>(cluster->devices_per_node / cluster->nics_per_node, 1);
  }
}

}  // namespace

int64_t hidden_between(const PlacementRates& rates, int64_t shadows) {
  if (rates.expert_bytes <= 0) return 0;
  constexpr int64_t kWhole = ExpertShare::kWhole;
  const double between_s = std::min(rates.forward_other_s, rates.backward_other_s);
  const double experts = between_s * rates.copy_bytes_per_s / rates.expert_bytes;
  const double all = static_cast<double>(kWhole * shadows);
  return static_cast<int64_t>(std::clamp(std::floor(kWhole * experts), 0.0, all));
}

PlacementRates fit_placement_rates(const Graph& graph, OpId exchange, const PassContext& context) {
  PlacementRates rates;
  const Shape& rows = graph.tensor(graph.op(exchange).inputs[0]).shape;  // [E,C,d]
  rates.input_bytes = static_cast<double>(rows.back() * dtype_bytes(context.model.dtype));
  if (!context.cost.has_times()) return rates;  // then the policy reads no rates either
  Nanoseconds experts = 0, between = 0;
  bool inside = false, behind = false;
  for (const OpId op : graph.op_ids(exchange.index())) {
    const bool exchanges = carries(graph, op, Payload::kRows);
    if (op == exchange) {
      inside = true;
    } else if (exchanges && inside) {
      inside = false, behind = true;
    } else if (is(graph, op, MoeOp::kDispatch) || graph.def(op).loss == Loss::kModel) {
      break;
    } else if (inside) {
      experts += context.cost.op_ns(graph, op);
      for (const TensorId t : graph.op(op).inputs) {
        if (t.valid() && graph.tensor(t).kind == TensorKind::kParam) {
          rates.expert_bytes += static_cast<double>(graph.bytes(t) / graph.tensor(t).shape[0]);
        }
      }
    } else if (behind && graph.def(op).lane == LaneKind::kCompute) {
      between += context.cost.op_ns(graph, op);
    }
  }
  const double inputs = static_cast<double>(rows[0] * rows[1]);
  rates.inputs_per_s = inputs / std::max(seconds(experts), 1e-12);
  // The state of SGD with momentum; add_placement_updates uses the optimizer's real state.
  rates.state_bytes = rates.expert_bytes;
  rates.forward_other_s = seconds(between);
  // The backward of a GEMM is two GEMMs of the same size.
  rates.backward_other_s = 2 * rates.forward_other_s;
  rates.a2a_bytes_per_s = a2a_rate(context, graph, exchange, inputs * rates.input_bytes);
  fit_copies(context, group_of(graph, graph.op(exchange)), graph.num_ranks, rates);
  return rates;
}

}  // namespace moe
