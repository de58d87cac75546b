#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "tests/graph/random_graph.h"
#include "tests/model/gpt2.h"

namespace moe::test {
namespace {

using Catch::Contains;

void check_same(const Graph& a, const Graph& b) {
  CHECK(a.name == b.name);
  CHECK(a.num_ranks == b.num_ranks);
  REQUIRE(a.tensors().size() == b.tensors().size());
  for (size_t t = 0; t < a.tensors().size(); ++t) {
    const Tensor &x = a.tensors()[t], &y = b.tensors()[t];
    INFO(x.name);
    CHECK((x.name == y.name && x.shape == y.shape && x.dtype == y.dtype && x.kind == y.kind &&
           x.held == y.held));
  }
  REQUIRE(a.num_ops() == b.num_ops());
  for (size_t i = 0; i < a.num_ops(); ++i) {
    const Op &x = a.ops()[i], &y = b.ops()[i];
    INFO(x.name);
    CHECK((x.name == y.name && x.kind == y.kind && x.inputs == y.inputs && x.outputs == y.outputs));
    CHECK((x.attrs == y.attrs && x.rows == y.rows && x.of.valid() == y.of.valid() &&
           x.phase == y.phase && x.segment == y.segment && x.layer == y.layer && x.part == y.part &&
           x.is_dw == y.is_dw));
  }
}

/// The graph of one op line after two parameters.
Graph parse_line(const std::string& line) {
  return parse_graph("graph g ranks=1\n%0 param f32 [2,3] x\n%1 param f32 [4,3] w\n" + line,
                     op_table());
}

}  // namespace

TEST_CASE("printing a built step and reading it back gives the same graph") {
  Gpt2 model;
  model.layers = 4;
  model.gate = GENERATE("switch", "top2", "expert_choice", "hash");
  model.dtype = GENERATE(DType::kF16, DType::kF32);
  model.fused_attention = model.dtype == DType::kF32;
  const int64_t ranks = GENERATE(1, 2, 4);
  model.ep = std::min<int64_t>(ranks, 2);
  Graph graph = build_forward(model, gate_spec(model), ranks);
  add_backward_and_update(graph, Sgd{.lr = 0.1, .momentum = 0.9}, {.bucket_bytes = 1 << 20}, model);
  const std::string text = print(graph);
  const Graph again = parse_graph(text, op_table());
  check_same(graph, again);
  CHECK(print(again) == text);
}

TEST_CASE("printing random graphs and reading them back gives the same graphs") {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Graph graph = random_graph(seed, 40);
    verify(graph, "test");
    check_same(graph, parse_graph(print(graph), op_table()));
  }
}

TEST_CASE("attributes keep their type, value and every character") {
  const Op op = parse_line(
                    "%2 = gelu(%0) {a=3, b=3.0, c=-1e-300, d=\"x \\\"y\\\" \\\\, {=}\", "
                    "e=0.1} act forward mlp")
                    .ops()[0];
  CHECK(std::get<int64_t>(op.attrs.at("a")) == 3);
  CHECK(std::get<double>(op.attrs.at("b")) == 3.0);
  CHECK(std::get<double>(op.attrs.at("c")) == -1e-300);
  CHECK(std::get<std::string>(op.attrs.at("d")) == "x \"y\" \\, {=}");
  CHECK(std::get<double>(op.attrs.at("e")) == 0.1);
  Graph graph = parse_line("%2 = gelu(%0) act forward mlp");
  graph.op(OpId(0)).attrs = op.attrs;
  CHECK(parse_graph(print(graph), op_table()).ops()[0].attrs == op.attrs);
}

TEST_CASE("numbers of tensors are labels, comments and blank lines are skipped") {
  const Graph graph = parse_graph(
      "# a comment\n\ngraph g ranks=2\r\n%30 param f32 [2,3] x\n  # more\n%7 param f32 [4,3] w "
      "expert\n%90 = linear(%30, %7, _) l forward mlp layer=3 part=1\n",
      op_table());
  CHECK(graph.num_ranks == 2);
  CHECK(graph.tensors()[0].name == "w");
  CHECK(graph.tensors()[0].held.moe);
  CHECK(graph.tensors()[1].name == "x");
  CHECK(graph.tensors()[2].name == "l");
  CHECK(graph.tensors()[2].shape == Shape{2, 4});
  CHECK(graph.ops()[0].layer == 3);
  CHECK(graph.ops()[0].part == 1);
}

TEST_CASE("an output may have a kind, a name and an expert mark of its own") {
  const Graph graph = parse_line("%2 expert gradient as dy = gelu(%0) act forward mlp");
  CHECK(graph.tensors()[2].name == "dy");
  CHECK(graph.tensors()[2].kind == TensorKind::kGradient);
  CHECK(graph.tensors()[2].held.moe);
  CHECK_THAT(print(graph), Contains("%2 expert gradient as dy = gelu(%0) act forward mlp"));
}

TEST_CASE("text that is not a graph is refused with its line and what was expected") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"%2 = gelu(%9) act forward mlp", "expected a tensor that an earlier line defines"},
      {"%2 = gelo(%0) act forward mlp", "unknown op 'gelo'"},
      {"%2 = gelo(%0) act forward mlp", "Did you mean 'gelu'?"},
      {"%1 = gelu(%0) act forward mlp", "expected a tensor number that is not taken"},
      {"%2, %3 = gelu(%0) act forward mlp", "expected 1 outputs of gelu"},
      {"%2 = gelu(%0 act forward mlp", "expected ')'"},
      {"%2 = gelu(%0) act sideways mlp", "expected a phase: forward, recompute, backward, update"},
      {"%2 = gelu(%0) act forward body", "expected a segment: embed"},
      {"%2 = gelu(%0) act forward mlp layer", "expected '='"},
      {"%2 = gelu(%0) act forward mlp late",
       "expected 'layer=N', 'part=N', 'micro=N', 'pp=N', 'dw' or 'of=%N'"},
      {"%2 = gelu(%0) {a=} act forward mlp", "expected a number or a quoted string"},
      {"%2 = gelu(%0) {a=1x} act forward mlp", "expected a number or a quoted string"},
      {"%2 = gelu(%0) {a=\"x} act forward mlp", "expected a closing quote"},
      {"%2 = gelu(%0) {a} act forward mlp", "expected '='"},
      {"%2 param f32 [2,] y", "expected a length"},
      {"%2 param f32 [2] y y", "expected the end of the line"},
      {"%2 wide = gelu(%0) act forward mlp",
       "expected 'expert', 'split_axis', 'blocks', 'same', a tensor kind"},
      {"%2 = linear(%0, %1, %0) l forward mlp",
       "input 2 'x' is f32 [2,3], expected floating point [4]"},
      {"%x = gelu(%0) act forward mlp", "expected the number of a tensor"},
  };
  for (const auto& [line, message] : cases) {
    INFO(line);
    CHECK_THROWS_WITH(parse_line(line), Contains("graph text, line 4") && Contains(message));
  }
  CHECK_THROWS_WITH(parse_graph("network g", op_table()),
                    Contains("line 1") && Contains("graph NAME"));
  CHECK_THROWS_WITH(parse_graph("graph g ranks=0", op_table()), Contains("at least one rank"));
}

}  // namespace moe::test
