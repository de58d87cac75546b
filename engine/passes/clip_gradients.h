// Scaling of gradients by their norm over several pipeline ranks; over one it is the pass
// clip_gradients, to the graph of one micro-batch.
#pragma once

#include <functional>

#include "engine/base/grid.h"
#include "engine/schedule/unroll.h"

namespace moe {

/// Where a pipeline rank is among all, from 0.
struct PipelinePlace {
  int64_t rank = 0, ranks = 1;
  /// Whether another one is in other nodes.
  std::function<bool(int64_t)> far;
};

/// Scales the gradients that the updates of a pipeline rank's step read down to `norm`, as the pass
/// does: the rank adds its square sum to that of the rank behind it and passes it on, the first
/// rank has that of all, which goes back through all ranks. A parameter that two pipeline ranks
/// hold counts by half on each. Updates, and what follows from them, move behind. grid: of the
/// ranks of a pipeline rank; sums over them go onto `lane`. The transfers between pipeline ranks
/// still need lanes of their own. Throws UserError as the pass does.
void clip_over_ranks(UnrolledStep& step, double norm, const Grid& grid, LaneId lane,
                     const PipelinePlace& place);

}  // namespace moe
