// Times of one batch of inference in its MoE layers, for any plan and a timeline of it, divided as
// in the evaluation of the paper Lina (USENIX ATC 2023, section 7.3). Each time lasts from the
// begin on the first rank to the end on the last rank, unless its comment says otherwise.
// Predictions and rows are in inference.h.
#pragma once

#include <vector>

#include "engine/plan.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// One MoE layer of one batch.
struct ServedTimes {
  Nanoseconds layer_ns = 0;  // from the begin of the gate to the end of the combine
  Nanoseconds a2a_ns = 0;    // sum of both all-to-alls, on rank 0
  /// From the end of the first all-to-all, or without one from the experts' begin, to their end.
  Nanoseconds expert_ns = 0;
  Nanoseconds phase2_ns = 0;        // from the end of the gate until the placement is final
  Nanoseconds mapping_wait_ns = 0;  // part of phase2_ns: wait for the placement of phase 1
  Nanoseconds swap_wait_ns =
      0;  // how much later experts end because they wait for swapped-in weights
};

struct ServedBatch {
  Nanoseconds answer_ns = 0;        // end of the last op that is not part of the loss
  std::vector<ServedTimes> layers;  // indexed by MoE layer
};
ServedBatch served_batch(const Plan& plan, const Timeline& timeline);

}  // namespace moe
