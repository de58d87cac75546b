// What a batch of inference spent in its MoE layers, of any plan and timeline of it: the parts that
// Lina's evaluation tells apart (USENIX ATC 2023, section 7.3). Ranks are taken together: from the
// first that begins to the last that ends.
#pragma once

#include <vector>

#include "engine/plan.h"
#include "engine/timeline/timeline.h"

namespace moe {

/// One MoE layer of one batch.
struct ServedTimes {
  Nanoseconds layer_ns = 0;         // from the gate's begin to the end of what combines rows
  Nanoseconds a2a_ns = 0;           // both all-to-alls
  Nanoseconds expert_ns = 0;        // from the end of the first one to the last end of an expert
  Nanoseconds phase2_ns = 0;        // from the gate's end until the placement in force is known
  Nanoseconds mapping_wait_ns = 0;  // for phase 1's placement alone, part of phase2_ns
  Nanoseconds swap_wait_ns = 0;     // by which the experts end later for weights that come
};

struct ServedBatch {
  Nanoseconds answer_ns = 0;        // until all but the loss is over, which an answer does not need
  std::vector<ServedTimes> layers;  // by MoE layer
};
ServedBatch served_batch(const Plan& plan, const Timeline& timeline);

/// The least sample that `share` of them do not exceed; share in (0, 1]. Requires: samples.
Nanoseconds percentile(std::vector<Nanoseconds> samples, double share);

}  // namespace moe
