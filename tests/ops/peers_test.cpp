// split_peers and join_peers on every rank of a group.
#include <catch2/catch.hpp>

#include <numeric>

#include "engine/base/errors.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/text.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/ops.h"

namespace moe::test {
namespace {

using Catch::Contains;

Graph rounds_of_four(const std::string& ops) {
  return parse_graph("graph g ranks=4\n%1 param f64 [8,3,2] x\n%2 param f64 [2,3,2] y\n" + ops,
                     op_table());
}

void run(const Graph& graph, const std::string& name, int64_t rank, std::vector<void*> inputs,
         std::vector<void*> outputs) {
  const Op& op = graph.op(graph.find_op(name));
  RankContext context;
  context.rank = rank;
  context.num_ranks = graph.num_ranks;
  graph.def(op).run.f64({.graph = graph,
                         .op = op,
                         .inputs = inputs,
                         .outputs = outputs,
                         .scratch = nullptr,
                         .k = kernels::table<double>(),
                         .rank = context});
}

}  // namespace

TEST_CASE("part j are the slots of the group j further on, and joined they are the whole") {
  const Graph graph = rounds_of_four(
      "%10, %11 = split_peers(%1) {rounds=2} cut forward dispatch\n"
      "%12 = join_peers(%10, %11) {rounds=2} join forward combine\n");
  std::vector<double> x(48), y(48), first(24), second(24);
  std::iota(x.begin(), x.end(), 0);
  for (int64_t rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    run(graph, "cut", rank, {x.data()}, {first.data(), second.data()});
    CHECK(first[0] == (rank < 2 ? 0 : 24));
    CHECK(second[0] == (rank < 2 ? 24 : 0));
    // A permutation, so its transpose, the gradient, is its inverse.
    run(graph, "join", rank, {first.data(), second.data()}, {y.data()});
    CHECK(y == x);
  }
}

TEST_CASE("parts of rounds that do not fit are refused") {
  CHECK_THROWS_WITH(rounds_of_four("%9, %10, %11 = split_peers(%1) {rounds=3} s forward dispatch"),
                    Contains("op 's': rounds = 3: must divide the 4 ranks"));
  CHECK_THROWS_WITH(
      rounds_of_four("%9, %10 = split_peers(%2) {rounds=2} s forward dispatch"),
      Contains("op 's' (split_peers): 2 experts cannot be divided evenly among 4 ranks"));
  CHECK_THROWS_WITH(
      rounds_of_four("%9 = join_peers(%1) {rounds=2} j forward dispatch"),
      Contains("op 'j' (join_peers): it has 1 inputs, expected one part per round, 2"));
  CHECK_THROWS_WITH(
      rounds_of_four("%9 = all_to_all(%1) {round=2, rounds=2, to=\"expert\"} a forward dispatch"),
      Contains("op 'a': round = 2: 0 to 1 is allowed"));
  CHECK_THROWS_WITH(
      rounds_of_four(
          "%3 input i32 [8] n\n%9 = all_to_all(%1, %3, %3) {rounds=2, to=\"expert\"} a forward "
          "dispatch"),
      Contains(
          "op 'a' (all_to_all): with attribute 'rounds' and without 'irregular' = 1 all slots"));
}

TEST_CASE("the gradient of a round goes the opposite way in the same round") {
  const Graph graph = rounds_of_four(
      "%9 = all_to_all(%1) {round=1, rounds=4, to=\"expert\"} s forward dispatch\n"
      "%10 = all_to_all(%9) {round=1, rounds=4, to=\"source\"} r forward combine\n");
  const Op &s = graph.op(graph.find_op("s")), &r = graph.op(graph.find_op("r"));
  CHECK(graph.tensor(s.outputs[0]).shape == Shape{8, 1, 3, 2});
  CHECK(graph.tensor(r.outputs[0]).shape == Shape{8, 3, 2});
  CHECK(round_of(graph, s) == Round{1, 4});
  CHECK(round_of(graph, r) == Round{3, 4});
}

}  // namespace moe::test
