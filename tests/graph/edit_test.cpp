#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/graph/edit.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/ops/ops.h"

namespace moe::test {
namespace {

using Catch::Contains;

/// Experts between their two exchanges, with a reader outside of an inner tensor.
Graph experts() {
  return parse_graph(R"(
graph g ranks=2
%0 param f32 [4,6,5] slots
%1 input i32 [4] counts
%2 param f32 [2,7,5] w expert
%3 = all_to_all(%0, %1) {to="expert"} go forward dispatch layer=1
%4 = expert_linear(%3, %2) fc forward expert layer=1
%5 = gelu(%4) act forward expert layer=1
%6 = all_to_all(%5, %1) {to="source"} back forward combine layer=1
%7 = gelu(%6) after forward combine layer=1
%8 = gelu(%4) aside forward combine layer=1
)",
                     op_table());
}

std::vector<OpId> chain(const Graph& graph) {
  std::vector<OpId> ops;
  for (const char* name : {"go", "fc", "act", "back"}) ops.push_back(graph.find_op(name));
  return ops;
}

std::vector<CutAxis> capacity_cuts(const Graph& graph) {
  return {{graph.find_tensor("slots"), 1}, {graph.find_tensor("go"), 2},
          {graph.find_tensor("fc"), 2},    {graph.find_tensor("act"), 2},
          {graph.find_tensor("back"), 1},  {graph.find_tensor("counts"), -1}};
}

std::vector<std::string> program(const Graph& graph) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops()) names.push_back(op.name);
  return names;
}

}  // namespace

TEST_CASE("redirect moves every reader but those that it is told to leave") {
  Graph graph = experts();
  const TensorId fc = graph.find_tensor("fc"), act = graph.find_tensor("act");
  redirect(graph, fc, act, std::vector<OpId>{graph.find_op("act")});
  CHECK(graph.op(graph.find_op("act")).inputs[0] == fc);
  CHECK(graph.op(graph.find_op("aside")).inputs[0] == act);
}

TEST_CASE("split_ops cuts inputs, clones the chain stage by stage and puts outputs together") {
  Graph graph = experts();
  const auto clones =
      split_ops(graph, chain(graph), capacity_cuts(graph), std::vector<int64_t>{2, 4});
  REQUIRE(clones.size() == 2);
  for (size_t p = 0; p < 2; ++p) {
    REQUIRE(clones[p].size() == 4);
    for (const OpId id : clones[p]) CHECK(graph.op(id).part == static_cast<int32_t>(p));
  }
  CHECK(graph.op(clones[1][1]).name == "fc.p1");
  CHECK(graph.tensor(graph.out(clones[1][1])).shape == Shape{2, 2, 4, 7});
  const Graph result = compact(graph);
  verify(result, "test");
  CHECK(program(result) == std::vector<std::string>{"go.split0", "go.p0", "go.p1", "fc.p0",
                                                    "act.p0", "fc.p1", "act.p1", "back.p0",
                                                    "back.p1", "fc.concat0", "aside",
                                                    "back.concat0", "after"});
  const Op& part = result.op(result.find_op("go.p1"));
  CHECK(part.layer == 1);
  CHECK(part.segment == Segment::kDispatch);
  CHECK(result.tensor(part.inputs[1]).name == "counts");
  CHECK(result.tensor(result.find_tensor("back.concat0")).shape == Shape{4, 6, 5 + 2});
}

TEST_CASE("split_ops refuses sizes that do not sum to the axis") {
  Graph graph = experts();
  CHECK_THROWS_WITH(
      split_ops(graph, chain(graph), capacity_cuts(graph), std::vector<int64_t>{2, 3}),
      Contains("sizes sum to 5") && Contains("[4,6,5]"));
}

TEST_CASE("split_ops refuses an axis that a tensor does not have") {
  Graph graph = experts();
  std::vector<CutAxis> cuts = capacity_cuts(graph);
  cuts[0].axis = 3;
  CHECK_THROWS_WITH(split_ops(graph, chain(graph), cuts, std::vector<int64_t>{2, 4}),
                    Contains("tensor 'slots' [4,6,5] has no axis 4 (from 1)"));
}

TEST_CASE("split_ops cuts a part again, and numbers the parts of parts in order") {
  Graph graph = experts();
  const auto clones =
      split_ops(graph, chain(graph), capacity_cuts(graph), std::vector<int64_t>{2, 4});
  std::vector<CutAxis> cuts;
  for (const OpId id : clones[1]) cuts.push_back({graph.out(id), 2});
  cuts.push_back({graph.op(clones[1][0]).inputs[0], 1});
  cuts[clones[1].size() - 1].axis = 1;
  const auto again = split_ops(graph, clones[1], cuts, std::vector<int64_t>{1, 3});
  CHECK(graph.op(again[1][0]).name == "go.p1.p1");
  CHECK(graph.op(again[1][0]).part == 3);
}

TEST_CASE("split_ops refuses an outside reader of a tensor without an axis") {
  Graph graph = experts();
  std::vector<CutAxis> cuts = capacity_cuts(graph);
  cuts.erase(cuts.begin() + 2);
  CHECK_THROWS_WITH(split_ops(graph, chain(graph), cuts, std::vector<int64_t>{2, 4}),
                    Contains("op 'aside' outside the chain reads tensor 'fc', so an axis along"));
}

TEST_CASE("split_ops refuses a chain that is out of order") {
  Graph graph = experts();
  std::vector<OpId> ops = chain(graph);
  std::swap(ops[1], ops[2]);
  CHECK_THROWS_WITH(split_ops(graph, ops, capacity_cuts(graph), std::vector<int64_t>{2, 4}),
                    Contains("op 'act' is listed before the producer of its input 'fc'"));
}

TEST_CASE("split_ops refuses a cut that does not reach the output whole") {
  Graph graph = experts();
  std::vector<CutAxis> cuts = capacity_cuts(graph);
  cuts[4] = {graph.find_tensor("back"), 2};
  CHECK_THROWS_AS(split_ops(graph, chain(graph), cuts, std::vector<int64_t>{2, 4}), UserError);
}

TEST_CASE("split_ops into one part is a renaming") {
  Graph graph = experts();
  split_ops(graph, chain(graph), capacity_cuts(graph), std::vector<int64_t>{6});
  const Graph result = compact(graph);
  verify(result, "test");
  CHECK(result.tensor(result.find_tensor("after")).shape == Shape{4, 6, 7});
}

}  // namespace moe::test
