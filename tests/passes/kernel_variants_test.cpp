// Variants in which a device runs experts' products, and who chooses them.
#include <catch2/catch.hpp>
#include <set>

#include "engine/base/errors.h"
#include "engine/graph/text.h"
#include "engine/ops/ops.h"
#include "engine/passes/device/kernel_variants.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using Catch::Contains;
using test::GivenCost;
using test::small_spec;
using test::stage;

const std::string kOps[] = {"expert_linear", "expert_linear_dx", "expert_linear_dw"};

std::vector<OpId> expert_ops(const Graph& graph) {
  std::vector<OpId> all;
  for (const std::string& kind : kOps) {
    for (const OpId op : test::ops_of(graph, kind)) all.push_back(op);
  }
  return all;
}

std::string variant_of(const Graph& graph, OpId op) {
  return attr_string(graph.op(op), "products", "usual");
}

std::set<std::string> ways_in(const Graph& graph) {
  std::set<std::string> variants;
  for (const OpId op : expert_ops(graph)) variants.insert(variant_of(graph, op));
  return variants;
}

PlanSpec chosen_by(GivenCost::Function cost, std::vector<Stage> stages = {}) {
  PlanSpec spec = small_spec(std::move(stages));
  spec.cost = std::make_shared<GivenCost>(std::move(cost));
  spec.autotune = true;
  return spec;
}

TEST_CASE("every product of experts takes the variant that costs least, by the plan's cost model") {
  for (const std::string best : {"usual", "streams", "grouped", "each"}) {
    const auto plan = make_plan(chosen_by([&](const Graph& graph, OpId op) {
      return Nanoseconds{variant_of(graph, op) == best ? 5 : 7};
    }));
    CAPTURE(best);
    CHECK(expert_ops(plan->graph).size() == 12);
    CHECK(ways_in(plan->graph) == std::set<std::string>{best});
    for (const OpId op : expert_ops(plan->graph)) {
      CHECK(plan->spec.cost->op_ns(plan->graph, op) == 5);
    }
  }
}

TEST_CASE("kinds of products choose apart, and of equal costs the usual variant stays") {
  const auto plan = make_plan(chosen_by([](const Graph& graph, OpId op) {
    const bool dw = graph.def(op).name == std::string("expert_linear_dw");
    return Nanoseconds{dw && variant_of(graph, op) == "each" ? 1 : 2};
  }));
  for (const OpId op : expert_ops(plan->graph)) {
    const bool dw = test::kind(plan->graph, op) == "expert_linear_dw";
    CHECK(variant_of(plan->graph, op) == (dw ? "each" : "usual"));
  }
}

TEST_CASE("attention in bfloat16 has a library's kernels and our own, in float32 ours alone") {
  PlanSpec spec = chosen_by([](const Graph& graph, OpId op) {
    const std::string kernels = attr_string(graph.op(op), "kernels", "cudnn");
    const bool backward = test::kind(graph, op) == "attention_dx";
    return Nanoseconds{(kernels == "own") == backward ? 1 : 2};
  });
  const auto kernels_of = [](const Graph& graph, const std::string& kind) {
    std::set<std::string> all;
    for (const OpId op : test::ops_of(graph, kind)) {
      all.insert(attr_string(graph.op(op), "kernels", "cudnn"));
    }
    return all;
  };
  const auto wide = make_plan(spec);
  CHECK(kernels_of(wide->graph, "attention_dx") == std::set<std::string>{"cudnn"});
  test::change_model(spec, [&](test::Gpt2& m) { m.dtype = DType::kBF16; });
  const auto narrow = make_plan(spec);
  CHECK(kernels_of(narrow->graph, "attention") == std::set<std::string>{"cudnn"});
  CHECK(kernels_of(narrow->graph, "attention_dx") == std::set<std::string>{"own"});
  spec.variants = {{"kernels", "own"}};
  const auto wanted = make_plan(spec);
  CHECK(kernels_of(wanted->graph, "attention") == std::set<std::string>{"own"});
}

TEST_CASE("no op is asked for twice in one variant, and ops without a choice not at all") {
  const Graph graph = make_plan(small_spec())->graph;
  std::multiset<std::string> asked;
  const GivenCost cost([&](const Graph& g, OpId op) {
    asked.insert(op_signature(g, op));
    CHECK(std::string(g.def(op).name).find("expert_linear") == 0);
    return Nanoseconds{1};
  });
  const Graph after = autotune_variants(graph, cost);
  CHECK(std::set<std::string>(asked.begin(), asked.end()).size() == asked.size());
  CHECK(asked.size() == 4 * 6);  // variants, and kinds of two shapes; both layers are alike
  CHECK(print(after) == print(graph));
  asked.clear();
  PlanSpec one_expert = small_spec({}, 4);
  autotune_variants(make_plan(one_expert)->graph, cost);
  CHECK(asked.empty());
}

TEST_CASE("products of counted rows are made side by side, and never as a batch") {
  std::set<std::string> asked;
  const auto plan = make_plan(chosen_by(
      [&](const Graph& graph, OpId op) {
        const bool experts = std::string(graph.def(op).name).find("expert_linear") == 0;
        if (experts) asked.insert(variant_of(graph, op));
        return Nanoseconds{10};
      },
      {stage("irregular_a2a"), stage("used_rows")}));
  CHECK(asked == std::set<std::string>{"usual", "grouped", "each"});
  CHECK(ways_in(plan->graph) == std::set<std::string>{"usual"});
}

TEST_CASE("a variant that is wanted is taken where it can be, whatever is quickest") {
  PlanSpec spec = chosen_by([](const Graph& graph, OpId op) {
    return Nanoseconds{variant_of(graph, op) == "each" ? 1 : 2};
  });
  spec.variants = {{"products", "grouped"}};
  CHECK(ways_in(make_plan(spec)->graph) == std::set<std::string>{"grouped"});
  spec.variants = {{"products", "batch"}};  // which is the usual one
  CHECK(ways_in(make_plan(spec)->graph) == std::set<std::string>{"usual"});
  spec.system.stages = {stage("irregular_a2a"), stage("used_rows")};
  CHECK(ways_in(make_plan(spec)->graph) == std::set<std::string>{"usual"});
}

TEST_CASE(
    "a plan that chooses nothing is the plan without variants; another variant is another plan") {
  PlanSpec spec = small_spec();
  const auto plain = make_plan(spec);
  CHECK(print(plain->graph).find("products") == std::string::npos);
  spec.variants = {{"products", "batch"}};
  CHECK(make_plan(spec)->hash == plain->hash);
  spec.variants = {{"products", "each"}};
  const auto other = make_plan(spec);
  CHECK(other->hash != plain->hash);
  CHECK(plan_of_program(spec, packed_program(*other))->hash == other->hash);
}

TEST_CASE("a variant that does not exist is refused by the op's name") {
  PlanSpec spec = small_spec();
  spec.variants = {{"products", "grouped"}};
  std::string text = print(make_plan(spec)->graph);
  const size_t at = text.find("grouped");
  REQUIRE(at != std::string::npos);
  text.replace(at, 7, "sideway");
  CHECK_THROWS_WITH(parse_graph(text, op_table()),
                    Contains("attribute 'products' is 'sideway'") &&
                        Contains("allowed: batch, streams, grouped, each"));
}

}  // namespace
}  // namespace moe
