// Who sends which part of which expert to whom, so that the copies that a placement names come
// about and their gradients are summed. An expert that goes to h devices is scattered in h parts,
// one to each, which then spread their parts among each other: its owner sends it once, and every
// device receives it once and passes on less than one (the broadcast of van de Geijn: 2 steps, the
// bytes of a pipelined one). Gradients take the same steps backwards. The executor moves these
// pieces, the simulator puts their bytes on the links.
#pragma once

#include <vector>

#include "engine/placement/placement.h"

namespace moe {

/// Part `part` of `parts` equal ones of an expert, from a slot of a device to a slot of another.
struct ExpertPiece {
  int64_t expert = 0;
  int64_t from = 0, from_slot = 0;
  int64_t to = 0, to_slot = 0;
  int64_t part = 0, parts = 1;
  bool operator==(const ExpertPiece&) const = default;
};

/// The two steps of a movement; a step that nobody needs is empty.
struct ExpertSteps {
  std::vector<ExpertPiece> first, second;
  bool empty() const { return first.empty() && second.empty(); }
};

/// Shadows first .. last-1 (counted without the residents) get their experts.
ExpertSteps copy_steps(const Placement& placement, int64_t first, int64_t last);
/// Their gradients go back: each part is summed on the device that it was scattered to, in the
/// order of devices, and the sums go to the owner. The reverse of copy_steps.
ExpertSteps return_steps(const Placement& placement, int64_t first, int64_t last);
/// Gradients are summed over the residents of each expert that has more than one: each resident
/// sums a part, in the order of devices, and gives it to the others.
ExpertSteps sum_steps(const Placement& placement);

/// Adds the bytes that the pieces carry to a matrix [devices, devices], from i to j at [i * n + j].
void add_bytes(const std::vector<ExpertPiece>& pieces, double expert_bytes, int64_t devices,
               std::vector<double>& matrix);

}  // namespace moe
