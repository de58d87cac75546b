#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/model/model.h"
#include "tests/graph/random_graph.h"
#include "tests/model/gpt2.h"

namespace moe::test {
namespace {

using Catch::Contains;

OpId op_id(size_t i) {
  return OpId(static_cast<int64_t>(i));
}

/// Everything that a walk along successors meets.
std::set<OpId> walk(const Dependencies& deps, const std::vector<Edge>& more, OpId from) {
  std::set<OpId> seen;
  std::vector<OpId> todo = {from};
  while (!todo.empty()) {
    const OpId at = todo.back();
    todo.pop_back();
    std::vector<OpId> next = deps.succs[at.index()];
    for (const auto& [a, b] : more) {
      if (a == at) next.push_back(b);
    }
    for (const OpId s : next) {
      if (seen.insert(s).second) todo.push_back(s);
    }
  }
  return seen;
}

Graph shuffled(const Graph& graph, uint64_t seed) {
  std::vector<OpId> order;
  for (size_t i = 0; i < graph.num_ops(); ++i) order.push_back(op_id(i));
  Rng rng(seed);
  for (size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[static_cast<size_t>(rng.below(static_cast<int64_t>(i) + 1))]);
  }
  return with_order(graph, order);
}

std::vector<std::string> names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops()) {
    if (op.kind.valid()) names.push_back(op.name);
  }
  return names;
}

}  // namespace

TEST_CASE(
    "an op depends on the producers of its inputs and on every reader of what it overwrites") {
  const Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f32 [2,3] w
%1 state f32 [2,3] v
%2 = gelu(%0) a forward mlp
%3 = add(%2, %2) b forward mlp
%4 = gelu(%0) c forward mlp
sgd(%0, %1, %2) s update update
)",
                                  op_table());
  const Dependencies deps = dependencies(graph);
  CHECK(deps.preds[1] == std::vector<OpId>{op_id(0)});
  CHECK(deps.preds[2].empty());
  CHECK(deps.preds[3] == std::vector<OpId>{op_id(0), op_id(2)});
  CHECK(deps.succs[0] == std::vector<OpId>{op_id(1), op_id(3)});
  CHECK(deps.succs[2] == std::vector<OpId>{op_id(3)});
}

TEST_CASE("an op that overwrites a part of a whole waits for those who read the whole") {
  const Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f32 [2,3] w
%1 state f32 [2,3] v
%2 input f32 [2,3] x
%3 = gelu(%2) copy forward mlp
%4 = concat(%0, %3) {axis=0, view=1} whole forward mlp
%5 = gelu(%4) reads forward mlp
sgd(%0, %1, %2) s update update
)",
                                  op_table());
  const Dependencies deps = dependencies(graph);
  CHECK(deps.preds[3] == std::vector<OpId>{op_id(1), op_id(2)});
  CHECK_NOTHROW(verify(graph, "test"));
}

TEST_CASE("ops that overwrite the same tensor go in program order, after all other readers") {
  const Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f32 [2,3] w
%1 state f32 [2,3] v
%2 input f32 [2,3] x
sgd(%0, %1, %2) first update update
sgd(%0, %1, %2) second update update
%3 = gelu(%0) reads forward mlp
)",
                                  op_table());
  const Dependencies deps = dependencies(graph);
  CHECK(deps.preds[0] == std::vector<OpId>{op_id(2)});
  CHECK(deps.preds[1] == std::vector<OpId>{op_id(0)});
}

TEST_CASE("removed ops have no edges") {
  Graph graph = random_graph(3, 30);
  graph.remove(op_id(7));
  const Dependencies deps = dependencies(graph);
  CHECK(deps.preds[7].empty());
  CHECK(deps.succs[7].empty());
}

TEST_CASE("reachability is what a walk along the edges finds") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Graph graph = random_graph(seed, 70);
    const Dependencies deps = dependencies(graph);
    Rng rng(seed + 100);
    std::vector<Edge> more;
    for (int i = 0; i < 8 && seed % 2 == 1; ++i) {  // forward in program order: no cycle
      const int64_t a = rng.below(60);
      more.emplace_back(a, a + 1 + rng.below(10));
    }
    const Reachability reach(graph, deps, more);
    for (size_t a = 0; a < graph.num_ops(); ++a) {
      const std::set<OpId> seen = walk(deps, more, op_id(a));
      for (size_t b = 0; b < graph.num_ops(); ++b) {
        CHECK(reach.reaches(op_id(a), op_id(b)) == seen.contains(op_id(b)));
        CHECK(reach.independent(op_id(a), op_id(b)) ==
              (!seen.contains(op_id(b)) && !reach.reaches(op_id(b), op_id(a))));
      }
    }
  }
}

TEST_CASE("reachability names the ops of a cycle that extra edges close") {
  const Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f32 [2,3] w
%1 = gelu(%0) a forward mlp
%2 = gelu(%1) b forward mlp
%3 = gelu(%2) c forward mlp
%4 = gelu(%3) d forward mlp
)",
                                  op_table());
  const std::vector<Edge> back = {{op_id(2), op_id(0)}};
  CHECK_THROWS_WITH(Reachability(graph, dependencies(graph), back),
                    Contains("graph 'g': ops form a cycle: ") &&
                        (Contains("a -> b -> c -> a") || Contains("b -> c -> a -> b") ||
                         Contains("c -> a -> b -> c")));
}

TEST_CASE("compact leaves a legal graph as it is") {
  Gpt2 model;
  model.layers = 2;
  Graph graph = build_forward(model, gate_spec(model), 2);
  add_backward_and_update(graph, {}, {});
  CHECK(print(compact(graph)) == print(graph));
}

TEST_CASE("compact brings shuffled ops into an order in which verify finds nothing") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Graph graph = random_graph(seed, 50);
    const Graph mixed = shuffled(graph, seed);
    const Graph sorted = compact(mixed);
    CHECK_NOTHROW(verify(sorted, "test"));
    std::vector<std::string> before = names(mixed), after = names(sorted);
    std::sort(before.begin(), before.end());
    std::sort(after.begin(), after.end());
    CHECK(before == after);
  }
}

TEST_CASE("compact takes, of the ops that could come next, the one that stood first") {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Graph mixed = shuffled(random_graph(seed, 40), seed + 50);
    const Dependencies deps = dependencies(mixed);
    const std::vector<OpId> order = topological_order(mixed, deps);
    std::set<OpId> done;
    for (const OpId next : order) {
      for (size_t i = 0; i < next.index(); ++i) {
        const bool could =
            !done.contains(op_id(i)) && std::all_of(deps.preds[i].begin(), deps.preds[i].end(),
                                                    [&](OpId p) { return done.contains(p); });
        CHECK_FALSE(could);
      }
      done.insert(next);
    }
  }
}

TEST_CASE("compact drops removed ops and what only they touched, and keeps what persists") {
  Graph graph = parse_graph(R"(
graph g ranks=3
%0 param f32 [2,3] w
%1 state f32 [2,3] v
%2 input i32 [4] ids
%3 = gelu(%0) a forward mlp
%4 = gelu(%3) b forward mlp
%5 = gelu(%0) c forward mlp
)",
                            op_table());
  graph.remove(graph.find_op("b"));
  graph.remove(graph.find_op("a"));
  const Graph result = compact(graph);
  CHECK(names(result) == std::vector<std::string>{"c"});
  CHECK(result.num_ranks == 3);
  CHECK(result.find_tensor("w").valid());
  CHECK(result.find_tensor("v").valid());
  CHECK(result.find_tensor("ids").valid());
  CHECK_FALSE(result.find_tensor("a").valid());
  CHECK(result.tensors().size() == 4);
}

TEST_CASE("compact refuses a cycle and names its ops") {
  Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f32 [2,3] w
%1 = gelu(%0) a forward mlp
%2 = add(%1, %0) b forward mlp
)",
                            op_table());
  graph.op(graph.find_op("a")).inputs[0] = graph.find_tensor("b");
  CHECK_THROWS_AS(compact(graph), UserError);
  CHECK_THROWS_WITH(compact(graph), Contains("ops form a cycle: a -> b -> a"));
}

}  // namespace moe::test
