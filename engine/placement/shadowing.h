// FasterMoE's choice of experts that every device gets a copy of (He et al., PPoPP 2022), as the
// public fastmoe code has it, for counts alone.
#pragma once

#include <cstdint>
#include <vector>

namespace moe {

struct ShadowingCosts {
  double compute_s = 0;  // an input through an expert's forward
  double send_s = 0;     // an input to another device
  double copy_s = 0;     // an expert to all devices
};

/// The experts, heaviest first, at most `most`: the next one is taken while the step, which lasts
/// as long as the heaviest of the others computes (3 times its forward) and receives (4
/// all-to-alls), gets shorter with its copy counted. Never the last expert.
std::vector<int64_t> choose_shadowed(const std::vector<int64_t>& inputs,
                                     const ShadowingCosts& costs, int64_t most);

}  // namespace moe
