// Which kernels of attention a plan names.
#include <catch2/catch.hpp>
#include <set>

#include "engine/ops/ops.h"
#include "tests/passes/fixture.h"

namespace moe {
namespace {

using test::small_spec;

const std::string kNone = "none is named";

std::set<std::string> kernels_in(const Graph& graph) {
  std::set<std::string> all;
  for (const std::string kind : {"attend", "attend_dx"}) {
    for (const OpId op : test::ops_of(graph, kind)) {
      all.insert(attr_string(graph.op(op), "kernels", kNone));
    }
  }
  return all;
}

TEST_CASE("a plan names our own kernels of attention where they are wanted, and in bfloat16 only") {
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    PlanSpec spec = small_spec();
    if (narrow) test::change_model(spec, [](test::Gpt2& m) { m.dtype = DType::kBF16; });
    const auto plain = make_plan(spec);
    CHECK(kernels_in(plain->graph) == std::set{kNone});
    spec.lowering.own_attention = true;
    const auto own = make_plan(spec);
    CHECK(kernels_in(own->graph) == std::set{narrow ? "own" : kNone});
    CHECK((own->hash != plain->hash) == narrow);
    CHECK(plan_of_program(spec, packed_program(*own))->hash == own->hash);
  }
}

}  // namespace
}  // namespace moe
