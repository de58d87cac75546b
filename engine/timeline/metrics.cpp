#include "engine/timeline/metrics.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

using Intervals = std::vector<std::pair<Nanoseconds, Nanoseconds>>;

void sort(Intervals& intervals) {
  if (!std::is_sorted(intervals.begin(), intervals.end())) {
    std::sort(intervals.begin(), intervals.end());
  }
}

/// Returns how much time at least one of the intervals covers. Requires: sorted intervals.
Nanoseconds covered(const Intervals& intervals) {
  Nanoseconds total = 0;
  Nanoseconds until = std::numeric_limits<Nanoseconds>::min();
  for (const auto& [begin, end] : intervals) {
    total += std::max<Nanoseconds>(end - std::max(begin, until), 0);
    until = std::max(until, end);
  }
  return total;
}

/// Returns the intervals of `a` and of `b` in one sorted list. Requires: both sorted.
Intervals both(const Intervals& a, const Intervals& b) {
  Intervals all(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), all.begin());
  return all;
}

/// Returns how much of [from, to] at least one of the intervals covers. Requires: sorted intervals.
Nanoseconds covered_within(const Intervals& intervals, Nanoseconds from, Nanoseconds to) {
  Intervals within;
  for (const auto& [begin, end] : intervals) {
    if (begin >= to) break;
    if (end > from) within.emplace_back(std::max(begin, from), std::min(end, to));
  }
  sort(within);
  return covered(within);
}

/// The intervals of one rank.
struct RankSpans {
  Intervals compute;   // begin to end of compute spans
  Intervals transfer;  // begin to end of comm spans
  Intervals posted;    // post to end of comm spans
};

/// The smallest interval that contains all spans added so far.
struct SpanBounds {
  Nanoseconds begin = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds end = std::numeric_limits<Nanoseconds>::min();
  void add(const Span& span) {
    begin = std::min(begin, span.begin);
    end = std::max(end, span.end);
  }
};

/// One phase (forward, recompute or backward) of an MoE layer on one rank.
struct LayerSpans {
  int32_t rank = 0;
  Phase phase = Phase::kForward;
  SpanBounds layer, window;
  Intervals a2a;              // post to end of the layer's all-to-alls
  Nanoseconds expert_ns = 0;  // compute time of its experts
};

bool of_moe_layer(const Op& op) {
  return op.layer >= 0 && op.phase != Phase::kUpdate &&
         (op.segment == Segment::kGate || op.segment == Segment::kDispatch ||
          op.segment == Segment::kExpert || op.segment == Segment::kCombine);
}

constexpr int32_t kPhases = static_cast<int32_t>(Phase::kUpdate);  // all phases before the update

/// Returns for each op the index of its micro-batch, layer and phase among the LayerSpans of a
/// rank, or -1 for an op outside MoE layers. Sets `count` to the number of LayerSpans per rank.
std::vector<int32_t> layer_numbers(const Graph& graph, int32_t& count) {
  int32_t blocks = 0;
  for (const Op& op : graph.ops()) blocks = std::max(blocks, op.layer + 1);
  count = kPhases * blocks * num_micro_batches(graph);
  std::vector<int32_t> numbers;
  for (const Op& op : graph.ops()) {
    const int32_t layer = op.micro * blocks + op.layer;
    numbers.push_back(of_moe_layer(op) ? kPhases * layer + static_cast<int32_t>(op.phase) : -1);
  }
  return numbers;
}

/// Returns the LayerSpans of all ranks, ordered by rank, then micro-batch, layer and phase.
std::vector<LayerSpans> layers_of(const Graph& graph, const Timeline& timeline) {
  int32_t count = 0;
  const std::vector<int32_t> numbers = layer_numbers(graph, count);
  std::vector<LayerSpans> layers(static_cast<size_t>(count * timeline.num_ranks));
  for (const Span& span : timeline.spans) {
    const int32_t number = numbers[span.op.index()];
    if (number < 0) continue;
    LayerSpans& mine = layers[static_cast<size_t>(span.rank * count + number)];
    mine.rank = span.rank;
    mine.phase = static_cast<Phase>(number % kPhases);
    mine.layer.add(span);
    const OpDef& def = graph.def(span.op);
    const bool of_expert = graph.op(span.op).segment == Segment::kExpert;
    if (of_expert && def.lane == LaneKind::kCompute) mine.expert_ns += span.end - span.begin;
    // The window has only exchanges of rows, not the exchange of row counts before them.
    if (def.payload != Payload::kRows) continue;
    mine.window.add(span);
    mine.a2a.emplace_back(span.post, span.end);
  }
  return layers;
}

MoeTimes moe_times(std::vector<LayerSpans>& layers, Phase phase,
                   const std::vector<RankSpans>& ranks) {
  TimeSum layer, a2a, inside, busy;
  Nanoseconds n = 0;
  for (LayerSpans& spans : layers) {
    if (spans.phase != phase || spans.a2a.empty()) continue;
    const SpanBounds& window = spans.window;
    sort(spans.a2a);
    layer += spans.layer.end - spans.layer.begin;
    a2a += covered(spans.a2a);
    inside += window.end - window.begin;
    busy +=
        covered_within(ranks[static_cast<size_t>(spans.rank)].compute, window.begin, window.end);
    ++n;
  }
  if (n == 0) return {};
  const auto what = [] { return "an MoE layer"; };
  return {layer.mean(n, what), a2a.mean(n, what), inside.mean(n, what), busy.mean(n, what)};
}

/// Returns the compute time of experts, summed over layers and phases: as the mean over ranks, and
/// with the time of the busiest rank for each layer and phase.
std::pair<Nanoseconds, Nanoseconds> expert_times(const std::vector<LayerSpans>& layers,
                                                 int32_t num_ranks) {
  const auto ranks = static_cast<size_t>(num_ranks), count = layers.size() / ranks;
  TimeSum sum, busiest;
  for (size_t l = 0; l < count; ++l) {
    Nanoseconds most = 0;
    for (size_t r = 0; r < ranks; ++r) {
      const Nanoseconds ns = layers[r * count + l].expert_ns;
      sum += ns;
      most = std::max(most, ns);
    }
    busiest += most;
  }
  const auto what = [] { return "all compute of experts"; };
  return {sum.mean(num_ranks, what), busiest.ns(what)};
}

struct CollectiveSums {
  TimeSum wait, transfer;
  void add(const Span& span) {
    wait += span.begin - span.post;
    transfer += span.end - span.begin;
  }
  CollectiveTimes mean(Nanoseconds num_ranks, const char* what) const {
    const auto name = [what] { return what; };
    return {wait.mean(num_ranks, name), transfer.mean(num_ranks, name)};
  }
};

/// Times covered by spans, summed over ranks, and the compute time of the busiest rank.
struct Covered {
  Nanoseconds busiest = 0;
  TimeSum computes, comm, exposed, exposed_transfer;

  explicit Covered(std::vector<RankSpans>& ranks) {
    for (RankSpans& rank : ranks) {
      sort(rank.compute);
      sort(rank.transfer);
      sort(rank.posted);
      const Nanoseconds compute = covered(rank.compute);
      computes += compute;
      busiest = std::max(busiest, compute);
      comm += covered(rank.transfer);
      exposed += covered(both(rank.posted, rank.compute)) - compute;
      exposed_transfer += covered(both(rank.transfer, rank.compute)) - compute;
    }
  }
};

double over_mean(Nanoseconds busiest, Nanoseconds mean) {
  return mean > 0 ? static_cast<double>(busiest) / static_cast<double>(mean) : 1;
}

}  // namespace

Metrics metrics(const Graph& graph, const Timeline& timeline) {
  std::vector<RankSpans> ranks(static_cast<size_t>(timeline.num_ranks));
  Nanoseconds makespan = 0;
  CollectiveSums all, all_to_all, all_reduce;
  for (const Span& span : timeline.spans) {
    MOE_CHECK(span.rank >= 0 && span.rank < timeline.num_ranks,
              "a span of the timeline has rank {}, must be at least 0 and below {}, the timeline's "
              "number of ranks",
              span.rank, timeline.num_ranks);
    makespan = std::max(makespan, span.end);
    RankSpans& rank = ranks[static_cast<size_t>(span.rank)];
    if (graph.def(span.op).lane == LaneKind::kCompute) {
      rank.compute.emplace_back(span.begin, span.end);
    } else if (graph.def(span.op).lane == LaneKind::kComm) {
      rank.transfer.emplace_back(span.begin, span.end);
      rank.posted.emplace_back(span.post, span.end);
      all.add(span);
      const OpDef& def = graph.def(span.op);
      if (def.collective == Collective::kAllToAll) all_to_all.add(span);
      if (is_sync(def.payload)) all_reduce.add(span);
    }
  }
  const Covered sums(ranks);
  const Nanoseconds n = std::max<Nanoseconds>(timeline.num_ranks, 1);
  std::vector<LayerSpans> layers = layers_of(graph, timeline);
  const auto [expert_ns, busiest_expert_ns] = expert_times(layers, std::max(timeline.num_ranks, 1));
  const auto step = [] { return "a step"; };
  const Nanoseconds comm_ns = sums.comm.mean(n, step);
  TimeSum host;
  for (const Nanoseconds ns : timeline.host_ns) host += ns;
  return {.makespan_ns = makespan,
          .compute_ns = sums.computes.mean(n, step),
          .busiest_compute_ns = sums.busiest,
          .expert_ns = expert_ns,
          .busiest_expert_ns = busiest_expert_ns,
          .comm_ns = comm_ns,
          .exposed_comm_ns = sums.exposed.mean(n, step),
          .hidden_comm_ns = comm_ns - sums.exposed_transfer.mean(n, step),
          .host_bound_ns = host.mean(n, step),
          .wait_ns = all.mean(n, "all waiting for peers together").wait_ns,
          .all_to_all = all_to_all.mean(n, "the all-to-alls and their waits together"),
          .all_reduce = all_reduce.mean(n, "the all-reduces and their waits together"),
          .forward = moe_times(layers, Phase::kForward, ranks),
          .backward = moe_times(layers, Phase::kBackward, ranks)};
}

double Metrics::imbalance() const {
  return over_mean(busiest_compute_ns, compute_ns);
}

double Metrics::expert_imbalance() const {
  return over_mean(busiest_expert_ns, expert_ns);
}

double Metrics::pipelining_efficiency() const {
  const Nanoseconds window = forward.window_ns + backward.window_ns;
  const auto busy = static_cast<double>(forward.busy_ns + backward.busy_ns);
  return window > 0 ? busy / static_cast<double>(window) : 0;
}

}  // namespace moe
