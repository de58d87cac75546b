// Which experts FasterMoE copies to every device (He et al., PPoPP 2022), as in the public fastmoe
// code. This depends only on counts and costs; placements are made in shadowing.cpp.
#pragma once

#include <cstdint>
#include <vector>

namespace moe {

struct ShadowingCosts {
  double compute_s = 0;  // one input through the forward of an expert
  double send_s = 0;     // one input to another device
  double copy_s = 0;     // one expert to all devices
};

/// Returns the experts to copy, heaviest first, at most `most`. The next expert is added as long as
/// this shortens the step, including the time of the copies. The step takes as long as the heaviest
/// expert without copies computes (3 times its forward) and receives (4 all-to-alls). At least one
/// expert is never copied.
std::vector<int64_t> choose_shadowed(const std::vector<int64_t>& inputs,
                                     const ShadowingCosts& costs, int64_t most);

}  // namespace moe
