// The order in which stages run, from what they need and give.
#include "engine/passes/stage_order.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/passes/fixture.h"

namespace moe::test {
namespace {

using Catch::Contains;

Stage function(const std::string& name, Facts needs = {}, Facts gives = {}) {
  Stage made;
  made.name = name;
  made.kind = StageKind::kForward;
  made.transform = [](Graph graph, const PassContext&) { return graph; };
  made.needs = std::move(needs);
  made.gives = std::move(gives);
  return made;
}

std::vector<std::string> names(const std::vector<Stage>& stages) {
  std::vector<std::string> all;
  for (const Stage& stage : in_order(stages)) all.push_back(stage.name);
  return all;
}

TEST_CASE("built-in passes run in one order, however they are listed") {
  std::vector<Stage> stages;
  for (const char* const name : {"irregular_a2a", "micro_ops", "pipemoe", "hierarchical_a2a",
                                 "prophet", "chunked", "dw_schedule", "partition"}) {
    stages.push_back(stage(name));
  }
  const auto expected =
      std::vector<std::string>{"prophet",          "irregular_a2a", "pipemoe",     "micro_ops",
                               "hierarchical_a2a", "partition",     "dw_schedule", "chunked"};
  std::sort(stages.begin(), stages.end(),
            [](const Stage& a, const Stage& b) { return a.name < b.name; });
  do {
    CHECK(names(stages) == expected);
  } while (std::next_permutation(stages.begin(), stages.begin() + 5,
                                 [](const Stage& a, const Stage& b) { return a.name < b.name; }));
}

TEST_CASE(
    "a function runs after all stages that give what it needs, and before those that need it") {
  CHECK(names({function("late", {Fact::kSteps}), stage("hierarchical_a2a"),
               function("early", {}, {Fact::kCounts}), stage("pipemoe")}) ==
        std::vector<std::string>{"early", "pipemoe", "hierarchical_a2a", "late"});
}

TEST_CASE(
    "a function that declares nothing keeps its place between its neighbours of the same kind") {
  CHECK(names({stage("hierarchical_a2a"), function("mine")}) ==
        std::vector<std::string>{"hierarchical_a2a", "mine"});
  CHECK(names({function("mine"), stage("chunked"), stage("hierarchical_a2a")}) ==
        std::vector<std::string>{"mine", "hierarchical_a2a", "chunked"});
}

TEST_CASE("stages that ask for opposite orders are refused, with both reasons") {
  CHECK_THROWS_WITH(
      in_order({stage("hierarchical_a2a"), function("mine"), stage("pipemoe")}),
      Contains("the stages ask for opposite orders") &&
          Contains("'pipemoe' must run before 'hierarchical_a2a' (it gives 'parts', which "
                   "'hierarchical_a2a' needs)") &&
          Contains("'mine' must run before 'pipemoe' ('mine' declares neither needs nor gives, so "
                   "it runs where it is listed)"));
  CHECK_THROWS_WITH(in_order({function("a", {Fact::kParts}, {Fact::kRounds}),
                              function("b", {Fact::kRounds}, {Fact::kParts})}),
                    Contains("'a' must run before 'b'") && Contains("'b' must run before 'a'"));
}

}  // namespace
}  // namespace moe::test
