// Where tensors lie that ops join, and what verify() refuses.
#include "engine/graph/joined.h"

#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/graph/op_def.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/ops/ops.h"

namespace moe::test {
namespace {

using Catch::Contains;

constexpr const char* kTensors = R"(
graph g ranks=1
%0 param f32 [4,3] w
%1 state f32 [4,3] v
%2 input f32 [4,3] x
%3 input i32 [4] end0
%4 input i32 [4] end1
%5 = gelu(%2) a forward mlp
%6 = gelu(%5) b forward mlp
%7 = gelu(%6) c forward mlp
)";

Graph with(const std::string& ops) {
  return parse_graph(kTensors + ops, op_table());
}

void refuses(const std::string& ops, const std::string& message) {
  const Graph graph = with(ops);
  INFO(ops);
  CHECK_THROWS_AS(verify(graph, "my_pass"), UserError);
  CHECK_THROWS_WITH(verify(graph, "my_pass"),
                    Catch::StartsWith("my_pass: graph 'g': ") && Contains(message));
}

std::string name_of(const Graph& graph, TensorId t) {
  return graph.tensor(t).name;
}

TEST_CASE("without views nothing is joined") {
  const Graph graph = with("%8 = concat(%5, %6) {axis=0} w2 forward mlp\n");
  const JoinedTensors joined(graph);
  CHECK(joined.groups.empty());
  CHECK(joined.group_of == std::vector<int32_t>(graph.tensors().size(), -1));
}

TEST_CASE("pieces lie one behind the other, through chains of views, before and behind") {
  const Graph graph = with(R"(
%8 = concat(%5, %6) {axis=0, view=1} ab forward mlp
%9 = concat(%7, %8) {axis=0, view=1} cab forward mlp
%10, %11 = split(%9) {axis=0, sizes="6,6", view=1} cut forward mlp
%12, %13 = split(%2) {axis=0, sizes="1,3", view=1} cut_x forward mlp
)");
  verify(graph, "test");
  const JoinedTensors joined(graph);
  REQUIRE(joined.groups.size() == 2);
  std::map<std::string, int64_t> places;
  for (const TensorId t : joined.groups[0].members) {
    places["x " + name_of(graph, t)] = joined.offset[t.index()];
  }
  for (const TensorId t : joined.groups[1].members) {
    places[name_of(graph, t)] = joined.offset[t.index()];
  }
  CHECK(places == std::map<std::string, int64_t>{{"x x", 0},
                                                 {"x cut_x", 0},
                                                 {"x cut_x:1", 3},
                                                 {"c", 0},
                                                 {"a", 12},
                                                 {"b", 24},
                                                 {"ab", 12},
                                                 {"cab", 0},
                                                 {"cut", 0},
                                                 {"cut:1", 18}});
  CHECK(joined.groups[0].num_elements == 12);
  CHECK(joined.groups[1].num_elements == 36);
}

/// Leaves of random lengths, put together in a random tree; every node knows where it begins.
TEST_CASE("in a random tree of views every tensor lies where the leaves before it end") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    Graph graph(op_table());
    struct Node {
      TensorId tensor;
      std::vector<std::pair<TensorId, int64_t>> inside;  // where each tensor of the tree lies in it
    };
    std::vector<Node> row;
    for (int64_t i = 0, n = 2 + rng.below(10); i < n; ++i) {
      const TensorId leaf = graph.add_tensor({.name = fmt::format("leaf{}", i),
                                              .shape = {1 + rng.below(5), 2},
                                              .kind = TensorKind::kInput});
      row.push_back({leaf, {{leaf, 0}}});
    }
    for (int op = 0; row.size() > 1; ++op) {
      const auto at = rng.below(static_cast<int64_t>(row.size()) - 1);
      const auto count = 2 + rng.below(static_cast<int64_t>(row.size()) - 1 - at);
      Node made;
      std::vector<TensorId> parts;
      int64_t length = 0;
      for (int64_t i = at; i < at + count; ++i) {
        const Node& part = row[static_cast<size_t>(i)];
        parts.push_back(part.tensor);
        for (const auto& [t, begin] : part.inside) made.inside.emplace_back(t, begin + length);
        length += num_elements(graph.tensor(part.tensor).shape);
      }
      made.tensor = graph.out(graph.add_op("concat", fmt::format("c{}", op), parts,
                                           {{"axis", int64_t{0}}, {"view", int64_t{1}}}));
      made.inside.emplace_back(made.tensor, 0);
      row.erase(row.begin() + at, row.begin() + at + count);
      row.insert(row.begin() + at, made);
    }
    verify(graph, "test");
    const JoinedTensors joined(graph);
    REQUIRE(joined.groups.size() == 1);
    CHECK(joined.groups[0].members.size() == graph.tensors().size());
    for (const auto& [t, begin] : row[0].inside) CHECK(joined.offset[t.index()] == begin);
  }
}

TEST_CASE("a tensor that two views want at two places is refused") {
  refuses(R"(
%8 = concat(%5, %6) {axis=0, view=1} first forward mlp
%9 = concat(%6, %5) {axis=0, view=1} second forward mlp
)",
          "op 'second' needs tensor 'a' at element 12 of 'second', but it is already joined at "
          "element -12");
  refuses("%8 = concat(%5, %5) {axis=0, view=1} twice forward mlp\n",
          "op 'twice' needs tensor 'a' at element 12 of 'twice', but it is already joined at "
          "element 0");
}

TEST_CASE("a tensor that views put over another one's values is refused") {
  refuses(R"(
%8, %9 = split(%5) {axis=0, sizes="2,2", view=1} cut forward mlp
%10 = gelu(%8) over forward mlp
%11 = concat(%10, %9) {axis=0, view=1} whole forward mlp
)",
          "op 'whole' places tensor 'over' on elements of the storage where tensor 'a' has other "
          "values");
  refuses(
      R"(
%8 = concat(%5, %6) {axis=0, view=1} first forward mlp
%9 = concat(%7, %6) {axis=0, view=1} second forward mlp
)",
      "op 'second' places tensor 'c' on elements of the storage where tensor 'a' has other values");
  refuses(
      "%8 = concat(%2, %5) {axis=0, view=1} first forward mlp\n"
      "%9 = concat(%0, %5) {axis=0, view=1} second forward mlp\n",
      "has other values");
}

TEST_CASE("cut and put together again in the same order is no contradiction") {
  CHECK_NOTHROW(verify(with(R"(
%8, %9 = split(%2) {axis=0, sizes="2,2", view=1} cut forward mlp
%10 = concat(%8, %9) {axis=0, view=1} whole forward mlp
)"),
                       "test"));
}

TEST_CASE("rows of one join share their storage, rows of different ones must not") {
  const std::string join = "%8 = join_rows(%3, %4, %5, %6) {parts=2} first forward mlp\n";
  const Graph graph = with(join +
                           "%9, %10 = split(%8) {axis=0, sizes=\"2,2\", view=1} cut "
                           "forward mlp\n");
  CHECK_NOTHROW(verify(graph, "test"));
  const JoinedTensors joined(graph);
  REQUIRE(joined.groups.size() == 1);
  CHECK(joined.groups[0].num_elements == 12);
  CHECK(joined.offset[graph.find_tensor("b").index()] == 0);
  CHECK(joined.offset[graph.find_tensor("cut:1").index()] == 6);
  refuses(join + "%9 = join_rows(%3, %4, %5, %7) {parts=2} second forward mlp\n",
          "where tensor 'b' has other values");
  refuses(join + "%9 = join_rows(%3, %4, %8, %7) {parts=2} second forward mlp\n",
          "has other values");
}

TEST_CASE("rows of an input are refused, for their end would be cleared") {
  refuses("%8 = join_rows(%3, %4, %5, %2) {parts=2} j forward mlp\n",
          "op 'j' joins rows of tensor 'x' of kind input, and would clear");
}

TEST_CASE("a parameter that an op overwrites is not cut in place") {
  refuses(R"(
%8, %9 = split(%0) {axis=0, sizes="2,2", view=1} cut forward mlp
sgd(%0, %1, %5) update update update
)",
          "op 'update' overwrites tensor 'w', whose storage contains other tensors");
}

}  // namespace
}  // namespace moe::test
