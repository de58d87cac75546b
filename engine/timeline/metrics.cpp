#include "engine/timeline/metrics.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

using Intervals = std::vector<std::pair<Nanoseconds, Nanoseconds>>;

/// How much time at least one of the intervals covers.
Nanoseconds covered(Intervals intervals) {
  std::sort(intervals.begin(), intervals.end());
  Nanoseconds total = 0;
  Nanoseconds until = std::numeric_limits<Nanoseconds>::min();
  for (const auto& [begin, end] : intervals) {
    total += std::max<Nanoseconds>(end - std::max(begin, until), 0);
    until = std::max(until, end);
  }
  return total;
}

Intervals both(Intervals a, const Intervals& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct RankSpans {
  Intervals compute;   // begin..end
  Intervals transfer;  // begin..end of comm spans
  Intervals posted;    // post..end of comm spans
  Nanoseconds wait = 0;
};

}  // namespace

Metrics metrics(const Graph& graph, const Timeline& timeline) {
  std::vector<RankSpans> ranks(static_cast<size_t>(timeline.num_ranks));
  Metrics sum;
  for (const Span& span : timeline.spans) {
    MOE_CHECK(span.rank >= 0 && span.rank < timeline.num_ranks, "rank {} of {}", span.rank,
              timeline.num_ranks);
    sum.makespan_ns = std::max(sum.makespan_ns, span.end);
    RankSpans& rank = ranks[static_cast<size_t>(span.rank)];
    if (graph.def(span.op).lane == LaneKind::kCompute) {
      rank.compute.emplace_back(span.begin, span.end);
    } else {
      rank.transfer.emplace_back(span.begin, span.end);
      rank.posted.emplace_back(span.post, span.end);
      rank.wait += span.begin - span.post;
    }
  }
  Nanoseconds exposed_transfer = 0;
  for (const RankSpans& rank : ranks) {
    const Nanoseconds compute = covered(rank.compute);
    sum.compute_ns += compute;
    sum.comm_ns += covered(rank.transfer);
    sum.exposed_comm_ns += covered(both(rank.posted, rank.compute)) - compute;
    exposed_transfer += covered(both(rank.transfer, rank.compute)) - compute;
    sum.wait_ns += rank.wait;
  }
  const Nanoseconds n = std::max<Nanoseconds>(timeline.num_ranks, 1);
  return {.makespan_ns = sum.makespan_ns,
          .compute_ns = sum.compute_ns / n,
          .comm_ns = sum.comm_ns / n,
          .exposed_comm_ns = sum.exposed_comm_ns / n,
          .hidden_comm_ns = sum.comm_ns / n - exposed_transfer / n,
          .wait_ns = sum.wait_ns / n};
}

}  // namespace moe
