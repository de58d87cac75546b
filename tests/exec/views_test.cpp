// Steps in parts that lie in each other's storage: the numbers of the plain step, with poison on.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/exec/buffers.h"
#include "engine/exec/finite.h"
#include "engine/graph/edit.h"
#include "engine/graph/joined.h"
#include "engine/graph/text.h"
#include "engine/graph/verify.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/ops.h"
#include "engine/profile/operands.h"
#include "engine/profile/profiler.h"
#include "tests/exec/support.h"
#include "tests/schedule/fixture.h"

namespace moe::test {
namespace {

// --- ops of the tests' own: a part that makes its rows only -----------------------------------

std::vector<TensorSpec> infer_same(const Graph& g, const Op& op) {
  return {{g.tensor(op.inputs[0]).shape, g.tensor(op.inputs[0]).dtype}};
}

Work no_work(const Graph&, const Op&, const WorkContext&) {
  return {};
}

/// x end [begin] -> rows [begin, end) of every block of x; the others stay as they are.
constexpr auto run_take_rows = []<class T>(const KernelCall<T>& c) {
  const Shape& shape = c.in_shape(0);
  const int64_t blocks = num_elements(c.in_shape(1)), rows = shape[c.in_shape(1).size()];
  const bool index = c.graph.tensor(c.op.inputs[0]).dtype == DType::kI32;
  const int64_t element = index ? 4 : static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = num_elements(shape) / blocks / rows * element;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t from = c.in(2) == nullptr ? 0 : c.in_i32(2)[b], to = c.in_i32(1)[b];
    const int64_t at = (b * rows + from) * row_bytes;
    std::memcpy(static_cast<char*>(c.outputs[0]) + at, static_cast<const char*>(c.inputs[0]) + at,
                static_cast<size_t>((to - from) * row_bytes));
  }
};

constexpr auto run_half = []<class T>(const KernelCall<T>& c) {
  for (int64_t i = 0; i < num_elements(c.in_shape(0)); ++i) c.out_i32(0)[i] = c.in_i32(0)[i] / 2;
};

constexpr auto run_copy = []<class T>(const KernelCall<T>& c) {
  std::copy_n(c.in(0), num_elements(c.in_shape(0)), c.out(0));
};

const OpTable& table() {
  static const OpDef take_rows{
      .name = "take_rows",
      .inputs = {{"x", Role::kAny}, {"end", Role::kAny}, optional("begin", Role::kAny)},
      .outputs = {{"y"}},
      .infer = infer_same,
      .work = no_work,
      .run = wide_types(run_take_rows)};
  static const OpDef half{.name = "half",
                          .inputs = {{"x", Role::kAny}},
                          .outputs = {{"y"}},
                          .infer = infer_same,
                          .work = no_work,
                          .run = wide_types(run_half)};
  static const OpDef copy{.name = "copy",
                          .inputs = {{"x", Role::kAny}},
                          .outputs = {{"y"}},
                          .infer = infer_same,
                          .work = no_work,
                          .run = wide_types(run_copy)};
  static const OpTable ops = [] {
    std::vector<const OpDef*> defs(op_table().defs().begin(), op_table().defs().end());
    defs.insert(defs.end(), {&take_rows, &half, &copy});
    return OpTable(defs);
  }();
  return ops;
}

/// A step in which tensors are cut and put together again in all ways: the same program.
class Parts {
 public:
  Parts(const Graph& step, uint64_t seed, bool everywhere = false)
      : graph_(table()), rng_(seed), everywhere_(everywhere) {
    graph_.num_ranks = step.num_ranks;
    for (const Tensor& tensor : step.tensors()) graph_.add_tensor(tensor);
    for (const Op& op : step.ops()) graph_.append(op);
    through_views(graph_.find_tensor("ids"), false);
    for (size_t i = 0; i < step.num_ops(); ++i) cut_outputs(step.ops()[i]);
    graph_ = compact(graph_);
    verify(graph_, "test");
  }
  Graph take() { return std::move(graph_); }

 private:
  std::string name(const char* what) { return fmt::format("{}.{}", what, unique_++); }
  bool now_and_then() { return everywhere_ || rng_.below(2) == 0; }

  void cut_outputs(const Op& op) {
    if (op.phase != Phase::kForward) return;
    const std::string_view kind = graph_.def(op).name;
    const TensorId out = op.outputs[0];
    if (kind == "gate") {
      counts_ = op.outputs[5];
      if (now_and_then()) by_rows(op.outputs[4], counts_);
    } else if (kind == "dispatch" && now_and_then()) {
      by_rows(out, counts_);
    } else if (kind == "all_to_all" && op.rows.to_expert() && now_and_then() &&
               op.inputs.size() > 2) {
      by_rows(out, op.inputs[2]);
    } else if (kind == "all_to_all" && now_and_then()) {
      beside_twin(op);
    } else if (graph_.tensor(out).dtype == DType::kF32 && graph_.tensor(out).shape[0] > 1 &&
               now_and_then()) {
      through_views(out, now_and_then());
    }
  }

  OpId view(const char* kind, std::vector<TensorId> inputs, std::string sizes = "") {
    Attrs attrs{{"axis", int64_t{0}}, {"view", int64_t{1}}};
    if (!sizes.empty()) attrs["sizes"] = sizes;
    return graph_.add_op(kind, name(kind), std::move(inputs), attrs);
  }

  /// t -> parts [-> copies] -> whole for all readers.
  void through_views(TensorId t, bool copies) {
    const int64_t n = graph_.tensor(t).shape[0], first = 1 + rng_.below(n - 1);
    const OpId cut = view("split", {t}, fmt::format("{},{}", first, n - first));
    std::vector<TensorId> parts = graph_.op(cut).outputs;
    for (TensorId& part : parts) {
      if (copies) part = graph_.out(graph_.add_op("copy", name("copy"), {part}));
    }
    redirect(graph_, t, graph_.out(view("concat", parts)), std::vector{cut});
  }

  /// The output of a collective and that of its twin, one behind the other.
  void beside_twin(const Op& op) {
    const OpId first = graph_.find_op(op.name);
    const OpId twin =
        graph_.add_op(graph_.def(op).name, name("twin"), graph_.op(first).inputs, all_attrs(op));
    const TensorId t = op.outputs[0];
    const OpId both = view("concat", {t, graph_.out(twin)});
    const int64_t n = graph_.tensor(t).shape[0];
    const OpId cut = view("split", {graph_.out(both)}, fmt::format("{},{}", n, n));
    redirect(graph_, t, graph_.out(cut), std::vector{both});
  }

  /// Rows [0, counts / 2) and [counts / 2, counts) of every block by two ops.
  void by_rows(TensorId t, TensorId counts) {
    const TensorId middle = graph_.out(graph_.add_op("half", name("half"), {counts}));
    const Attrs share{{"share", 0.5}};
    const OpId p0 = graph_.add_op("take_rows", name("rows"), {t, middle}, share);
    const OpId p1 = graph_.add_op("take_rows", name("rows"), {t, counts, middle}, share);
    const OpId join =
        graph_.add_op("join_rows", name("join"), {middle, counts, graph_.out(p0), graph_.out(p1)},
                      {{"parts", int64_t{2}}});
    redirect(graph_, t, graph_.out(join), std::vector{p0, p1});
  }

  Graph graph_;
  Rng rng_;
  bool everywhere_;
  TensorId counts_;
  int unique_ = 0;
};

TEST_CASE(
    "random steps in views and joined rows, on random schedules with delays and poison, give the "
    "bits of the plain step in the planned memory") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph step = ragged_step_graph(spec);
  const auto plain = plan_of(spec, step);
  const RunResult expected = run_cpu(*plain, options_of(*plain, 2));
  size_t joined = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    const Graph graph = Parts(step, seed).take();
    joined += JoinedTensors(graph).groups.size();
    const auto plan = make_plan_of(spec, graph, fake::random_schedule(graph, seed, 20));
    RunOptions options = options_of(*plan, 2);
    options.test.poison = true;
    options.test.delay_ns = random_delays(seed);
    const RunResult result = run_cpu(*plan, options);
    CHECK(same_run(expected, result));
    CHECK(result.peak_bytes == plan->memory.peak_bytes());
  }
  CHECK(joined > 300);
}

TEST_CASE("rows that no part made are looked at only where they are joined") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  Graph graph = Parts(ragged_step_graph(spec), 1, true).take();
  std::vector<OpId> parts;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    const Op& op = graph.op(id);
    const bool is_part = op.rows.share.has_value();
    const bool real = !op.outputs.empty() && graph.tensor(op.outputs[0]).dtype == DType::kF32;
    if (is_part && real) parts.push_back(id);
    if (is_part || is_view(graph, op)) CHECK(finite_operands(graph, op).empty());
    if (graph.def(op).name == std::string_view("join_rows") && real) {
      CHECK(finite_operands(graph, op) == op.outputs);
    }
  }
  REQUIRE(!parts.empty());
  graph.op(parts[0]).rows.share.reset();
  const auto plan = plan_of(spec, graph);
  RunOptions options = options_of(*plan, 1);
  options.test.poison = true;
  CHECK_THROWS_WITH(run_cpu(*plan, options), Catch::Contains("op " + graph.op(parts[0]).name) &&
                                                 Catch::Contains("not finite"));
}

TEST_CASE("poison fills joined tensors once at their start, and after the last use of any") {
  const Graph graph = parse_graph(R"(graph g ranks=1
%0 input f32 [2,3] x
%1 = gelu(%0) a forward mlp
%2 = gelu(%0) b forward mlp
%3 = concat(%1, %2) {axis=0, view=1} whole forward mlp
%4 = gelu(%3) reads_whole forward mlp
%5 = gelu(%1) reads_piece forward mlp
)",
                                  op_table());
  Plan plan{.graph = graph, .schedule = default_schedule(graph)};
  plan.orders = lane_orders(plan.graph, plan.schedule);
  plan.memory = plan_memory(plan.graph, plan.schedule, plan.orders, 4);
  const RankBuffers buffers(plan, 4);
  Poison poison(plan, buffers, 4);
  const auto op = [&](const char* name) { return plan.graph.find_op(name); };
  auto* const whole = static_cast<float*>(buffers.at(plan.graph.find_tensor("whole")));
  const auto num_nan = [&] {
    return std::count_if(whole, whole + 12, [](float v) { return std::isnan(v); });
  };
  for (int step = 0; step < 2; ++step) {
    poison.start_step();
    std::fill_n(whole, 12, 1.0f);
    poison.before(op("a"));
    CHECK(num_nan() == 12);
    std::fill_n(whole, 6, 1.0f);
    poison.after(op("a"));
    poison.before(op("b"));
    CHECK(num_nan() == 6);
    std::fill_n(whole + 6, 6, 1.0f);
    for (const char* name : {"b", "whole", "reads_whole"}) {
      if (name != std::string("b")) poison.before(op(name));
      poison.after(op(name));
      CHECK(num_nan() == 0);
    }
    poison.before(op("reads_piece"));
    CHECK(num_nan() == 0);
    poison.after(op("reads_piece"));
    CHECK(num_nan() == 12);
  }
}

TEST_CASE("a join of rows is timed on parts that lie in the whole, and a view is not timed") {
  const PlanSpec spec = spec_of(small_model("switch"), 2);
  const Graph graph = Parts(ragged_step_graph(spec), 1, true).take();
  const ProfileOptions quick{.ranks_beside = 2, .min_time_s = 0, .min_samples = 3};
  int joins = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId id(static_cast<int64_t>(i));
    if (is_view(graph, graph.op(id))) CHECK_THROWS_AS(profile_op(graph, id, quick), InternalError);
    if (graph.def(id).name != std::string_view("join_rows")) continue;
    ++joins;
    ProfileOperands operands(graph, id, {});
    for (int call = 0; call < 3; ++call) {
      operands.next();
      CHECK(operands.inputs()[2] == operands.outputs()[0]);
      CHECK(operands.inputs()[3] == operands.outputs()[0]);
    }
    const auto* end0 = static_cast<const int32_t*>(operands.inputs()[0]);
    const auto* end1 = static_cast<const int32_t*>(operands.inputs()[1]);
    const Tensor& out = graph.tensor(graph.out(id));
    const Shape& blocks = graph.tensor(graph.op(id).inputs[0]).shape;
    CHECK(end0[0] > 0);
    CHECK(end0[0] < end1[0]);
    CHECK(end1[0] <= out.shape[blocks.size()]);
    CHECK(profile_op(graph, id, quick).ns.size() >= 3);
  }
  CHECK(joins > 0);
}

}  // namespace
}  // namespace moe::test
