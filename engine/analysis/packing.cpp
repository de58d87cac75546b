#include "engine/analysis/packing.h"

#include <algorithm>

namespace moe {
namespace {

/// Returns the bytes of the parameters and momentum of one expert in all layers.
double bytes_of_expert(const Model& model) {
  int64_t elements = 0;
  for (const ParamInfo& info : model.parameters) {
    if (info.held.moe) elements += num_elements(info.shape) / model.experts;
  }
  return static_cast<double>(2 * elements * (model.dtype == DType::kF16 ? 2 : 4));
}

}  // namespace

double packing_exchange_ms(const PlanSpec& spec) {
  const int64_t devices = spec.num_ranks, ep = spec.model->ep == 0 ? devices : spec.model->ep;
  const int64_t n = devices / ep;
  const double own = static_cast<double>(spec.model->experts) / static_cast<double>(devices);
  const int64_t per_node = spec.cluster.devices_per_node;
  // most_near: the largest number of other devices of its own node from which one device receives.
  // far: number of pairs (device of a node, device of another node from which it receives);
  // most_far: the largest `far` of a node.
  int64_t most_near = 0, far = 0, most_far = 0;
  for (int64_t d = 0; d < devices; ++d) {
    const int64_t first = d % ep * n, end = first + n;  // the devices that own d's experts
    const int64_t node = d / per_node * per_node;       // the first device of d's node
    const int64_t near =
        std::max<int64_t>(0, std::min(end, node + per_node) - std::max(first, node));
    far = (d == node ? 0 : far) + n - near;
    most_far = std::max(most_far, far);
    most_near = std::max(most_near, near - (first <= d && d < end ? 1 : 0));
  }
  const double bytes = own * bytes_of_expert(*spec.model);  // of the experts that one device owns
  const auto seconds = [&](int64_t owners, double bytes_per_s) {
    return static_cast<double>(owners) * bytes / bytes_per_s;
  };
  const double nics =
      spec.cluster.nic.bytes_per_s * static_cast<double>(spec.cluster.nics_per_node);
  return 1e3 *
         std::max(seconds(most_far, nics), seconds(most_near, spec.cluster.intra.bytes_per_s));
}

}  // namespace moe
