// The axis solver against the enumeration of all ways, and what it says when it refuses.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "engine/model/model.h"
#include "engine/passes/partition/axes.h"
#include "tests/model/gpt2.h"
#include "tests/passes/axis_problems.h"

namespace moe {
namespace {

using Catch::Contains;
using test::AxisRules;
using test::first_solution;
using test::random_program;
using test::RandomProgram;
using test::range_of;

/// A program of fake ops, written an op per line.
class Program {
 public:
  Program() : graph(test::axis_ops()) {}

  TensorId tensor(const std::string& name, Shape shape, TensorKind kind = TensorKind::kInput) {
    return graph.add_tensor({name, std::move(shape), DType::kF32, kind});
  }
  TensorId op(const char* kind, const std::string& name, std::vector<TensorId> inputs,
              const char* shapes, const char* ways) {
    ops.push_back(graph.add_op(kind, name, std::move(inputs),
                               {{"shapes", std::string(shapes)}, {"ways", std::string(ways)}}));
    return graph.out(ops.back());
  }
  AxisSolution solve(size_t begin, size_t end, int64_t parts = 2) const {
    return AxisSolver(graph, ops, 4).solve(begin, end, parts);
  }
  AxisSolution solve() const { return solve(0, ops.size()); }

  Graph graph;
  std::vector<OpId> ops;
};

TEST_CASE("parts of an axis are even, the longer first, and samples stay whole") {
  for (int64_t batch = 1; batch <= 9; ++batch) {
    for (int64_t parts = 1; parts <= batch; ++parts) {
      const std::vector<int64_t> samples = part_sizes(batch, batch, parts);
      CHECK(samples == even_sizes(batch, parts));
      for (const int64_t length : {batch, 7 * batch, 7 * batch + 1}) {
        const std::vector<int64_t> sizes = part_sizes(length, batch, parts);
        REQUIRE(sizes.size() == static_cast<size_t>(parts));
        CHECK(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == length);
        CHECK(std::is_sorted(sizes.rbegin(), sizes.rend()));
        const int64_t unit = length % batch == 0 ? length / batch : 1;
        CHECK(sizes.front() - sizes.back() <= unit);
        for (size_t p = 0; length == 7 * batch && p < sizes.size(); ++p) {
          CHECK(sizes[p] == 7 * samples[p]);
        }
      }
    }
  }
}

TEST_CASE("the solver finds the first of all solutions, or that there is none") {
  int found = 0, searched = 0;
  constexpr int kPrograms = 3000;
  for (int seed = 0; seed < kPrograms; ++seed) {
    CAPTURE(seed);
    const int64_t num_ops = 2 + seed % 6;
    const RandomProgram program = random_program(static_cast<uint64_t>(seed), num_ops);
    const size_t begin = seed % 3 == 0 ? 0 : 1, end = program.ops.size();
    const auto expected = first_solution(range_of(program.problem(), begin, end));
    const AxisSolution solution =
        AxisSolver(program.graph, program.ops, program.batch).solve(begin, end, program.parts);
    REQUIRE(solution.found == expected.has_value());
    if (expected) REQUIRE(solution.axis == test::axis_of(*expected));
    found += solution.found ? 1 : 0;
    searched += solution.nodes > 0 ? 1 : 0;
  }
  CHECK(found > kPrograms / 5);
  CHECK(found < kPrograms * 4 / 5);
  CHECK(searched > kPrograms / 10);
}

TEST_CASE("the op that is refused is the first that leaves the range no solution") {
  int late = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    const RandomProgram program = random_program(seed, 6);
    const AxisSolution solution = solve_axes(program.problem());
    if (solution.found) continue;
    size_t at = 0;
    while (first_solution(range_of(program.problem(), 0, at + 1))) ++at;
    REQUIRE(solution.refused == program.ops[at]);
    CHECK_THAT(solution.why, Contains("op '" + program.graph.op(program.ops[at]).name + "'"));
    late += at > 2 ? 1 : 0;
  }
  CHECK(late > 100);
}

TEST_CASE("what can be cut into more parts, or within a longer range, can be cut into fewer") {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const RandomProgram program = random_program(seed, 6);
    const AxisSolver solver(program.graph, program.ops, program.batch);
    for (size_t end = 2; end <= program.ops.size(); ++end) {
      for (int64_t parts = 2; parts <= 4; ++parts) {
        if (!solver.solve(0, end, parts).found) continue;
        CHECK(solver.solve(0, end, parts - 1).found);
        CHECK(solver.solve(0, end - 1, parts).found);
      }
    }
  }
}

TEST_CASE("every op of a solution is cut in one of its ways, at the same places") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomProgram program = random_program(seed, 12);
    const AxisSolution solution = solve_axes(program.problem());
    const AxisRules rules(program.problem());
    for (size_t i = 0; solution.found && i < program.ops.size(); ++i) {
      const std::vector<AxisTuple>& ways = rules.ways()[i];
      CHECK(std::any_of(ways.begin(), ways.end(), [&](const AxisTuple& way) {
        const auto places = rules.places(i, way);
        return std::all_of(places.begin(), places.end(), [&solution](const auto& place) {
          return solution.axis[place.first.index()] == place.second;
        });
      }));
    }
  }
}

TEST_CASE("at the border a tensor becomes rows if an op made it, row ends if a gate did") {
  Program p;
  const TensorId x = p.tensor("x", {4, 8});
  const TensorId w = p.tensor("w", {8, 8}, TensorKind::kParam);
  const TensorId counts = p.op("gate", "gate", {x}, "4 8 | 8", "0 > 0 t");
  const TensorId row_ends = p.graph.op(p.ops[0]).outputs[1];
  const TensorId y = p.op("cut", "y", {counts}, "4 8", "0 > 0");
  p.op("cut", "rows of y", {y}, "4 8", "r > r");
  p.op("cut", "ends of gate", {row_ends}, "4 8", "t > 0");
  p.op("cut", "ends of y", {y}, "4 8", "t > 0");
  p.op("cut", "rows of w", {w}, "4 8", "r > 0");
  p.op("cut", "slices of w", {w}, "4 8", "1 > 1");
  const AxisSolution rows = p.solve(2, 3);
  CHECK(rows.found);
  CHECK(rows.axis[y.index()] == kRows);
  CHECK(p.solve(3, 4).axis[row_ends.index()] == kRowEnds);
  CHECK(p.solve(4, 5).why ==
        "op 'ends of y' (cut) cannot be cut into 2 parts: 'y' cannot be taken as row ends, since "
        "no gate makes it");
  CHECK(p.solve(5, 6).why ==
        "op 'rows of w' (cut) cannot be cut into 2 parts: 'w' cannot be taken as rows of slots, "
        "since no op makes it");
  CHECK(p.solve(6, 7).axis[w.index()] == 1);
}

TEST_CASE("a way that each pair of ops allows, but not all of them, is given up") {
  Program p;
  const TensorId x = p.tensor("x", {4, 8, 8});
  const TensorId y = p.op("cut", "y", {x}, "4 8 8", "1 > 1 | 2 > 2");
  const TensorId u = p.op("cut", "u", {y}, "4 8 8", "1 > 2 | 2 > 1");
  p.op("cut", "z", {y, u}, "4 8 8", "1 1 > 1 | 2 2 > 1 | 2 1 > 0");
  const AxisSolution solution = p.solve();
  REQUIRE(solution.found);
  CHECK(solution.nodes == 2);
  CHECK(solution.axis[y.index()] == 2);
  CHECK(solution.axis[u.index()] == 1);
}

TEST_CASE("an op that only a search refuses is found before one that is refused at sight") {
  Program p;
  const TensorId x = p.tensor("x", {4, 8, 8});
  const TensorId y = p.op("cut", "y", {x}, "4 8 8", "1 > 1 | 2 > 2");
  const TensorId u = p.op("cut", "u", {y}, "4 8 8", "1 > 2 | 2 > 1");
  TensorId z = p.op("cut", "z", {y, u}, "4 8 8", "1 1 > 1 | 2 2 > 1");
  const OpId searched = p.ops.back();
  for (const char* name : {"a", "b", "c"}) z = p.op("cut", name, {z}, "4 8 8", "1 > 1");
  p.op("stuck", "end", {z}, "4", "");
  CHECK(p.solve().refused == searched);
  CHECK(p.solve(2, p.ops.size()).refused == p.ops.back());
}

TEST_CASE("an axis has at least as many entries as there are parts") {
  Program p;
  p.op("cut", "short", {p.tensor("x", {4, 3, 8})}, "4 3 8", "1 > 1 | w > 1");
  CHECK(p.solve(0, 1, 3).found);
  const AxisSolution solution = p.solve(0, 1, 4);
  CHECK(solution.refused == p.ops[0]);
  CHECK(solution.why ==
        "op 'short' (cut) cannot be cut into 4 parts: 'x' [4,3,8] has only 3 along axis 1; 'short' "
        "[4,3,8] has only 3 along axis 1");
}

TEST_CASE("a batch shorter than the parts is refused before any op") {
  Program p;
  p.op("cut", "y", {p.tensor("x", {8, 8})}, "8 8", "0 > 0");
  const AxisSolution solution = p.solve(0, 1, 5);
  CHECK(!solution.found);
  CHECK(!solution.refused.valid());
  CHECK(solution.why == "a batch of 4 samples cannot be cut into 5 parts");
}

TEST_CASE("an op without ways is named, with what it needs") {
  Program p;
  const TensorId x = p.tensor("x", {4, 8});
  const TensorId y = p.op("cut", "y", {x}, "4 8", "0 > 0");
  SECTION("no rule") {
    p.op("stuck", "z", {y}, "4 8", "");
    CHECK(p.solve().why == "op 'z' (stuck) cannot be cut");
  }
  SECTION("a rule that lists nothing") {
    p.op("gate", "z", {y}, "4 8", "");
    CHECK(p.solve().why == "op 'z' (gate) needs the whole batch");
  }
  SECTION("lengths that no part has in common") {
    p.op("cut", "z", {y}, "6 8", "0 > 0");
    CHECK_THAT(p.solve().why, Contains("would not be cut at the same places when the batch has 4"));
  }
  CHECK(p.solve().refused == p.ops[1]);
}

TEST_CASE("a disagreement names both ops, their tensor and what each allows") {
  Program p;
  const TensorId x = p.tensor("x", {4, 8, 8});
  const TensorId y = p.op("cut", "y", {x}, "4 8 8", "1 > 1 | 2 > 2");
  SECTION("with the op that makes the tensor") {
    p.op("cut", "z", {y}, "4 8 8", "0 > 0 | r > r");
    CHECK(p.solve().why ==
          "op 'z' (cut) takes 'y' along axis 0 or as rows of slots, but in this range op 'y' (cut) "
          "gives it along axis 1 or 2");
  }
  SECTION("with another reader") {
    p.op("cut", "z", {x}, "4 8 8", "w > 0");
    CHECK(p.solve().why ==
          "op 'z' (cut) takes 'x' whole, but in this range op 'y' (cut) takes it along axis 1 or "
          "2");
  }
  SECTION("only of two tensors together") {
    const TensorId u = p.op("cut", "u", {x}, "4 8 8", "1 > 2 | 2 > 1");
    p.op("cut", "z", {y, u}, "4 8 8", "1 1 > 1 | 2 2 > 2");
    CHECK(p.solve().why ==
          "op 'z' (cut) cannot be cut in agreement with the ops before it: 'y' along axis 1 or 2, "
          "'u' along axis 1 or 2");
  }
  CHECK(p.solve().refused == p.ops.back());
}

test::Gpt2 small_model() {
  test::Gpt2 model;
  model.vocab = 31;
  model.layers = 4;
  model.hidden = 16;
  model.heads = 2;
  model.seq = 8;
  model.batch_per_device = 4;
  return model;
}

TEST_CASE("a dense block is cut along the batch, its parameters shared, without a search") {
  const test::Gpt2 model = small_model();
  const Graph graph = test::build_forward(model, gate_spec(model), 1);
  const std::vector<OpId> ops = test::all_ops(graph);
  const auto at = [&graph](const char* name) { return graph.find_op(name).index(); };
  const AxisSolver solver(graph, ops, model.batch_per_device);
  const AxisSolution solution = solver.solve(at("embed"), at("b0.mlp.fc1"), 4);
  REQUIRE(solution.found);
  for (const char* name : {"ids", "embed", "b0.ln1", "b0.ln1:1", "b0.attn.qkv", "b0.attn.core"}) {
    CHECK(solution.axis[graph.find_tensor(name).index()] == 0);
  }
  for (const char* name : {"wte", "wpe", "b0.ln1.w", "b0.attn.qkv.w", "b0.attn.out.b"}) {
    CHECK(solution.axis[graph.find_tensor(name).index()] == kWhole);
  }
  CHECK(solution.nodes == 0);
  const AxisSolution whole = solver.solve(at("lnf"), ops.size(), 2);
  CHECK(whole.refused == graph.find_op("loss"));
  CHECK(whole.why == "op 'loss' (cross_entropy) cannot be cut");
  const AxisSolution columns = solver.solve(at("b0.attn.qkv"), at("b0.attn.core"), 4);
  CHECK(columns.axis[graph.find_tensor("b0.attn.qkv").index()] == 0);
  CHECK(columns.nodes == 1);
}

}  // namespace
}  // namespace moe
