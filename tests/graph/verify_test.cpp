// One misuse a row; each message names the stage, the op and the tensor.
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

struct Misuse {
  const char* what;
  void (*make)(Graph&);
  const char* message;
};

const Misuse kMisuses[] = {
    {"too many inputs", [](Graph& graph) { named(graph, "second").inputs.assign(5, TensorId(0)); },
     "op 'second' (gelu) has 5 inputs, allowed: 1 to 4"},
    {"a required input that is absent",
     [](Graph& graph) { named(graph, "second").inputs[0] = TensorId(); },
     "op 'second': input 0 of gelu (x) is absent, but required"},
    {"an input that is no tensor of the graph",
     [](Graph& graph) { named(graph, "second").inputs[0] = TensorId(99); },
     "op 'second': input 0 of gelu (x) is not a tensor of this graph"},
    {"an input that nobody produces", [](Graph& graph) { graph.remove(graph.find_op("first")); },
     "op 'second' reads tensor 'first', which no op produces"},
    {"an input that is produced later",
     [](Graph& graph) { std::swap(named(graph, "first"), named(graph, "second")); },
     "op 'second' reads tensor 'first' before op 'first' produces it"},
    {"an output of another shape than the rule's",
     [](Graph& graph) {
       graph.tensor(graph.find_tensor("second")).shape = {3, 2};
     },
     "op 'second' (gelu): output 'second' is f32 [3,2], but the op's shape rule gives f32 [2,3]"},
    {"an output of another dtype than the rule's",
     [](Graph& graph) { graph.tensor(graph.find_tensor("second")).dtype = DType::kF16; },
     "output 'second' is f16 [2,3], but the op's shape rule gives f32 [2,3]"},
    {"a missing output",
     [](Graph& graph) {
       named(graph, "second").outputs.clear();
       graph.remove(graph.find_op("update"));
     },
     "op 'second' (gelu) has 0 outputs, but its shape rule gives 1"},
    {"two producers of a tensor",
     [](Graph& graph) { named(graph, "second").outputs[0] = graph.find_tensor("first"); },
     "tensor 'first' must have one producer, but op 'second' is a second one"},
    {"an op that produces a parameter",
     [](Graph& graph) { graph.tensor(graph.find_tensor("first")).kind = TensorKind::kParam; },
     "op 'first' produces tensor 'first', but an op must not produce a tensor of kind param"},
    {"an op name used twice", [](Graph& graph) { named(graph, "second").name = "first"; },
     "two ops are named 'first'"},
    {"a tensor name used twice",
     [](Graph& graph) { graph.tensor(TensorId(0)).name = std::string("v"); },
     "two tensors are named 'v'"},
    {"a name that the text form could not hold",
     [](Graph& graph) { named(graph, "second").name = "my op"; },
     "op name 'my op' is empty or holds a space"},
    {"overwriting an activation",
     [](Graph& graph) { named(graph, "update").inputs[0] = graph.find_tensor("first"); },
     "op 'update' overwrites tensor 'first' of kind activation; allowed are"},
    {"reading a parameter after its update",
     [](Graph& graph) { graph.add_op("gelu", "late", {graph.find_tensor("x")}); },
     "op 'late' reads tensor 'x' after op 'update' has overwritten it"},
    {"a second update of a parameter",
     [](Graph& graph) {
       graph.add_op("sgd", "again", named(graph, "update").inputs, {}, Phase::kUpdate);
     },
     "op 'again' reads tensor 'x' after op 'update' has overwritten it"},
    {"an op that overwrites a tensor and reads it as another input",
     [](Graph& graph) { named(graph, "update").inputs[2] = graph.find_tensor("x"); },
     "op 'update' overwrites tensor 'x', but also reads this tensor as another input"},
};

TEST_CASE("a legal graph passes, also with removed ops in it") {
  Graph graph = two_gelus();
  CHECK_NOTHROW(verify(graph, "my_pass"));
  graph.remove(graph.find_op("update"));
  CHECK_NOTHROW(verify(graph, "my_pass"));
}

TEST_CASE("a graph that is not legal is refused with the stage and what is wrong") {
  for (const Misuse& misuse : kMisuses) {
    INFO(misuse.what);
    Graph graph = two_gelus();
    misuse.make(graph);
    CHECK_THROWS_AS(verify(graph, "my_pass"), UserError);
    CHECK_THROWS_WITH(verify(graph, "my_pass"),
                      Catch::StartsWith("my_pass: graph 'g': ") && Contains(misuse.message));
  }
}

}  // namespace
}  // namespace moe::test
