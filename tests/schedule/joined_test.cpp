// Storage of tensors that ops join: planned for no more than the whole, and guarded.
#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/graph/verify.h"
#include "tests/schedule/joined_fixture.h"

namespace moe::fake::joined {
namespace {

using Catch::Contains;

TEST_CASE("random programs with views and rows have legal plans") {
  size_t joined = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Case c = random_case(seed);
    INFO("seed " << seed);
    CHECK_NOTHROW(verify(c.graph, "test"));
    CHECK(c.refusal() == "");
    joined += c.joined.groups.size();
  }
  CHECK(joined > 300);
}

TEST_CASE("a piece lies at its offset in its whole and ends where its elements end") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Case c = random_case(seed);
    for (const Op& op : c.graph.ops()) {
      for (const Piece& p : pieces(c.graph, op)) {
        CHECK(c.at(p.piece).offset == c.at(p.whole).offset + 4 * p.offset);
        CHECK(c.at(p.piece).bytes == 4 * num_elements(c.graph.tensor(p.piece).shape));
        CHECK(c.at(p.piece).persistent == c.at(p.whole).persistent);
        CHECK(!c.at(p.piece).alias_of.valid());
      }
    }
    for (const Buffer& buffer : c.memory.buffers) {
      if (buffer.alias_of.valid()) CHECK(c.at(buffer.alias_of).joined < 0);
    }
  }
}

TEST_CASE("tensors that are not joined share no byte while one of a group may be in use") {
  int64_t shared = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const Case c = random_case(seed);
    const std::vector<TensorId> all = all_tensors(c.graph);
    for (const TensorId a : all) {
      for (const TensorId b : all) {
        if (b <= a || !c.overlap(a, b) || c.group(a) == c.group(b)) continue;
        ++shared;
        INFO("seed " << seed << ": " << c.graph.tensor(a).name << " " << c.graph.tensor(b).name);
        const bool fine =
            c.over_before(a, b) || c.over_before(b, a) || c.in_place(a, b) || c.in_place(b, a);
        REQUIRE(fine);
      }
    }
  }
  CHECK(shared > 1000);
}

TEST_CASE("a foreign tensor placed over a live piece, or a piece over it, is refused") {
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    const Case good = random_case(seed);
    Rng rng(seed);
    for (const TensorId foreign : all_tensors(good.graph)) {
      if (good.at(foreign).persistent || good.group(foreign).size() > 1) continue;
      for (const JoinedTensors::Group& group : good.joined.groups) {
        const auto pick = rng.below(static_cast<int64_t>(group.members.size()));
        const TensorId piece = group.members[static_cast<size_t>(pick)];
        Case c = good;
        if (c.at(piece).persistent) continue;
        c.at(foreign).offset = c.at(piece).offset;
        c.memory.arena_bytes += 1 << 20;  // so that only the sharing is wrong
        const bool before_writers =
            std::all_of(group.members.begin(), group.members.end(), [&](TensorId t) {
              return !c.writes(t) || !c.overlap(t, foreign) ||
                     c.all_over(foreign, c.uses.producer[t.index()]);
            });
        if (before_writers || c.all_over(piece, c.uses.producer[foreign.index()])) continue;
        CHECK_THAT(c.refusal(), Contains("writes tensor") && Contains("into the storage") &&
                                    Contains("stage 'memory'"));
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("a piece out of its place is refused by name") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Case good = random_case(seed);
    for (const JoinedTensors::Group& group : good.joined.groups) {
      const TensorId piece = group.members.back();
      Case c = good;
      c.at(piece).offset += 64;
      c.memory.arena_bytes += 64, c.memory.persistent_bytes += 64;
      CHECK_THAT(c.refusal(), Contains("tensor '" + c.graph.tensor(piece).name + "'") &&
                                  Contains("is not at its offset"));
      c = good;
      c.at(piece).persistent = !c.at(piece).persistent;
      CHECK_THAT(c.refusal(), Contains("is not at its offset"));
    }
  }
}

/// Compute and two comm lanes; ops named *2 are on the third lane.
Schedule three_lanes(const Graph& graph) {
  Schedule schedule = default_schedule(graph);
  schedule.lanes.push_back({"comm2", LaneKind::kComm});
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    if (graph.ops()[i].name.back() == '2') schedule.lane_of[i] = LaneId(2);
  }
  return schedule;
}

TEST_CASE(
    "each op that writes a piece must wait for whoever had the storage, not the first alone") {
  // Two parts of rows lie over all of it.
  Graph rows(table());
  const OpId begin = add(rows, "work", "start");
  const OpId row_ends = rows.add_op("work", "row_ends", {}, {{"sizes", "4"}, {"i32", int64_t{1}}});
  const OpId had = rows.add_op("rows", "had", {rows.out(begin)});
  const OpId read = add(rows, "send", "read", {rows.out(had)});
  const OpId r1 = rows.add_op("send_rows", "r1", {rows.out(begin)});
  const OpId r2 = rows.add_op("send_rows", "r2", {rows.out(begin)});
  rows.add_op("join_rows", "join",
              {rows.out(row_ends), rows.out(row_ends), rows.out(r1), rows.out(r2)},
              {{"parts", {2}}});
  Schedule schedule = three_lanes(rows);
  schedule.before(read, r1, "test", "r1 comes after all uses of 'had'");
  Case c(rows, schedule);
  CHECK(c.refusal() == "");
  c.at(rows.out(had)).offset = c.at(rows.out(r1)).offset;
  CHECK_THAT(c.refusal(),
             Contains("op 'r2'") && Contains("storage of tensor 'had'") && Contains("op 'had'"));
  schedule.before(read, r2, "test", "now r2 does too");
  c = Case(rows, schedule);
  c.at(rows.out(had)).offset = c.at(rows.out(r1)).offset;
  CHECK(c.refusal() == "");
}

TEST_CASE("a group starts with the op before all of its writers, and without one is refused") {
  Graph graph(table());
  const OpId early = add(graph, "work", "early"), start = add(graph, "work", "start");
  const OpId p1 = add(graph, "send", "p1", {graph.out(start)});
  const OpId p2 = add(graph, "send", "p2", {graph.out(start), graph.out(early)});
  glue(graph, "whole", {graph.out(p1), graph.out(p2)});
  const Case c(graph, three_lanes(graph));
  REQUIRE(c.memory.joined.size() == 1);
  CHECK(c.memory.joined[0].start == start);
  Schedule ordered = three_lanes(graph);
  ordered.before(p1, p2, "test", "");
  CHECK(Case(graph, ordered).memory.joined[0].start == p1);

  Graph loose(table());
  const OpId q1 = add(loose, "send", "q1"), q2 = add(loose, "send", "q2");
  glue(loose, "whole", {loose.out(q1), loose.out(q2)});
  CHECK_THAT(message_of<RunError>([&] { Case(loose, three_lanes(loose)); }),
             Contains("'q1', 'q2', 'whole'") && Contains("share one storage"));
}

TEST_CASE("a group stays until the last use of any member") {
  Graph graph(table());
  const OpId a = add(graph, "work", "a"), b = add(graph, "work", "b");
  const OpId whole = glue(graph, "whole", {graph.out(a), graph.out(b)});
  add(graph, "work", "reads_whole", {graph.out(whole)});
  const OpId other = add(graph, "work", "other", {}, "32");
  const OpId last = add(graph, "work", "reads_piece", {graph.out(b)});
  const OpId next = add(graph, "work", "next", {graph.out(last)}, "32");
  const Case c(graph, default_schedule(graph));
  CHECK(!c.overlap(graph.out(other), graph.out(whole)));
  CHECK(c.overlap(graph.out(next), graph.out(whole)));
}

TEST_CASE("a piece of an input lies in the input, and costs no storage") {
  Graph graph(table());
  const TensorId v = graph.add_tensor({.name = "v", .shape = {3}, .kind = TensorKind::kInput});
  const TensorId x = graph.add_tensor({.name = "x", .shape = {30}, .kind = TensorKind::kInput});
  const TensorId y = graph.add_tensor({.name = "y", .shape = {3}, .kind = TensorKind::kInput});
  const OpId halves = cut(graph, "halves", x, 7);
  add(graph, "work", "a", {graph.out(halves, 1), v, y});
  Case c(graph, default_schedule(graph));
  CHECK(c.refusal() == "");
  CHECK(c.memory.persistent_bytes == 64 + 128 + 64);
  CHECK(c.at(x).offset == 64);
  CHECK(c.at(graph.out(halves)).offset == 64);
  CHECK(c.at(graph.out(halves, 1)).offset == 64 + 28);
  CHECK(c.at(graph.out(halves, 1)).persistent);
  CHECK(c.memory.arena_bytes == 64);
  c.at(y).offset = 128;
  CHECK_THAT(c.refusal(), Contains("persistent tensor 'y'"));
}

/// x -> y -> z, whole or with y in `parts` parts, and a late reader of y as a backward has.
MemoryPlan chain_in_parts(int64_t parts, bool view) {
  Graph graph(table());
  const auto sizes = [parts](int64_t n) { return std::to_string(n / parts); };
  const OpId x = add(graph, "work", "x", {}, "4096");
  TensorId y;
  if (parts == 1) {
    y = graph.out(add(graph, "work", "y", {graph.out(x)}, "8192"));
  } else {
    std::string text = sizes(4096);
    for (int64_t p = 1; p < parts; ++p) text += "," + sizes(4096);
    const OpId cut = graph.add_op("split", "cut", {graph.out(x)},
                                  {{"axis", int64_t{0}}, {"sizes", text}, {"view", int64_t{view}}});
    std::vector<TensorId> made;
    for (int64_t p = 0; p < parts; ++p) {
      const auto i = static_cast<size_t>(p);
      made.push_back(
          graph.out(add(graph, "work", fmt::format("y{}", p), {graph.out(cut, i)}, sizes(8192))));
    }
    y = graph.out(
        graph.add_op("concat", "y", made, {{"axis", int64_t{0}}, {"view", int64_t{view}}}));
  }
  const OpId z = add(graph, "work", "z", {y}, "2048");
  add(graph, "work", "dy", {graph.out(z), y, graph.out(x)}, "1");
  const Schedule schedule = default_schedule(graph);
  return plan_memory(graph, schedule, lane_orders(graph, schedule));
}

TEST_CASE("a chain in parts needs the memory of the whole chain") {
  const MemoryPlan whole = chain_in_parts(1, false);
  for (const int64_t parts : {2, 4, 8}) {
    CHECK(chain_in_parts(parts, true).peak_bytes() == whole.peak_bytes());
    CHECK(chain_in_parts(parts, true).liveness_bytes == whole.liveness_bytes);
    CHECK(chain_in_parts(parts, false).peak_bytes() > whole.peak_bytes());
  }
}

TEST_CASE("joined tensors are one holder of the peak, under the name of the largest") {
  Graph graph(table());
  const std::string half = std::to_string(1 << 17);
  const OpId a = add(graph, "work", "a", {}, half), b = add(graph, "work", "b", {}, half);
  const OpId whole = glue(graph, "whole", {graph.out(a), graph.out(b)});
  add(graph, "work", "end", {graph.out(whole)}, "1");
  const Schedule schedule = default_schedule(graph);
  const LaneOrders orders = lane_orders(graph, schedule);
  CHECK(peak_of(graph, schedule, orders, plan_memory(graph, schedule, orders), 2).holders ==
        std::vector<std::string>{"whole 1.0 MiB", "end 0.0 MiB"});
}

TEST_CASE("an irregular collective may send rows that were joined, by the row ends of them all") {
  Graph graph(table());
  const auto row_ends = [&](const char* name, std::vector<TensorId> inputs) {
    return graph.out(
        graph.add_op("work", name, std::move(inputs), {{"sizes", "4"}, {"i32", int64_t{1}}}));
  };
  const TensorId logits = graph.out(add(graph, "work", "logits"));
  const TensorId end1 = row_ends("gate1", {logits}), end2 = row_ends("gate2", {logits, end1});
  const OpId p1 = graph.add_op("rows", "p1", {logits, end1});
  const OpId p2 = graph.add_op("rows", "p2", {logits, end2});
  const OpId join = graph.add_op("join_rows", "join", {end1, end2, graph.out(p1), graph.out(p2)},
                                 {{"parts", {2}}});
  for (const TensorId counts : {end2, end1}) {
    Graph g = graph;
    g.add_op("send", "a2a", {g.out(join), counts}, {{"irregular", {1}}});
    const std::string refusal = Case(g, default_schedule(g)).refusal();
    if (counts == end2) CHECK(refusal == "");
    if (counts == end1) CHECK_THAT(refusal, Contains("'a2a'") && Contains("'gate2'"));
  }
}

}  // namespace
}  // namespace moe::fake::joined
