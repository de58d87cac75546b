#include "engine/placement/expert_transfers.h"

#include <algorithm>
#include <utility>

#include "engine/base/errors.h"

namespace moe {
namespace {

struct Holder {
  int64_t device, slot;
};

/// Returns, for each expert, its holders in these shadow slots, in the order of devices.
std::vector<std::vector<Holder>> shadow_holders(const Placement& p, const ShadowRange& range) {
  std::vector<std::vector<Holder>> holders(static_cast<size_t>(p.bounds().experts));
  const int64_t residents = p.bounds().residents;
  for (int64_t d = 0; d < p.bounds().devices; ++d) {
    for (int64_t s = residents + range.first; s < residents + range.last; ++s) {
      const int64_t expert = p.at(d, s);
      if (expert >= 0) holders[static_cast<size_t>(expert)].push_back({d, s});
    }
  }
  return holders;
}

ExpertPiece piece_of(int64_t expert, int64_t part, int64_t parts, const Holder& from,
                     const Holder& to, int64_t range = 0) {
  return {expert, from.device, from.slot, to.device, to.slot, part, parts, range};
}

/// The copies of one expert: which device sends which part in which step.
class Broadcast {
 public:
  Broadcast(int64_t expert, Holder owner, std::vector<Holder> holders, int64_t range,
            int64_t devices_per_node)
      : expert_(expert),
        range_(range),
        owner_(owner),
        holders_(std::move(holders)),
        parts_(static_cast<int64_t>(holders_.size())),
        per_node_(devices_per_node) {
    for (const Holder& holder : holders_) {
      if (nodes_.empty() || node_of(nodes_.back()[0]) != node_of(holder)) nodes_.emplace_back();
      nodes_.back().push_back(holder);
    }
  }

  void add_to(ExpertSteps& steps) const {
    for (int64_t i = 0; i < parts_; ++i) steps[0].push_back(piece(i, owner_, part_holder(i)));
    for (const std::vector<Holder>& node : nodes_) enter(node, steps);
  }

 private:
  int64_t node_of(const Holder& holder) const { return holder.device / per_node_; }
  const Holder& part_holder(int64_t i) const { return holders_[static_cast<size_t>(i)]; }
  ExpertPiece piece(int64_t part, const Holder& from, const Holder& to) const {
    return piece_of(expert_, part, parts_, from, to, range_);
  }

  /// Adds the pieces that bring all parts to all holders in `node`. These devices take turns in
  /// receiving the parts that no device of the node has got from the owner. In the owner's own node
  /// these parts come from the owner itself, so they cross no NIC.
  void enter(const std::vector<Holder>& node, ExpertSteps& steps) const {
    const bool owners = node_of(node[0]) == node_of(owner_);
    size_t entered = 0;
    for (int64_t i = 0; i < parts_; ++i) {
      Holder relay = part_holder(i);
      if (node_of(relay) != node_of(node[0])) {
        const Holder& from = owners ? owner_ : relay;
        const Holder& to = node[entered++ % node.size()];
        steps[1].push_back(piece(i, from, to));
        relay = to;
      }
      for (const Holder& to : node) {
        if (to.device != relay.device) steps[2].push_back(piece(i, relay, to));
      }
    }
  }

  int64_t expert_, range_;
  Holder owner_;
  std::vector<Holder> holders_;  // in the order of devices
  int64_t parts_, per_node_;
  std::vector<std::vector<Holder>> nodes_;
};

/// Adds the pieces with which every holder sends the part of its own number to all others.
void spread(int64_t expert, const std::vector<Holder>& holders, std::vector<ExpertPiece>& pieces) {
  const auto parts = static_cast<int64_t>(holders.size());
  for (int64_t i = 0; i < parts; ++i) {
    for (const Holder& to : holders) {
      const Holder& from = holders[static_cast<size_t>(i)];
      if (from.device != to.device) pieces.push_back(piece_of(expert, i, parts, from, to));
    }
  }
}

std::vector<ExpertPiece> reversed(std::vector<ExpertPiece> pieces) {
  for (ExpertPiece& piece : pieces) {
    std::swap(piece.from, piece.to);
    std::swap(piece.from_slot, piece.to_slot);
  }
  return pieces;
}

}  // namespace

ExpertSteps copy_steps(const Placement& placement, std::span<const ShadowRange> ranges,
                       int64_t devices_per_node) {
  MOE_CHECK(devices_per_node > 0, "copy_steps: devices_per_node = {}, but must be at least 1",
            devices_per_node);
  ExpertSteps steps(3);
  for (size_t r = 0; r < ranges.size(); ++r) {
    std::vector<std::vector<Holder>> holders = shadow_holders(placement, ranges[r]);
    for (int64_t e = 0; e < placement.bounds().experts; ++e) {
      const int64_t owner = placement.owner(e);
      Broadcast(e, {owner, placement.slot_of(e, owner)}, std::move(holders[static_cast<size_t>(e)]),
                static_cast<int64_t>(r), devices_per_node)
          .add_to(steps);
    }
  }
  return steps;
}

ExpertSteps return_steps(const Placement& placement, std::span<const ShadowRange> ranges,
                         int64_t devices_per_node) {
  ExpertSteps steps = copy_steps(placement, ranges, devices_per_node);
  std::reverse(steps.begin(), steps.end());
  for (std::vector<ExpertPiece>& pieces : steps) pieces = reversed(std::move(pieces));
  return steps;
}

ExpertSteps sum_steps(const Placement& placement) {
  ExpertSteps steps(2);
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    std::vector<Holder> residents;
    for (const int64_t d : placement.holders(e)) {
      if (placement.is_resident(e, d)) residents.push_back({d, placement.slot_of(e, d)});
    }
    spread(e, residents, steps[1]);
  }
  steps[0] = reversed(steps[1]);
  return steps;
}

void add_bytes(const std::vector<ExpertPiece>& pieces, std::span<const double> expert_bytes,
               const Group& group, int64_t ranks, std::vector<double>& matrix) {
  for (const ExpertPiece& piece : pieces) {
    const double bytes =
        expert_bytes[static_cast<size_t>(piece.range)] / static_cast<double>(piece.parts);
    for (int64_t from = 0; from < ranks; ++from) {
      if (group.place(from) != piece.from) continue;
      matrix[static_cast<size_t>(from * ranks + group.member(from, piece.to))] += bytes;
    }
  }
}

}  // namespace moe
