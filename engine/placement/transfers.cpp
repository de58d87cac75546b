#include "engine/placement/transfers.h"

#include <utility>

namespace moe {
namespace {

struct Holder {
  int64_t device, slot;
};

/// Of an expert in shadow slots first .. last-1, by device.
std::vector<Holder> shadow_holders(const Placement& p, int64_t expert, int64_t first,
                                   int64_t last) {
  std::vector<Holder> holders;
  const int64_t residents = p.bounds().residents;
  for (int64_t d = 0; d < p.bounds().devices; ++d) {
    for (int64_t s = residents + first; s < residents + last; ++s) {
      if (p.at(d, s) == expert) holders.push_back({d, s});
    }
  }
  return holders;
}

/// Every holder passes its part on to all others.
void spread(int64_t expert, const std::vector<Holder>& holders, std::vector<ExpertPiece>& pieces) {
  const auto parts = static_cast<int64_t>(holders.size());
  for (int64_t i = 0; i < parts; ++i) {
    for (int64_t j = 0; j < parts; ++j) {
      if (i == j) continue;
      const Holder& from = holders[static_cast<size_t>(i)];
      const Holder& to = holders[static_cast<size_t>(j)];
      pieces.push_back({expert, from.device, from.slot, to.device, to.slot, i, parts});
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

ExpertSteps copy_steps(const Placement& placement, int64_t first, int64_t last) {
  ExpertSteps steps;
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    const std::vector<Holder> holders = shadow_holders(placement, e, first, last);
    const auto parts = static_cast<int64_t>(holders.size());
    const int64_t owner = placement.owner(e);
    for (int64_t i = 0; i < parts; ++i) {
      const Holder& to = holders[static_cast<size_t>(i)];
      steps.first.push_back({e, owner, placement.slot_of(e, owner), to.device, to.slot, i, parts});
    }
    spread(e, holders, steps.second);
  }
  return steps;
}

ExpertSteps return_steps(const Placement& placement, int64_t first, int64_t last) {
  ExpertSteps copy = copy_steps(placement, first, last);
  return {reversed(std::move(copy.second)), reversed(std::move(copy.first))};
}

ExpertSteps sum_steps(const Placement& placement) {
  ExpertSteps steps;
  for (int64_t e = 0; e < placement.bounds().experts; ++e) {
    std::vector<Holder> residents;
    for (const int64_t d : placement.holders(e)) {
      if (placement.is_resident(e, d)) residents.push_back({d, placement.slot_of(e, d)});
    }
    spread(e, residents, steps.second);
  }
  steps.first = reversed(steps.second);
  return steps;
}

void add_bytes(const std::vector<ExpertPiece>& pieces, double expert_bytes, int64_t devices,
               std::vector<double>& matrix) {
  for (const ExpertPiece& piece : pieces) {
    matrix[static_cast<size_t>(piece.from * devices + piece.to)] +=
        expert_bytes / static_cast<double>(piece.parts);
  }
}

}  // namespace moe
