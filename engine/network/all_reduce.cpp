#include "engine/network/all_reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/network/closed_form.h"
#include "engine/network/fabric.h"

namespace moe {
namespace {

/// How a group lies in the nodes: in `nodes` nodes, with `members` in each; 0 nodes: not evenly.
struct Shape {
  int64_t nodes = 0;
  int64_t members = 0;
};

Shape shape_of(const Cluster& cluster, const Group& group) {
  const int64_t per_node = cluster.devices_per_node, block = group.size * group.stride;
  if (per_node % block == 0) return {1, group.size};
  if (block % per_node != 0) return {};
  if (group.stride % per_node == 0) return {group.size, 1};
  if (per_node % group.stride != 0) return {};
  return {block / per_node, per_node / group.stride};
}

bool allows(const Cluster& cluster, const Shape& shape, AllReduceAlgorithm algorithm,
            ReducePart part) {
  const bool whole = part == ReducePart::kWhole;
  switch (algorithm) {
    case AllReduceAlgorithm::kQuickest:
    case AllReduceAlgorithm::kRing:
      return true;
    case AllReduceAlgorithm::kTree:
      return whole && shape.nodes > 1;
    case AllReduceAlgorithm::kTwoLevel:
      return shape.nodes > 1 && shape.members > 1;
    case AllReduceAlgorithm::kInSwitch:
      return whole && shape.members > 1 && cluster.in_switch;
  }
  return false;
}

/// Creates the phases of one all-reduce, for reduce_phases().
class Phases {
 public:
  Phases(const Cluster& cluster, const NodeLayout& layout, const AllReduce& op, const Group& group,
         int64_t devices_seen)
      : cluster_(cluster),
        layout_(layout),
        op_(op),
        group_(group),
        seen_(devices_seen),
        shape_(shape_of(cluster, group)),
        near_ns_(2.0 * static_cast<double>(cluster.intra.latency_ns)),
        far_ns_(2.0 * static_cast<double>(cluster.nic.latency_ns)) {}

  std::vector<ReducePhase> all() const {
    switch (op_.algorithm) {
      case AllReduceAlgorithm::kQuickest:
      case AllReduceAlgorithm::kRing:
        return {ring()};
      case AllReduceAlgorithm::kTree:
        return {tree()};
      case AllReduceAlgorithm::kTwoLevel:
        return two_level();
      case AllReduceAlgorithm::kInSwitch:
        return {in_switch()};
    }
    return {};
  }

 private:
  bool takes_part(int64_t device) const { return op_.rank < 0 || group_.same(device, op_.rank); }
  double members() const { return static_cast<double>(shape_.members); }
  /// How often the bytes go round a ring: to be summed, and to bring the sums to all.
  int64_t rounds() const { return op_.part == ReducePart::kWhole ? 2 : 1; }

  Rings rings() const {
    Rings rings = make_rings(layout_, group_, op_.rings, seen_);
    std::erase_if(rings.hops, [&](const RingHop& hop) { return !takes_part(hop.from); });
    return rings;
  }

  ReducePhase ring() const {
    const Rings made = rings();
    const double chunk = std::floor(op_.bytes / static_cast<double>(group_.size * made.count));
    return {rounds() * (group_.size - 1), 0, chunk, chunk, made.hops};
  }

  /// Adds a hop from each member to the next one in its node, and from the last to the first.
  void add_near(ReducePhase& phase) const {
    for (int64_t d = 0; d < seen_ && shape_.members > 1; ++d) {
      const int64_t place = group_.place(d), first = place - place % shape_.members;
      const int64_t next = first + (place + 1 - first) % shape_.members;
      if (takes_part(d)) phase.hops.push_back({d, group_.member(d, next), -1, -1, 1});
    }
  }

  /// Adds what the double tree sends between nodes, over all NICs that serve the group in a node.
  void add_tree(ReducePhase& phase, double share) const {
    if (shape_.nodes == 1) return;
    const Rings made = rings();
    const auto neighbours = static_cast<double>(std::min<int64_t>(4, shape_.nodes));
    phase.far_bytes = op_.bytes * neighbours / 2 / share / static_cast<double>(made.count);
    std::copy_if(made.hops.begin(), made.hops.end(), std::back_inserter(phase.hops),
                 [](const RingHop& hop) { return hop.nic_out >= 0; });
  }

  /// Returns a phase of one step, in which pieces follow each other along `near` hops inside a node
  /// and the trees between nodes. A member sends `near_bytes` inside its node; `share` is the
  /// fraction of a link's rate that is reached.
  ReducePhase pieces(double near, double near_bytes, double share) const {
    ReducePhase phase = {1, 0, near_bytes / share};
    add_near(phase);
    add_tree(phase, share);
    const double depth = std::bit_width(static_cast<uint64_t>(shape_.nodes - 1));
    const double hops_ns = near * near_ns_ + 2 * depth * far_ns_;
    const auto time_ns = [](double bytes, double rate) {
      return bytes > 0 ? bytes * kNsPerSecond / rate : 0.0;
    };
    const double bytes_ns = std::max(time_ns(phase.near_bytes, cluster_.intra.bytes_per_s),
                                     time_ns(phase.far_bytes, node_ports(cluster_).bytes_per_s));
    const double latency_ns = static_cast<double>(cluster_.all_reduce_base_ns) + hops_ns;
    // wait_ns omits the latency of the last hop, which the step's flows add, and the start-up,
    // which the op adds once.
    phase.wait_ns =
        hops_ns - (shape_.nodes > 1 ? far_ns_ : near_ns_) + 2 * std::sqrt(latency_ns * bytes_ns);
    return phase;
  }

  ReducePhase tree() const {
    return pieces(2 * (members() - 1), 2 * op_.bytes * (members() - 1) / members(), kTreeShare);
  }

  ReducePhase in_switch() const {
    return pieces(2, op_.bytes * (1 + 1 / members()), shape_.nodes > 1 ? kTreeShare : 1);
  }

  std::vector<ReducePhase> two_level() const {
    if (op_.part == ReducePart::kReduceScatter) return {in_node(), between_nodes()};
    if (op_.part == ReducePart::kAllGather) return {between_nodes(), in_node()};
    return {in_node(), between_nodes(), in_node()};
  }

  ReducePhase in_node() const {
    ReducePhase phase = {shape_.members - 1, 0, std::floor(op_.bytes / members())};
    add_near(phase);
    return phase;
  }

  ReducePhase between_nodes() const {
    ReducePhase phase = {rounds() * (shape_.nodes - 1)};
    phase.far_bytes = std::floor(op_.bytes / static_cast<double>(group_.size));
    for (int64_t d = 0; d < seen_; ++d) {
      const int64_t to = group_.member(d, (group_.place(d) + shape_.members) % group_.size);
      const auto nic = [&](int64_t device) {
        return device % layout_.devices_per_node / layout_.devices_per_nic;
      };
      if (takes_part(d)) phase.hops.push_back({d, to, nic(d), nic(to), 1});
    }
    return phase;
  }

  const Cluster& cluster_;
  const NodeLayout layout_;
  const AllReduce& op_;
  const Group group_;
  const int64_t seen_;
  const Shape shape_;
  const double near_ns_, far_ns_;  // latency of a hop inside a node, and between nodes
};

}  // namespace

AllReduceAlgorithm algorithm_of(const Cluster& cluster, const AllReduce& op, const Group& group) {
  const Group members = resolve(group, cluster.num_devices(), "all_reduce");
  const Shape shape = shape_of(cluster, members);
  if (op.algorithm != AllReduceAlgorithm::kQuickest) {
    return allows(cluster, shape, op.algorithm, op.part) ? op.algorithm : AllReduceAlgorithm::kRing;
  }
  AllReduce trial = op;
  AllReduceAlgorithm best = AllReduceAlgorithm::kRing;
  Nanoseconds best_ns = 0;
  for (const auto algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree,
                               AllReduceAlgorithm::kTwoLevel, AllReduceAlgorithm::kInSwitch}) {
    if (!allows(cluster, shape, algorithm, op.part)) continue;
    trial.algorithm = algorithm;
    const Nanoseconds ns = all_reduce_ns(cluster, trial, members);
    if (algorithm == AllReduceAlgorithm::kRing || ns < best_ns) {
      best = algorithm;
      best_ns = ns;
    }
  }
  return best;
}

std::vector<ReducePhase> reduce_phases(const Cluster& cluster, const NodeLayout& layout,
                                       const AllReduce& op, const Group& group,
                                       int64_t devices_seen) {
  if (group.size == 1 || op.bytes == 0) return {};
  return Phases(cluster, layout, op, group, devices_seen).all();
}

}  // namespace moe
