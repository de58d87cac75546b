// The transfers (who sends which part of which expert to whom) that create a placement's copies and
// that sum their gradients. An expert for h devices is scattered in h parts, one to each; then each
// part is sent once to each other node; then the devices of a node exchange the parts that arrived.
// This is van de Geijn's broadcast by nodes: an expert enters a node once, for any number of its
// devices. Gradients take the same steps backwards. The executor moves these pieces and the
// simulator puts their bytes on links; neither is here.
#pragma once

#include <span>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

/// A share of an expert: the part of axis 1 of its tensors from `begin` to `end` sixteenths.
struct ExpertShare {
  static constexpr int64_t kWhole = 16;
  int64_t begin = 0, end = kWhole;
  int64_t rows_before(int64_t rows) const { return rows * begin / kWhole; }
  int64_t rows(int64_t all) const { return all * end / kWhole - rows_before(all); }
  bool operator==(const ExpertShare&) const = default;
};

/// Shadow slots [first, last) of every device; 0 is the first slot after the resident slots.
struct ShadowRange {
  int64_t first, last;
  ExpertShare share = {};  // of each expert in these slots
  bool operator==(const ShadowRange&) const = default;
};

/// Part `part` of `parts` equal parts of an expert's share, sent from slot to slot of two devices.
struct ExpertPiece {
  int64_t expert = 0;
  int64_t from = 0, from_slot = 0;
  int64_t to = 0, to_slot = 0;
  int64_t part = 0, parts = 1;
  int64_t range = 0;  // index of the ShadowRange whose share of the expert has these parts
  bool operator==(const ExpertPiece&) const = default;
};

/// The pieces of each step; those of one step move at the same time. A step may be empty.
using ExpertSteps = std::vector<std::vector<ExpertPiece>>;

/// Returns the steps that fill the shadows of `ranges`: scatter, between nodes, inside nodes. Each
/// `devices_per_node` consecutive devices share a node.
ExpertSteps copy_steps(const Placement& placement, std::span<const ShadowRange> ranges,
                       int64_t devices_per_node = 1);
/// Returns the steps by which the gradients of these shadows return, the reverse of copy_steps: a
/// device that had passed a part on adds the gradient that comes back to its own, and the owner
/// adds all.
ExpertSteps return_steps(const Placement& placement, std::span<const ShadowRange> ranges,
                         int64_t devices_per_node = 1);
/// Returns the two steps that sum the gradients of each expert with at least two residents (owner
/// included) over its residents: each resident sums one part, then sends it to the others.
ExpertSteps sum_steps(const Placement& placement);

/// Adds the bytes of the pieces, which move in each group of `ranks` ranks between the members at
/// the places of their devices, to `matrix` [ranks, ranks]; row: sender, column: receiver.
/// expert_bytes: for each range, the bytes of its share of one expert.
void add_bytes(const std::vector<ExpertPiece>& pieces, std::span<const double> expert_bytes,
               const Group& group, int64_t ranks, std::vector<double>& matrix);

}  // namespace moe
