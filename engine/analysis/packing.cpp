#include "engine/analysis/packing.h"

#include <algorithm>
#include <map>

namespace moe {
namespace {

/// Returns the bytes of the parameters and momentum of one expert in all layers.
double bytes_of_expert(const ModelSpec& model) {
  int64_t elements = 0;
  for (const ParamInfo& info : parameters(model)) {
    if (info.expert) elements += num_elements(info.shape) / model.experts;
  }
  return static_cast<double>(2 * elements * (model.dtype == DType::kF16 ? 2 : 4));
}

}  // namespace

double packing_exchange_ms(const PlanSpec& spec) {
  const int64_t devices = spec.num_ranks, ep = spec.model.ep == 0 ? devices : spec.model.ep;
  const int64_t n = devices / ep;
  const double own = static_cast<double>(spec.model.experts) / static_cast<double>(devices);
  const auto node_of = [&](int64_t d) { return d / spec.cluster.devices_per_node; };
  // Number of experts that come from other nodes, per receiving node, and from devices of the same
  // node, per receiving device.
  std::map<int64_t, double> from_nodes, from_devices;
  for (int64_t d = 0; d < devices; ++d) {
    const int64_t first = d % ep * n;  // device that owns the first of d's experts
    for (int64_t owner = first; owner < first + n; ++owner) {
      if (owner == d) continue;
      if (node_of(owner) != node_of(d)) {
        from_nodes[node_of(d)] += own;
      } else {
        from_devices[d] += own;
      }
    }
  }
  const double bytes = bytes_of_expert(spec.model);
  const double nics =
      spec.cluster.nic.bytes_per_s * static_cast<double>(spec.cluster.nics_per_node);
  double slowest_s = 0;
  for (const auto& [node, experts] : from_nodes) {
    slowest_s = std::max(slowest_s, experts * bytes / nics);
  }
  for (const auto& [device, experts] : from_devices) {
    slowest_s = std::max(slowest_s, experts * bytes / spec.cluster.intra.bytes_per_s);
  }
  return 1e3 * slowest_s;
}

}  // namespace moe
