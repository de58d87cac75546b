// Who sends which part of which expert to whom, so that the copies that a placement names come
// about and their gradients are summed. An expert that goes to h devices is scattered in h parts,
// one to each; a part goes once to each other node; inside a node the devices spread what arrived
// (the broadcast of van de Geijn, by nodes: what enters a node is the expert once, however many of
// its devices want it). Gradients take the same steps backwards. The executor moves these pieces,
// the simulator puts their bytes on the links.
#pragma once

#include <span>
#include <vector>

#include "engine/placement/placement.h"

namespace moe {

/// Of an expert: rows (axis 1 of its tensors) from `begin` to `end` sixteenths.
struct ExpertShare {
  static constexpr int64_t kWhole = 16;
  int64_t begin = 0, end = kWhole;
  int64_t rows_before(int64_t rows) const { return rows * begin / kWhole; }
  int64_t rows(int64_t all) const { return all * end / kWhole - rows_before(all); }
  bool operator==(const ExpertShare&) const = default;
};

/// Shadow slots first .. last-1, counted without the residents.
struct ShadowRange {
  int64_t first, last;
  ExpertShare share = {};  // of each expert there
  bool operator==(const ShadowRange&) const = default;
};

/// Part `part` of `parts` equal ones of an expert, from a slot of a device to a slot of another.
struct ExpertPiece {
  int64_t expert = 0;
  int64_t from = 0, from_slot = 0;
  int64_t to = 0, to_slot = 0;
  int64_t part = 0, parts = 1;
  int64_t range = 0;  // of those that it belongs to; its part is one of that share
  bool operator==(const ExpertPiece&) const = default;
};

/// What moves at the same time, step by step; a step that nobody needs is empty.
using ExpertSteps = std::vector<std::vector<ExpertPiece>>;

/// These shadows get their experts, in three steps: scatter, between nodes, inside nodes. So many
/// consecutive devices share a node.
ExpertSteps copy_steps(const Placement& placement, std::span<const ShadowRange> ranges,
                       int64_t devices_per_node = 1);
/// Their gradients go back, the reverse of copy_steps: who had passed a part on adds to its own
/// what comes back, the owner everything to its own.
ExpertSteps return_steps(const Placement& placement, std::span<const ShadowRange> ranges,
                         int64_t devices_per_node = 1);
/// Gradients are summed over the residents of each expert that has more than one: each resident
/// sums a part and gives it to the others. Two steps.
ExpertSteps sum_steps(const Placement& placement);

/// Adds the bytes that the pieces carry to a matrix [devices, devices], from i to j at [i * n + j].
/// expert_bytes: of one expert's share, by range.
void add_bytes(const std::vector<ExpertPiece>& pieces, std::span<const double> expert_bytes,
               int64_t devices, std::vector<double>& matrix);

}  // namespace moe
