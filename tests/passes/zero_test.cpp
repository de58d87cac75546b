// ZeRO's pass: what it makes of the all-reduces and updates of a step. That states so sharded train
// to the same bits is in tests/exec/mixes/zero_test.cpp.
#include <catch2/catch.hpp>

#include "engine/graph/op_def.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using test::change_model;
using test::small_spec;
using test::stage;

TEST_CASE("each bucket gets a reduce-scatter, sliced updates, then an all-gather") {
  PlanSpec spec = small_spec({}, 4);
  spec.optimizer = Adamw{};
  spec.system.sync = {.bucket_bytes = GENERATE(0, 1 << 14),
                      .place = GENERATE(ReducePlace::kAfter, ReducePlace::kReady)};
  const int64_t ep = GENERATE(4, 2);
  change_model(spec, [&](test::Gpt2& m) { m.ep = ep; });
  const Graph whole = make_plan(spec)->graph;
  spec.system.stages = {stage("zero")};
  const Graph graph = make_plan(spec)->graph;
  const auto count = [](const Graph& g, Collective kind) {
    return std::count_if(g.ops().begin(), g.ops().end(),
                         [&](const Op& op) { return g.def(op).collective == kind; });
  };
  const auto sums = count(whole, Collective::kAllReduce);
  CHECK(sums > 0);
  CHECK(count(graph, Collective::kReduceScatter) == sums);
  CHECK(count(graph, Collective::kAllGather) == sums);
  CHECK(count(graph, Collective::kAllReduce) == 0);
  size_t last_update = 0, sliced = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const Op& op = graph.ops()[i];
    if (std::string(graph.def(op).name) == "adamw") {
      last_update = i;
      sliced += static_cast<size_t>(attr_int(op, "sliced"));
      const Tensor& w = graph.tensor(op.inputs[0]);
      const Group group = w.held.moe ? Group{4 / ep, ep} : Group{4, 1};
      INFO(w.name);
      CHECK(attr_int(op, "sliced") == (group.size > 1));
      const int64_t n = (num_elements(w.shape) + group.size - 1) / group.size;
      for (size_t t = 1; t < 4; ++t) {
        CHECK(graph.tensor(op.inputs[t]).shape == (group.size > 1 ? Shape{n} : w.shape));
      }
    }
    if (graph.def(op).collective != Collective::kAllGather) continue;
    CHECK(i > last_update);
    const OpId id = graph.find_op("reduce_scatter" + op.name.substr(op.name.find('.')));
    REQUIRE(id.valid());
    CHECK(id.index() < last_update);
    CHECK(group_of(graph, op) == group_of(graph, graph.op(id)));
    CHECK(op.inputs.size() == graph.op(id).inputs.size());
    sliced -= op.inputs.size();
  }
  CHECK(sliced == 0);
}

TEST_CASE("where no gradient is summed over ranks, zero says so") {
  const auto plan = make_plan(small_spec({stage("zero")}, 1));
  CHECK(plan->stages[0].without_effect ==
        std::vector<std::string>{"no gradient is summed over ranks"});
}

}  // namespace
}  // namespace moe
