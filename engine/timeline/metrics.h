// Metrics of a timeline. A rank's interval runs from 0 to its last end.
//   makespan          the latest end over all ranks
//   compute_ns        union of the compute lane's spans, mean over ranks
//   comm_ns           union of [begin, end] over a rank's comm lanes, mean over ranks
//   exposed_comm_ns   the part of [post, end] of comm spans during which no compute span runs, mean
//   hidden_comm_ns    comm_ns less the part of it that is exposed
//   wait_ns           sum of begin - post over comm spans (waiting for peers), mean over ranks
#pragma once

#include "engine/timeline/timeline.h"

namespace moe {

struct Metrics {
  Nanoseconds makespan_ns = 0;
  Nanoseconds compute_ns = 0;
  Nanoseconds comm_ns = 0;
  Nanoseconds exposed_comm_ns = 0;
  Nanoseconds hidden_comm_ns = 0;
  Nanoseconds wait_ns = 0;
};

Metrics metrics(const Graph& graph, const Timeline& timeline);

}  // namespace moe
