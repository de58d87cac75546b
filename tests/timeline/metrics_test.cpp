#include "engine/timeline/metrics.h"

#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

constexpr int64_t kHorizon = 60;

/// Two ops, so that a span is of computation or of communication.
struct ComputeAndComm {
  Graph graph{fake::table()};
  OpId compute = graph.add_op("compute", "compute", {});
  OpId comm = graph.add_op("all_to_all", "comm", {});

  Span computes(Nanoseconds begin, Nanoseconds end, int32_t rank = 0) const {
    return {compute, rank, LaneId(0), begin, begin, end};
  }
  Span sends(Nanoseconds post, Nanoseconds begin, Nanoseconds end, int32_t rank = 0) const {
    return {comm, rank, LaneId(1), post, begin, end};
  }
};

/// Random spans; comm spans may overlap one another, as on several comm lanes.
Timeline random_timeline(const ComputeAndComm& ops, uint64_t seed, int32_t ranks, bool waits) {
  Rng rng(seed);
  Timeline timeline{.num_ranks = ranks};
  for (int i = 0; i < 6 * ranks; ++i) {
    const auto rank = static_cast<int32_t>(rng.below(ranks));
    const int64_t begin = rng.below(kHorizon - 20);
    const int64_t end = begin + rng.below(20);
    const int64_t post = waits ? rng.below(begin + 1) : begin;
    timeline.spans.push_back(rng.below(2) == 0 ? ops.computes(begin, end, rank)
                                               : ops.sends(post, begin, end, rank));
  }
  return timeline;
}

/// The definitions, nanosecond by nanosecond.
Metrics counted(const Graph& graph, const Timeline& timeline) {
  Metrics sum;
  int64_t hidden_by_count = 0;
  for (int32_t rank = 0; rank < timeline.num_ranks; ++rank) {
    for (int64_t t = 0; t < kHorizon; ++t) {
      bool computing = false, transferring = false, posted = false;
      for (const Span& s : timeline.spans) {
        if (s.rank != rank || t >= s.end) continue;
        const bool is_compute = graph.def(s.op).lane == LaneKind::kCompute;
        computing |= is_compute && t >= s.begin;
        transferring |= !is_compute && t >= s.begin;
        posted |= !is_compute && t >= s.post;
      }
      sum.compute_ns += computing;
      sum.comm_ns += transferring;
      sum.exposed_comm_ns += posted && !computing;
      hidden_by_count += transferring && computing;
    }
  }
  for (const Span& s : timeline.spans) {
    sum.makespan_ns = std::max(sum.makespan_ns, s.end);
    if (graph.def(s.op).lane == LaneKind::kComm) sum.wait_ns += s.begin - s.post;
  }
  sum.hidden_comm_ns = hidden_by_count;
  return sum;
}

void check_equal(const Metrics& a, const Metrics& b) {
  CHECK(a.makespan_ns == b.makespan_ns);
  CHECK(a.compute_ns == b.compute_ns);
  CHECK(a.comm_ns == b.comm_ns);
  CHECK(a.exposed_comm_ns == b.exposed_comm_ns);
  CHECK(a.hidden_comm_ns == b.hidden_comm_ns);
  CHECK(a.wait_ns == b.wait_ns);
}

TEST_CASE("metrics equal a count of every nanosecond") {
  const ComputeAndComm ops;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    const Timeline timeline = random_timeline(ops, seed, 1, true);
    check_equal(metrics(ops.graph, timeline), counted(ops.graph, timeline));
  }
}

TEST_CASE("over ranks the metrics are the mean of every rank's count") {
  const ComputeAndComm ops;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    const Timeline timeline = random_timeline(ops, seed, 3, true);
    const Metrics mean = metrics(ops.graph, timeline);
    const Metrics sum = counted(ops.graph, timeline);
    CHECK(mean.makespan_ns == sum.makespan_ns);
    CHECK(mean.compute_ns == sum.compute_ns / 3);
    CHECK(mean.comm_ns == sum.comm_ns / 3);
    CHECK(mean.exposed_comm_ns == sum.exposed_comm_ns / 3);
    CHECK(mean.wait_ns == sum.wait_ns / 3);
    CHECK(std::abs(mean.hidden_comm_ns - sum.hidden_comm_ns / 3) <= 1);  // comm less exposed
  }
}

TEST_CASE("without waiting, exposed and hidden communication make all of it") {
  const ComputeAndComm ops;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    const Metrics m = metrics(ops.graph, random_timeline(ops, seed, 4, false));
    CHECK(m.exposed_comm_ns + m.hidden_comm_ns == m.comm_ns);
    CHECK(m.wait_ns == 0);
  }
}

TEST_CASE("a transfer is hidden while its rank computes and exposed while another one does") {
  const ComputeAndComm ops;
  const Timeline timeline{.spans = {ops.computes(0, 10, 0), ops.sends(4, 6, 16, 0),
                                    ops.computes(12, 14, 0), ops.sends(6, 6, 16, 1)},
                          .num_ranks = 2};
  const Metrics m = metrics(ops.graph, timeline);
  CHECK(m.makespan_ns == 16);
  CHECK(m.compute_ns == (12 + 0) / 2);
  CHECK(m.comm_ns == (10 + 10) / 2);
  CHECK(m.exposed_comm_ns == (4 + 10) / 2);  // rank 0 waits behind its own computation
  CHECK(m.hidden_comm_ns == (6 + 0) / 2);
  CHECK(m.wait_ns == (2 + 0) / 2);
}

TEST_CASE("waiting for peers with nothing to compute is exposed, not transfer") {
  const ComputeAndComm ops;
  const Metrics m =
      metrics(ops.graph, {.spans = {ops.computes(0, 5), ops.sends(5, 25, 30)}, .num_ranks = 1});
  CHECK(m.comm_ns == 5);
  CHECK(m.exposed_comm_ns == 25);
  CHECK(m.hidden_comm_ns == 0);
  CHECK(m.wait_ns == 20);
}

TEST_CASE("sums over ranks of the longest times do not overflow") {
  const ComputeAndComm ops;
  constexpr Nanoseconds kLong = Nanoseconds{1} << 53;
  Timeline timeline{.num_ranks = 1500};
  for (int32_t r = 0; r < timeline.num_ranks; ++r) {
    timeline.spans.push_back(ops.computes(0, kLong / 2, r));
    timeline.spans.push_back(ops.sends(0, kLong / 2, kLong, r));
  }
  const Metrics m = metrics(ops.graph, timeline);
  CHECK(m.makespan_ns == kLong);
  CHECK(m.compute_ns == kLong / 2);
  CHECK(m.comm_ns == kLong / 2);
  CHECK(m.exposed_comm_ns == kLong / 2);
  CHECK(m.hidden_comm_ns == 0);
  CHECK(m.wait_ns == kLong / 2);
  CHECK(m.all_to_all.transfer_ns == kLong / 2);
}

TEST_CASE("an empty timeline has no time in it") {
  const ComputeAndComm ops;
  check_equal(metrics(ops.graph, {}), Metrics());
}

TEST_CASE("a span of a rank that the timeline does not have is a bug") {
  const ComputeAndComm ops;
  CHECK_THROWS_AS(metrics(ops.graph, {.spans = {ops.computes(0, 1, 2)}, .num_ranks = 2}),
                  InternalError);
}

/// A layer of two all-to-alls around an expert, forward and backward, and an all-reduce.
struct OneLayer {
  Graph graph{fake::table()};
  OpId add(const char* kind, const char* name, Segment segment, Phase phase) {
    const OpId op = graph.add_op(kind, name, {});
    graph.op(op).segment = segment;
    graph.op(op).phase = phase;
    graph.op(op).layer = 1;
    return op;
  }
  OpId gate = add("compute", "gate", Segment::kGate, Phase::kForward);
  OpId out = add("all_to_all", "out", Segment::kDispatch, Phase::kForward);
  OpId expert = add("compute", "expert", Segment::kExpert, Phase::kForward);
  OpId back = add("all_to_all", "back", Segment::kCombine, Phase::kForward);
  OpId attention = add("compute", "attention", Segment::kAttn, Phase::kForward);
  OpId dx = add("all_to_all", "dx", Segment::kCombine, Phase::kBackward);
  OpId reduce = add("all_reduce", "reduce", Segment::kUpdate, Phase::kBackward);

  /// post = begin unless given.
  Span span(OpId op, Nanoseconds begin, Nanoseconds end, Nanoseconds post = -1) const {
    const bool comm = graph.def(op).lane == LaneKind::kComm;
    return {op, 0, LaneId(comm ? 1 : 0), post < 0 ? begin : post, begin, end};
  }
};

TEST_CASE("pipelining efficiency is the busy share from a layer's first all-to-all to its last") {
  const OneLayer l;
  // Window 10..50; compute runs 20..30 (its expert) and 45..50 of another op's 45..60.
  const Timeline timeline{.spans = {l.span(l.gate, 0, 8), l.span(l.out, 10, 20, 8),
                                    l.span(l.expert, 20, 30), l.span(l.back, 30, 50),
                                    l.span(l.attention, 45, 60)}};
  const Metrics m = metrics(l.graph, timeline);
  CHECK(m.forward.layer_ns == 50);  // gate to the last all-to-all
  CHECK(m.forward.a2a_ns == 32);    // 8..20 and 30..50
  CHECK(m.forward.window_ns == 40);
  CHECK(m.forward.busy_ns == 15);
  CHECK(m.pipelining_efficiency() == Approx(15.0 / 40));
  CHECK(m.backward.layer_ns == 0);
}

TEST_CASE("overlapped parts count once, and forward and backward are weighed by their windows") {
  const OneLayer l;
  const Timeline timeline{.spans = {l.span(l.out, 0, 10), l.span(l.out, 10, 20),
                                    l.span(l.expert, 10, 20), l.span(l.expert, 20, 30),
                                    l.span(l.back, 20, 30), l.span(l.back, 30, 40),
                                    l.span(l.dx, 50, 150)}};
  const Metrics m = metrics(l.graph, timeline);
  CHECK(m.forward.a2a_ns == 40);
  CHECK(m.forward.busy_ns == 20);
  CHECK(m.backward.window_ns == 100);
  CHECK(m.pipelining_efficiency() == Approx(20.0 / 140));
}

TEST_CASE("waits and transfers are told apart, by kind of collective; chunks sum up") {
  const OneLayer l;
  // The all-reduce's second chunk is posted at 10 and lets the all-to-all pass.
  const Timeline timeline{
      .spans = {l.span(l.reduce, 3, 10, 1), l.span(l.dx, 10, 30, 5), l.span(l.reduce, 30, 37, 10)}};
  const Metrics m = metrics(l.graph, timeline);
  CHECK(m.all_to_all.wait_ns == 5);
  CHECK(m.all_to_all.transfer_ns == 20);
  CHECK(m.all_reduce.wait_ns == 2 + 20);
  CHECK(m.all_reduce.transfer_ns == 14);
  CHECK(m.wait_ns == m.all_to_all.wait_ns + m.all_reduce.wait_ns);
}

TEST_CASE("times of layers are means over ranks") {
  const OneLayer l;
  Span other = l.span(l.out, 0, 30);
  other.rank = 1;
  const Timeline timeline{.spans = {l.span(l.out, 0, 10), other}, .num_ranks = 2};
  CHECK(metrics(l.graph, timeline).forward.window_ns == 20);
}

}  // namespace
}  // namespace moe
