// Timelines of small tables, computed by hand: transfers, pairs, sums, activations.
#include <tuple>

#include "tests/pipeline/support.h"

namespace moe::test {
namespace {

using pipeline::Costs;
using pipeline::PairRule;
using pipeline::SendMode;
using Numbers = std::vector<double>;

/// Returns begin and end of all entries of a rank.
Numbers spans(const pipeline::Timeline& t, size_t rank) {
  Numbers all;
  for (const pipeline::Entry& entry : t.entries[rank]) {
    all.push_back(entry.begin), all.push_back(entry.end);
  }
  return all;
}

TEST_CASE("transfers at once, on a link, and from a sender that waits") {
  const Pipeline p = tabled("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1", {2, 2, 2});
  Costs costs = alike(2, 1, 1, 1);
  costs.send_f = 3, costs.send_b = 1;
  CHECK(spans(p.times(costs), 1) == Numbers{4, 5, 5, 6, 6, 8, 8, 10});
  CHECK(spans(p.times(costs), 0) == Numbers{0, 1, 1, 2, 9, 11, 11, 13});
  costs.mode = SendMode::kLink;  // the second activation begins when the first has arrived
  CHECK(spans(p.times(costs), 1) == Numbers{4, 5, 7, 8, 8, 10, 10, 12});
  costs.mode = SendMode::kBlocking;
  const pipeline::Timeline t = p.times(costs);
  CHECK(spans(t, 0) == Numbers{0, 1, 4, 5, 12, 14, 15, 17});
  CHECK(spans(t, 1) == Numbers{4, 5, 8, 9, 9, 11, 12, 14});
  CHECK(t.step == 17);
  CHECK(t.busy == Numbers{6, 6});
  CHECK(t.bubble == Numbers{11, 11});
  CHECK(t.inner == Numbers{11, 4});
  CHECK(t.sending == Numbers{6, 2});
}

TEST_CASE("a link's own time holds for its direction alone") {
  const Pipeline p = tabled("0F0,0B0\n1F0,1B0\n2F0,2B0", {3, 3, 1});
  Costs costs = alike(3, 1, 1, 1);
  costs.send_f = costs.send_b = 1;
  costs.links = {{1, 2, 5}};
  CHECK(spans(p.times(costs), 2) == Numbers{8, 9, 9, 11});
  CHECK(spans(p.times(costs), 0) == Numbers{0, 1, 15, 17});
}

TEST_CASE("a pair gives both results at its end, of which the activation is sent first") {
  // Stage 1 is on rank 1 on the way down, stage 2 on the way back, so that one link has both.
  const Pipeline p = tabled(
      "0F0,0F1,3F0,(3F1;3B0)OVERLAP_F_B,3B1,0B0,0B1\n"
      "1F0,2F0,(1F1;2B0)OVERLAP_F_B,2F1,1B0,2B1,1B1",
      {2, 4, 2, pipeline::Placing::kV});
  REQUIRE(!find_faults(p.rows, p.shape, false).empty());  // 3B0 needs no 3F1, but 3F1 needs 2F1
  const Pipeline q = tabled(
      "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n"
      "1F0,2F0,(1F1;2B0)OVERLAP_F_B,2F1,1B0,2B1,1B1",
      {2, 4, 2, pipeline::Placing::kV});
  REQUIRE(find_faults(q.rows, q.shape, false).empty());
  Costs costs = alike(4, 1, 1, 1);
  costs.send_f = costs.send_b = 1;
  // 2F0 ends at 4, 3B0 at 8; the pair waits for it until 9.
  const std::vector<std::tuple<PairRule, double, double>> rules = {{PairRule::kSum, 0, 12},
                                                                   {PairRule::kMax, 0, 11},
                                                                   {PairRule::kFixed, 2.5, 11.5},
                                                                   {PairRule::kSaving, 0.5, 11.5},
                                                                   {PairRule::kSaving, 9, 11}};
  for (const auto& [rule, value, end] : rules) {
    costs.pair = rule, costs.pair_value = value;
    CHECK(q.times(costs).entries[1][2].begin == 9);
    CHECK(q.times(costs).entries[1][2].end == end);
  }
  const Pipeline both =
      tabled("0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2B0,2F1,2B1", {3, 3, 2});
  REQUIRE(find_faults(both.rows, both.shape, false).empty());
  costs = alike(3, 1, 1, 1);
  costs.send_f = 2, costs.send_b = 4, costs.mode = SendMode::kBlocking;
  // The pair runs from 12 (2B0 ends at 9 and is sent until 13) to 16; then 2 and 4 are sent.
  const pipeline::Timeline t = both.times(costs);
  CHECK(spans(t, 2) == Numbers{6, 7, 7, 9, 18, 19, 19, 21});
  CHECK(spans(t, 0) == Numbers{0, 1, 3, 4, 22, 24, 31, 33});
}

TEST_CASE("times of stages differ, and that of a whole backward may be its own") {
  const Pipeline p = tabled("0F0,0B0\n1F0,1I0,1W0", {2, 2, 1});
  Costs costs{.f = {1, 2}, .b = {10, 20}, .i = {3, 4}, .w = {5, 6}};
  CHECK(spans(p.times(costs), 0) == Numbers{0, 1, 7, 17});
  CHECK(spans(p.times(costs), 1) == Numbers{1, 3, 3, 7, 7, 13});  // W delays nobody
  costs.b.clear();
  CHECK(spans(p.times(costs), 0) == Numbers{0, 1, 7, 15});
}

TEST_CASE("activations count as much as their stage, and W gives back what I keeps") {
  const auto row = [](const std::string& text) { return pipeline::parse_table(text, 1).rows; };
  CHECK(peaks(row("0F0,1F0,1B0,0F1"), {3, 1}, 1) == Numbers{6});
  CHECK(peaks(row("0F0,0I0,0F1,0I1,0F2,0W0"), {}, 0.5) == Numbers{2});
  CHECK(peaks(row("0F0,0I0,0F1,0I1,0F2,0W0"), {}, 0) == Numbers{1});
  CHECK(peaks(row("0F0,(0F1;0B0)OVERLAP_F_B,0B1"), {}, 1) == Numbers{2});
  CHECK(peaks(row(",,"), {}, 1) == Numbers{0});
}

TEST_CASE("a row may be out of the order of its neighbours") {
  const Pipeline p = tabled("0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0", {2, 2, 2});
  REQUIRE(find_faults(p.rows, p.shape, false).empty());
  const pipeline::Timeline t = p.times(alike(2, 1, 1, 1));
  CHECK(t.step == 12);
  CHECK(spans(t, 1) == Numbers{2, 3, 3, 5, 5, 6, 6, 8});
}

TEST_CASE("the time of a long pipeline grows linearly with its turns") {
  const Pipeline p = scheduled("1f1b", {64, 1, 1024});
  CHECK(p.times(alike(64, 1, 1, 1)).bubble[63] == 63 * 3);
}

}  // namespace
}  // namespace moe::test
