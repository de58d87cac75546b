// One misuse a test; each message names the stage, the op and the tensor.
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/ops/ops.h"

namespace moe::test {
namespace {

using Catch::Contains;

Graph two_gelus() {
  return parse_graph(R"(
graph g ranks=1
%0 param f32 [2,3] x
%1 state f32 [2,3] v
%2 = gelu(%0) first forward mlp
%3 = gelu(%2) second forward mlp
sgd(%0, %1, %3) update update update
)",
                     op_table());
}

Op& named(Graph& graph, const char* name) {
  return graph.op(graph.find_op(name));
}

void refuses(const Graph& graph, const std::string& message) {
  CHECK_THROWS_AS(verify(graph, "my_pass"), UserError);
  CHECK_THROWS_WITH(verify(graph, "my_pass"),
                    Catch::StartsWith("my_pass: graph 'g': ") && Contains(message));
}

}  // namespace

TEST_CASE("a legal graph passes, also with removed ops in it") {
  Graph graph = two_gelus();
  CHECK_NOTHROW(verify(graph, "my_pass"));
  graph.remove(graph.find_op("update"));
  CHECK_NOTHROW(verify(graph, "my_pass"));
}

TEST_CASE("too many inputs are refused") {
  Graph graph = two_gelus();
  named(graph, "second").inputs.assign(5, TensorId(0));
  refuses(graph, "op 'second' (gelu) has 5 inputs, allowed: 1 to 4");
}

TEST_CASE("a required input that is absent is refused") {
  Graph graph = two_gelus();
  named(graph, "second").inputs[0] = TensorId();
  refuses(graph, "op 'second': input 0 of gelu (x) is absent, but required");
}

TEST_CASE("an input that is no tensor of the graph is refused") {
  Graph graph = two_gelus();
  named(graph, "second").inputs[0] = TensorId(99);
  refuses(graph, "op 'second': input 0 of gelu (x) is not a tensor of this graph");
}

TEST_CASE("an input that nobody produces is refused") {
  Graph graph = two_gelus();
  graph.remove(graph.find_op("first"));
  refuses(graph, "op 'second' reads tensor 'first', which no op produces");
}

TEST_CASE("an input that is produced later is refused") {
  Graph graph = two_gelus();
  std::swap(named(graph, "first"), named(graph, "second"));
  refuses(graph, "op 'second' reads tensor 'first' before op 'first' produces it");
}

TEST_CASE("an output of another shape than the rule's is refused") {
  Graph graph = two_gelus();
  graph.tensor(graph.find_tensor("second")).shape = {3, 2};
  refuses(
      graph,
      "op 'second' (gelu): output 'second' is f32 [3,2], but the op's shape rule gives f32 [2,3]");
}

TEST_CASE("an output of another dtype than the rule's is refused") {
  Graph graph = two_gelus();
  graph.tensor(graph.find_tensor("second")).dtype = DType::kF16;
  refuses(graph, "output 'second' is f16 [2,3], but the op's shape rule gives f32 [2,3]");
}

TEST_CASE("a missing output is refused") {
  Graph graph = two_gelus();
  named(graph, "second").outputs.clear();
  graph.remove(graph.find_op("update"));
  refuses(graph, "op 'second' (gelu) has 0 outputs, but its shape rule gives 1");
}

TEST_CASE("two producers of a tensor are refused") {
  Graph graph = two_gelus();
  named(graph, "second").outputs[0] = graph.find_tensor("first");
  refuses(graph, "tensor 'first' must have one producer, but op 'second' is a second one");
}

TEST_CASE("an op that produces a parameter is refused") {
  Graph graph = two_gelus();
  graph.tensor(graph.find_tensor("first")).kind = TensorKind::kParam;
  refuses(graph,
          "op 'first' produces tensor 'first', but an op must not produce a tensor of kind param");
}

TEST_CASE("an op name used twice is refused") {
  Graph graph = two_gelus();
  named(graph, "second").name = "first";
  refuses(graph, "two ops are named 'first'");
}

TEST_CASE("a tensor name used twice is refused") {
  Graph graph = two_gelus();
  graph.tensor(TensorId(0)).name = std::string("v");
  refuses(graph, "two tensors are named 'v'");
}

TEST_CASE("a name that the text form could not hold is refused") {
  Graph graph = two_gelus();
  named(graph, "second").name = "my op";
  refuses(graph, "op name 'my op' is empty or holds a space");
}

TEST_CASE("overwriting an activation is refused") {
  Graph graph = two_gelus();
  named(graph, "update").inputs[0] = graph.find_tensor("first");
  refuses(graph, "op 'update' overwrites tensor 'first' of kind activation; allowed are");
}

TEST_CASE("reading a parameter after its update is refused") {
  Graph graph = two_gelus();
  graph.add_op("gelu", "late", {graph.find_tensor("x")});
  refuses(graph, "op 'late' reads tensor 'x' after op 'update' has overwritten it");
}

TEST_CASE("a second update of a parameter is refused") {
  Graph graph = two_gelus();
  graph.add_op("sgd", "again", named(graph, "update").inputs, {}, Phase::kUpdate);
  refuses(graph, "op 'again' reads tensor 'x' after op 'update' has overwritten it");
}

TEST_CASE("an op that overwrites a tensor and reads it as another input is refused") {
  Graph graph = two_gelus();
  named(graph, "update").inputs[2] = graph.find_tensor("x");
  refuses(graph, "op 'update' overwrites tensor 'x', but also reads this tensor as another input");
}

}  // namespace moe::test
