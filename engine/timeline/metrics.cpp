#include "engine/timeline/metrics.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
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

/// How much of [from, to] at least one of the intervals covers.
Nanoseconds covered_within(const Intervals& intervals, Nanoseconds from, Nanoseconds to) {
  Intervals within;
  for (const auto& [begin, end] : intervals) {
    if (begin < to && end > from) within.emplace_back(std::max(begin, from), std::min(end, to));
  }
  return covered(std::move(within));
}

struct RankSpans {
  Intervals compute;   // begin..end
  Intervals transfer;  // begin..end of comm spans
  Intervals posted;    // post..end of comm spans
  Nanoseconds wait = 0;
};

struct Hull {
  Nanoseconds begin = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds end = std::numeric_limits<Nanoseconds>::min();
  void add(const Span& span) {
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
};

/// One phase of an MoE layer on one rank.
struct LayerSpans {
  Hull layer, window;
  Intervals a2a;  // post..end
};

struct LayerKey {
  int32_t rank, layer;
  bool backward;
  auto operator<=>(const LayerKey&) const = default;
};

bool of_moe_layer(const Op& op) {
  return op.layer >= 0 && op.phase != Phase::kUpdate &&
         (op.segment == Segment::kGate || op.segment == Segment::kDispatch ||
          op.segment == Segment::kExpert || op.segment == Segment::kCombine);
}

std::map<LayerKey, LayerSpans> layers_of(const Graph& graph, const Timeline& timeline) {
  std::map<LayerKey, LayerSpans> layers;
  for (const Span& span : timeline.spans) {
    const Op& op = graph.op(span.op);
    if (!of_moe_layer(op)) continue;
    LayerSpans& mine = layers[{span.rank, op.layer, op.phase == Phase::kBackward}];
    mine.layer.add(span);
    // Not the exchange of counts, which comes before the layer's pair.
    if (std::string_view(graph.def(op).name) != "all_to_all") continue;
    mine.window.add(span);
    mine.a2a.emplace_back(span.post, span.end);
  }
  std::erase_if(layers, [](const auto& entry) { return entry.second.a2a.empty(); });
  return layers;
}

MoeTimes moe_times(const std::map<LayerKey, LayerSpans>& layers, bool backward,
                   const std::vector<RankSpans>& ranks) {
  MoeTimes sum;
  Nanoseconds n = 0;
  for (const auto& [key, spans] : layers) {
    if (key.backward != backward) continue;
    const Hull& window = spans.window;
    sum.layer_ns += spans.layer.end - spans.layer.begin;
    sum.a2a_ns += covered(spans.a2a);
    sum.window_ns += window.end - window.begin;
    sum.busy_ns +=
        covered_within(ranks[static_cast<size_t>(key.rank)].compute, window.begin, window.end);
    ++n;
  }
  if (n == 0) return {};
  return {sum.layer_ns / n, sum.a2a_ns / n, sum.window_ns / n, sum.busy_ns / n};
}

void add(CollectiveTimes& times, const Span& span) {
  times.wait_ns += span.begin - span.post;
  times.transfer_ns += span.end - span.begin;
}

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
      const Collective kind = graph.def(span.op).collective;
      if (kind == Collective::kAllToAll) add(sum.all_to_all, span);
      if (kind == Collective::kAllReduce) add(sum.all_reduce, span);
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
  const std::map<LayerKey, LayerSpans> layers = layers_of(graph, timeline);
  return {.makespan_ns = sum.makespan_ns,
          .compute_ns = sum.compute_ns / n,
          .comm_ns = sum.comm_ns / n,
          .exposed_comm_ns = sum.exposed_comm_ns / n,
          .hidden_comm_ns = sum.comm_ns / n - exposed_transfer / n,
          .wait_ns = sum.wait_ns / n,
          .all_to_all = {sum.all_to_all.wait_ns / n, sum.all_to_all.transfer_ns / n},
          .all_reduce = {sum.all_reduce.wait_ns / n, sum.all_reduce.transfer_ns / n},
          .forward = moe_times(layers, false, ranks),
          .backward = moe_times(layers, true, ranks)};
}

double Metrics::pipelining_efficiency() const {
  const Nanoseconds window = forward.window_ns + backward.window_ns;
  const auto busy = static_cast<double>(forward.busy_ns + backward.busy_ns);
  return window > 0 ? busy / static_cast<double>(window) : 0;
}

}  // namespace moe
