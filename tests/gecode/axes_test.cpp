// The axis solver against Gecode, on programs too long to enumerate.
#include <catch2/catch.hpp>
#include <gecode/int.hh>
#include <gecode/search.hh>
#include <memory>

#include "tests/passes/axis_problems.h"

namespace moe {
namespace {

/// A variable for the way of each op, in program order, and one for the cut of each tensor.
class AxisModel : public Gecode::Space {
 public:
  explicit AxisModel(const test::AxisProblem& problem) {
    const test::AxisRules rules(problem);
    const auto num_tensors = static_cast<int>(problem.graph.tensors().size());
    cuts_ = Gecode::IntVarArray(*this, num_tensors, kRowEnds, 16);
    ways_ = Gecode::IntVarArray(*this, static_cast<int>(problem.ops.size()), 0, 63);
    for (size_t i = 0; i < problem.ops.size(); ++i) {
      Gecode::IntVarArgs scope(ways_.slice(static_cast<int>(i), 1, 1));
      for (const auto& [t, axis] : rules.places(i, rules.ways()[i][0])) scope << cuts_[t.value];
      Gecode::TupleSet table(scope.size());
      for (size_t w = 0; w < rules.ways()[i].size(); ++w) {
        const AxisTuple& way = rules.ways()[i][w];
        if (!rules.same_places(i, way)) continue;
        Gecode::IntArgs row({static_cast<int>(w)});
        bool allowed = true;
        for (const auto& [t, axis] : rules.places(i, way)) {
          row << axis;
          allowed = allowed && rules.allowed(t, axis);
        }
        if (allowed) table.add(row);
      }
      table.finalize();
      Gecode::unshare(*this, scope);  // an op may have a tensor twice
      Gecode::extensional(*this, scope, table);
    }
    Gecode::branch(*this, ways_, Gecode::INT_VAR_NONE(), Gecode::INT_VAL_MIN());
  }
  AxisModel(AxisModel& other) : Gecode::Space(other) {
    ways_.update(*this, other.ways_);
    cuts_.update(*this, other.cuts_);
  }
  Gecode::Space* copy() override { return new AxisModel(*this); }

  /// As AxisSolution::axis: kWhole for tensors that no op has.
  std::vector<int> axis() const {
    std::vector<int> axis;
    for (int t = 0; t < cuts_.size(); ++t) {
      axis.push_back(cuts_[t].assigned() ? cuts_[t].val() : kWhole);
    }
    return axis;
  }

 private:
  Gecode::IntVarArray ways_, cuts_;
};

TEST_CASE("Gecode finds the same first solution, or none either") {
  int found = 0, refused = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    const auto num_ops = static_cast<int64_t>(8 + seed % 30);
    const test::RandomProgram program = test::random_program(10000 + seed, num_ops);
    const AxisSolver solver(program.graph, program.ops, program.batch);
    // The longest range that can be cut, and one op more.
    const AxisSolution whole = solver.solve(0, program.ops.size(), program.parts);
    const size_t end = whole.found ? program.ops.size() : whole.refused.index();
    for (const size_t length : {end, end + 1}) {
      if (length == 0 || length > program.ops.size()) continue;
      const AxisSolution solution = solver.solve(0, length, program.parts);
      AxisModel model(test::range_of(program.problem(), 0, length));
      Gecode::DFS<AxisModel> search(&model);
      const std::unique_ptr<AxisModel> first(search.next());
      REQUIRE(solution.found == (first != nullptr));
      if (first) CHECK(solution.axis == first->axis());
      ++(first ? found : refused);
    }
  }
  CHECK(found > 500);
  CHECK(refused > 500);
}

}  // namespace
}  // namespace moe
