// What spans waited for: on random programs, the thing that is named was over when the span began.
#include "engine/analysis/wait_causes.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <regex>

#include "engine/base/rng.h"
#include "engine/replay/replay.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

struct Replayed {
  Graph graph;
  Schedule schedule;
  LaneOrders orders;
  Timeline timeline;

  /// One op in three is a collective on one of two lanes, the second of which may pick its ops.
  explicit Replayed(uint64_t seed) : graph(fake::table()) {
    Rng rng(seed);
    for (int64_t i = 0; i < 60; ++i) {
      std::vector<TensorId> inputs;
      if (i > 0) inputs.push_back(graph.out(OpId(std::max<int64_t>(0, i - 1 - rng.below(9)))));
      graph.add_op(i % 3 == 2 ? "all_to_all" : "compute", fmt::format("op{}", i), inputs);
    }
    schedule = default_schedule(graph);
    schedule.lanes.push_back({"comm_2", LaneKind::kComm});
    if (seed % 2 == 0) schedule.lanes[2].pick = Pick::kPriority;
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId op(static_cast<int64_t>(i));
      if (schedule.lane_of[i] == LaneId(1) && rng.below(2) == 0) schedule.lane_of[i] = LaneId(2);
      if (i > 0 && rng.below(5) == 0) {
        schedule.before(OpId(rng.below(static_cast<int64_t>(i))), op, "test", "");
      }
    }
    orders = lane_orders(graph, schedule);
    const auto ns = [seed](OpId op, int32_t rank) {
      return Rng(seed * 1000 + op.index() * 8 + static_cast<uint64_t>(rank)).below(50);
    };
    const auto duration = [this, ns](OpId op, int32_t rank) {
      if (graph.def(op).collective == Collective::kNone) return ns(op, rank);
      return std::max({ns(op, 0), ns(op, 1), ns(op, 2)});
    };
    timeline = replay({.graph = graph,
                       .schedule = schedule,
                       .orders = orders,
                       .num_ranks = 3,
                       .duration_ns = duration});
  }
  const Span& span(OpId op, int32_t rank) const {
    return *std::find_if(timeline.spans.begin(), timeline.spans.end(),
                         [&](const Span& s) { return s.op == op && s.rank == rank; });
  }
  /// The latest end of an op whose data the op of the span needs.
  Nanoseconds data_ready(const Span& s) const {
    const Dependencies deps = dependencies(graph);
    Nanoseconds ready = 0;
    for (const OpId pred : deps.preds[s.op.index()]) {
      ready = std::max(ready, span(pred, s.rank).end);
    }
    return ready;
  }
};

TEST_CASE("what a span waited for was over when it began, and nothing was over later") {
  const std::regex named(
      R"((?:data of|order edge from|lane \w+, busy with) (\S+)(?: \(stage \w*\))?)");
  const std::regex late(R"(rank (\d), which posted last)");
  std::map<std::string, int> kinds;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Replayed r(seed);
    const WaitCauses causes(r.graph, r.schedule, r.timeline);
    for (const Span& span : r.timeline.spans) {
      const std::string cause = causes.of(span);
      INFO("seed " << seed << ", " << r.graph.op(span.op).name << ": '" << cause << "'");
      std::smatch match;
      if (cause.empty()) {
        CHECK((span.begin == 0 || r.data_ready(span) == span.begin));
      } else if (std::regex_match(cause, match, late)) {
        CHECK(r.span(span.op, std::stoi(match[1])).post == span.begin);
        CHECK(span.post < span.begin);
      } else {
        REQUIRE(std::regex_match(cause, match, named));
        CHECK(r.span(r.graph.find_op(match[1].str()), span.rank).end == span.begin);
        if (cause.substr(0, 4) != "data") CHECK(r.data_ready(span) <= span.begin);
      }
      ++kinds[cause.substr(0, cause.find(' '))];
    }
  }
  for (const char* kind : {"", "data", "order", "lane", "rank"}) CHECK(kinds[kind] > 20);
}

}  // namespace
}  // namespace moe
