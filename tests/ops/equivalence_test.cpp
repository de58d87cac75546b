// Different programs for the same mathematics give the same numbers.
#include <catch2/catch.hpp>

#include "engine/graph/autodiff.h"
#include "engine/graph/edit.h"
#include "engine/graph/verify.h"
#include "engine/model/model.h"
#include "engine/routing/gate.h"
#include "tests/ops/small_graphs.h"

namespace moe::test {
namespace {

/// Loss and parameter gradients of a forward graph.
struct Result {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;
};

Result train_once(Graph graph, const std::string& gate) {
  const TensorId loss = loss_of(graph);
  const std::string loss_name = graph.tensor(loss).name;
  const auto gradients = autodiff(graph, loss);
  std::map<std::string, std::string> names;
  for (const auto& [param, gradient] : gradients) {
    names[graph.tensor(param).name] = graph.tensor(gradient).name;
  }
  graph = compact(graph);
  verify(graph, "test");
  Interpreter<double> run(graph);
  run.rank.gate = &builtin_gate(gate);
  fill_inputs(graph, run, 4);
  run.run();
  Result result{run.scalar(run.find(loss_name)), {}};
  for (const auto& [param, gradient] : names) {
    result.gradients[param] = run.values(run.find(gradient));
  }
  return result;
}

void check_equal(const Result& a, const Result& b, double relative) {
  CHECK(a.loss == Approx(b.loss).epsilon(relative));
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (const auto& [name, values] : a.gradients) {
    INFO(name);
    const std::vector<double>& others = b.gradients.at(name);
    REQUIRE(values.size() == others.size());
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(values[i] == Approx(others[i]).epsilon(relative).margin(1e-14));
    }
  }
}

std::vector<OpId> ops_named(const Graph& graph, const std::vector<const char*>& names) {
  std::vector<OpId> ops;
  for (const char* name : names) {
    ops.push_back(graph.find_op(name));
    REQUIRE(ops.back().valid());
  }
  return ops;
}

}  // namespace

TEST_CASE("experts on the used rows alone equal experts on all of the capacity") {
  const std::string gate = GENERATE("switch", "top2", "expert_choice");
  MoeOptions options{.gate = gate, .capacity = 5};
  options.act = GENERATE("gelu", "silu_mul", "relu2");
  options.k = gate == "top2" ? 2 : 1;
  options.columns = gate == "expert_choice" ? 4 : options.k;
  const Graph whole = parse_graph(moe_graph(options).text, op_table());
  options.rows = "used";
  const Graph used = parse_graph(moe_graph(options).text, op_table());
  check_equal(train_once(used, gate), train_once(whole, gate), 1e-12);
}

TEST_CASE("rows that are not used come out of expert_linear as zeros") {
  const Graph graph = parse_graph(moe_graph({.capacity = 12, .rows = "used"}).text, op_table());
  Interpreter<double> run(graph);
  run.rank.gate = &builtin_gate("switch");
  fill_inputs(graph, run, 4);
  run.run();
  const TensorId y = run.find("fc2");
  const int32_t* counts = run.index("gate:5");
  for (int64_t e = 0; e < 4; ++e) {
    for (int64_t i = counts[e] * 5; i < 12 * 5; ++i) CHECK(run.real(y)[e * 60 + i] == 0);
  }
}

TEST_CASE("experts split along the capacity equal the whole, forward and backward") {
  MoeOptions options{.capacity = 4, .exchange = true, .irregular = false};
  options.act = GENERATE("gelu", "silu_mul", "relu2");
  const Graph whole = parse_graph(moe_graph(options).text, op_table());
  Graph parts = whole;
  std::vector<const char*> inner = {"a2a_1", "fc1", "act", "fc2"};
  if (options.act == "relu2") inner.insert(inner.begin() + 2, "relu");
  std::vector<const char*> all = inner;
  all.push_back("a2a_2");
  const std::vector<OpId> chain = ops_named(parts, all);
  std::vector<CutAxis> cuts = {{parts.find_tensor("dispatch"), 1}, {parts.find_tensor("a2a_2"), 1}};
  for (const char* name : inner) cuts.push_back({parts.find_tensor(name), 2});
  split_ops(parts, chain, cuts, std::vector<int64_t>{1, 3});
  check_equal(train_once(compact(parts), "switch"), train_once(whole, "switch"), 1e-12);
}

TEST_CASE("split and concat move rows of any axis, also of index tensors") {
  const Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f64 [2,5,3] x
%1 input i32 [2,5] ids
%2, %3 = split(%0) {axis=1, sizes="2,3"} cut forward mlp
%4 = concat(%3, %2) {axis=1} swapped forward mlp
%5, %6 = split(%1) {axis=1, sizes="1,4"} cut_ids forward mlp
%7 = concat(%6, %5) {axis=1} swapped_ids forward mlp
)",
                                  op_table());
  Interpreter<double> run(graph);
  fill_inputs(graph, run, 1000);
  run.run();
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t i = 0; i < 15; ++i) {
      CHECK(run.real("swapped")[r * 15 + i] == run.real("x")[r * 15 + (i + 6) % 15]);
    }
    for (int64_t i = 0; i < 5; ++i) {
      CHECK(run.index("swapped_ids")[r * 5 + i] == run.index("ids")[r * 5 + (i + 1) % 5]);
    }
  }
}

TEST_CASE("blocks are transposed whole, in floats of either width and in index tensors") {
  const std::string text = R"(
graph g ranks=1
%0 param f64 [12,5] x
%1 input i32 [6] ids
%2 = transpose_blocks(%0) {rows=2, cols=3} y forward dispatch
%3 = transpose_blocks(%1) {rows=3, cols=2} order forward dispatch
%4 = transpose_blocks(%2) {rows=3, cols=2} back forward dispatch
)";
  const Graph graph = parse_graph(text, op_table());
  const auto check = [&](auto run) {
    fill_inputs(graph, run, 1000);
    run.run();
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 3; ++j) {
        for (int64_t at = 0; at < 10; ++at) {  // a block is two rows of 5
          CHECK(run.real("y")[(j * 2 + i) * 10 + at] == run.real("x")[(i * 3 + j) * 10 + at]);
        }
        CHECK(run.index("order")[i * 3 + j] == run.index("ids")[j * 2 + i]);
      }
    }
    CHECK(run.values(run.find("back")) == run.values(run.find("x")));
  };
  check(Interpreter<double>(graph));
  check(Interpreter<float>(graph));
}

TEST_CASE("a step in float is close to the same step in double") {
  const SmallGraph small = moe_graph({.gate = "top2", .k = 2, .columns = 2, .capacity = 5});
  Graph graph = parse_graph(small.text, op_table());
  const auto gradients = autodiff(graph, loss_of(graph));
  Interpreter<double> exact(graph);
  Interpreter<float> fast(graph);
  exact.rank.gate = fast.rank.gate = &builtin_gate(small.gate);
  fill_inputs(graph, exact, 4);
  fill_inputs(graph, fast, 4);
  exact.run();
  fast.run();
  CHECK(fast.scalar(loss_of(graph)) == Approx(exact.scalar(loss_of(graph))).epsilon(1e-5));
  for (const auto& [param, gradient] : gradients) {
    INFO(graph.tensor(param).name);
    for (int64_t i = 0; i < exact.size(gradient); ++i) {
      CHECK(fast.real(gradient)[i] == Approx(exact.real(gradient)[i]).epsilon(1e-3).margin(1e-5));
    }
  }
}

}  // namespace moe::test
