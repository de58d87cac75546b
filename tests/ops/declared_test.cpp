// What an op declares of itself is held against what it does.
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/ops/defs.h"
#include "engine/ops/ops.h"
#include "tests/base/message_of.h"

using namespace moe;
using Catch::Matchers::Contains;

namespace {

std::vector<TensorSpec> infer_same(const Graph& g, const Op& op) {
  const Tensor& x = g.tensor(op.inputs[0]);
  return {{x.shape, x.dtype}};
}

Work no_work(const Graph&, const Op&, const WorkContext&) {
  return {};
}

constexpr auto run_nothing = []<class T>(const KernelCall<T>&) {};

OpDef whole() {
  return {.name = "mine",
          .doc = "y = x",
          .inputs = {{"x"}},
          .outputs = {{"y"}},
          .infer = infer_same,
          .work = no_work,
          .gradient = no_gradient,
          .run = wide_types(run_nothing)};
}

std::string refusal(const std::function<void(OpDef&)>& forget) {
  OpDef def = whole();
  forget(def);
  return test::message_of<InternalError>([&] { check_declared(OpTable({&def})); });
}

}  // namespace

TEST_CASE("what is forgotten or contradicts itself in an op's definition is named with the op") {
  CHECK(refusal([](OpDef&) {}).empty());
  const std::pair<std::function<void(OpDef&)>, const char*> faults[] = {
      {[](OpDef& d) { d.inputs = {}; }, "op mine: at least one input must be declared"},
      {[](OpDef& d) { d.doc = nullptr; }, "op mine: it has no doc"},
      {[](OpDef& d) { d.work = nullptr; }, "op mine: functions infer and work must both be given"},
      {[](OpDef& d) { d.gradient = nullptr; }, "op mine: it has no gradient rule"},
      {[](OpDef& d) { d.run.f64 = nullptr; },
       "op mine: kernels run.f32 and run.f64 must both be given"},
      {[](OpDef& d) {
         d.inputs = {{"x"}, {"x"}};
       },
       "op mine: input 1 must have a name that no earlier input has"},
      {[](OpDef& d) {
         d.inputs = {several("x", 4), {"y"}};
       },
       "only the last input may be a list (above 1)"},
      {[](OpDef& d) {
         d.outputs = {optional("x"), {"y"}};
       },
       "is required, so the output before it must not be optional"},
      {[](OpDef& d) { d.mutates = {1}; }, "names input 1, which is not declared"},
      {[](OpDef& d) {
         d.may_alias = {{1, 0}};
       },
       "names output 1, which is not declared"},
      {[](OpDef& d) { d.begins = {{.input = 2, .of_input = 0}}; }, "names input 2"},
      {[](OpDef& d) { d.collective = Collective::kAllToAll; }, "must be declared together"},
      {[](OpDef& d) { d.payload = Payload::kRows; }, "must be declared together"},
      {[](OpDef& d) { d.loss = Loss::kModel, d.outputs = {}; },
       "it has a loss, so output 0 must be declared"}};
  for (const auto& [forget, message] : faults) CHECK_THAT(refusal(forget), Contains(message));
  const OpDef def = whole();
  CHECK_THROWS_WITH(check_declared(OpTable({&def, &def})),
                    Contains("op mine: the name must be unique"));
}

TEST_CASE(
    "an op whose shape rule makes what is not declared, or takes integers that mean nothing") {
  OpDef def = whole();
  const auto make = [&](DType dtype) {
    const OpTable table({&def});
    Graph graph(table);
    const TensorId x = graph.add_tensor({"x", {2}, dtype, TensorKind::kInput});
    graph.add_op("mine", "a", {x});
  };
  CHECK_NOTHROW(make(DType::kF32));
  CHECK_THROWS_WITH(make(DType::kI32), Contains("op mine") && Contains("input 0 (x)") &&
                                           Contains("so its role must be one of integers"));
  def.outputs = {{"y"}, {"z"}};
  CHECK_THROWS_WITH(make(DType::kF32),
                    Contains("op mine: the shape rule must return 2 to 2 outputs"));
}

TEST_CASE("roles give the places of operands, which an attribute may leave out") {
  Graph graph(op_table());
  const auto tensor = [&](const char* name, Shape shape, DType dtype = DType::kF32) {
    return graph.add_tensor({name, std::move(shape), dtype, TensorKind::kInput});
  };
  const TensorId x = tensor("x", {2, 3, 4, 8}), w = tensor("w", {2, 8, 8});
  const TensorId counts = tensor("counts", {2, 3}, DType::kI32);
  const OpId id = graph.add_op(ops::kExpertLinear, "fc", {x, w});
  CHECK_FALSE(input_of(graph, graph.op(id), Role::kRecvCounts).valid());
  set_input(graph, id, Role::kRecvCounts, counts);
  CHECK(graph.op(id).inputs == std::vector<TensorId>{x, w, TensorId(), counts});
  CHECK(input_of(graph, graph.op(id), Role::kRecvCounts) == counts);
  set_input(graph, id, Role::kRecvCounts, TensorId());
  CHECK(graph.op(id).inputs == std::vector<TensorId>{x, w});
  CHECK_THROWS_WITH(set_input(graph, id, Role::kPlacement, x), Contains("must declare an input"));
  CHECK_THROWS_WITH(graph.add_op(ops::kExpertLinear, "gc", {x, TensorId()}),
                    Contains("input 1 of expert_linear (w) is absent, but required"));

  Op swap{.name = "s"};
  CHECK(input_operand(ops::kSwapIn, swap, 1)->role == Role::kValues);
  swap.attrs["keep"] = int64_t{1};
  CHECK(input_operand(ops::kSwapIn, swap, 1)->role == Role::kPlacement);
  CHECK(input_operand(ops::kSwapIn, swap, 2)->name == std::string("weights"));
  CHECK(input_operand(ops::kSgd, swap, 4) == nullptr);
}
