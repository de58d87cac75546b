// Flops and bytes by plain arithmetic, on sizes where each factor is a different prime.
#include <catch2/catch.hpp>

#include "engine/graph/autodiff.h"
#include "engine/graph/text.h"
#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "tests/model/gpt2.h"

namespace moe::test {
namespace {

Work work_of(const Graph& graph, std::string_view name, double slot_occupancy = 1.0) {
  const OpId id = graph.find_op(name);
  REQUIRE(id.valid());
  return graph.def(id).work(graph, graph.op(id), {.slot_occupancy = slot_occupancy});
}

Graph model_graph(Gpt2 model, int64_t ranks) {
  model.vocab = 31;
  model.layers = 2;
  model.hidden = 14;
  model.heads = 2;
  model.seq = 5;
  model.batch_per_device = 3;
  model.experts = 4;
  model.capacity_factor = 2;
  Graph graph = build_forward(model, gate_spec(model), ranks);
  add_backward_and_update(graph, {}, {});
  return graph;
}

}  // namespace

TEST_CASE("a linear and both its gradients do 2 rows in out flops") {
  const Graph graph = model_graph({}, 1);
  const double rows = 15, d = 14;
  for (const char* name : {"b0.attn.qkv", "b0.attn.qkv.dx", "b0.attn.qkv.dw"}) {
    INFO(name);
    CHECK(work_of(graph, name).flops == 2 * rows * d * 3 * d);
    CHECK(work_of(graph, name).gemm());
  }
  const double x = rows * d, w = 3 * d * d, b = 3 * d, y = rows * 3 * d;
  CHECK(work_of(graph, "b0.attn.qkv").bytes == 4 * (x + w + b + y));
  CHECK(work_of(graph, "b0.attn.qkv.dx").bytes == 4 * (y + w + x));
  CHECK(work_of(graph, "b0.attn.qkv.dw").bytes == 4 * (y + x + w + b));
  CHECK(work_of(graph, "head").flops == 2 * rows * d * 31);
  CHECK(work_of(graph, "head").bytes == 4 * (rows * d + 31 * d + rows * 31));
}

TEST_CASE("unfused attention works on the full square, fused on the causal half of it") {
  const double square = 2.0 * 3 * 2 * 5 * 5 * 7, half = 2.0 * 3 * 2 * (5 * 6 / 2) * 7;
  Gpt2 spec;
  const Graph fused = model_graph(spec, 1);
  spec.fused_attention = false;
  const Graph unfused = model_graph(spec, 1);
  CHECK(work_of(fused, "b0.attn.core").flops == 2 * half);
  CHECK(work_of(fused, "b0.attn.core.dx").flops == 5 * half);
  CHECK(work_of(unfused, "b0.attn.score").flops == square);
  CHECK(work_of(unfused, "b0.attn.context").flops == square);
  CHECK(work_of(unfused, "b0.attn.context.dx").flops == 2 * square);
  CHECK(work_of(unfused, "b0.attn.score.dx").flops == 2 * square);
  CHECK(work_of(unfused, "b0.attn.softmax").bytes == 4 * 2 * (3 * 2 * 5 * 5));
}

TEST_CASE("attention of grouped queries works on the pairs of a query and a key that it sees") {
  const auto graph_with = [](const std::string& attrs) {
    Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f32 [3,5,84] q
%1 param f32 [3,5,28] k
%2 param f32 [3,5,22] v
%3 input i32 [3,5] targets
%4, %5 = attend(%0, %1, %2) {heads=6, kv_heads=2)" +
                                  attrs + R"(} core forward attn
%6, %7 = cross_entropy(%4, %3) loss forward head
)",
                              op_table());
    autodiff(graph, graph.out(graph.find_op("loss")));
    return graph;
  };
  const Graph whole = graph_with(""), windowed = graph_with(", window=3"),
              wide = graph_with(", window=9");
  const double heads = 3 * 6, pairs = 5 * 6 / 2, seen = 1 + 2 + 3 + 3 + 3;
  CHECK(work_of(whole, "core").flops == 2 * heads * pairs * (14 + 11));
  CHECK(work_of(whole, "core.dx").flops == 2 * heads * pairs * (3 * 14 + 2 * 11));
  CHECK(work_of(windowed, "core").flops == 2 * heads * seen * (14 + 11));
  CHECK(work_of(wide, "core").flops == work_of(whole, "core").flops);
  CHECK(work_of(whole, "core").bytes == 4 * (3 * 5 * (84 + 28 + 22 + 66) + 3 * 6 * 5));
  const MatrixWork matrix = work_of(windowed, "core.dx").matrix;
  CHECK((matrix.heads == 6 && matrix.kv_heads == 2 && matrix.head_dim == 14 && matrix.backward));
  CHECK(matrix.share == Approx(seen / pairs * (3 * 14 + 2 * 11) / (5 * 14)));
  CHECK(work_of(whole, "core").matrix.share == Approx((14 + 11) / 28.0));
}

TEST_CASE("experts do the capacity's flops, or the expected share of it on used rows") {
  Graph graph = model_graph({}, 2);
  const double rows = 2 * 2 * 8;  // local experts, sources, capacity = ceil(2 * 15 / 4)
  CHECK(work_of(graph, "b1.moe.fc1", 0.5).flops == 2 * rows * 14 * 56);
  graph.op(graph.find_op("b1.moe.fc1")).attrs["rows"] = std::string("used");
  CHECK(work_of(graph, "b1.moe.fc1", 0.5).flops == 0.5 * 2 * rows * 14 * 56);
  CHECK(work_of(graph, "b1.moe.fc1", 0.5).bytes == 4 * (0.5 * rows * (14 + 56) + 2.0 * 14 * 56));
}

TEST_CASE("an all-to-all carries all slots, an irregular one the expected share") {
  Graph graph = model_graph({}, 2);
  const double bytes = 4.0 * 4 * 8 * 14;
  for (const char* name : {"b1.moe.a2a_1", "b1.moe.a2a_2", "b1.moe.a2a_1.dx", "b1.moe.a2a_2.dx"}) {
    INFO(name);
    const OpId id = graph.find_op(name);
    REQUIRE(id.valid());
    CHECK(graph.def(id).collective == Collective::kAllToAll);
    CHECK(graph.def(id).lane == LaneKind::kComm);
    CHECK(work_of(graph, name, 0.25).bytes == bytes);
    graph.op(id).rows.irregular = true;
    CHECK(work_of(graph, name, 0.25).bytes == 0.25 * bytes);
  }
}

TEST_CASE("an all-reduce carries its gradients, an update touches five tensors") {
  const Graph graph = model_graph({}, 2);
  Bytes reduced = 0, replicated = 0;
  for (const Tensor& t : graph.tensors()) {
    if (t.kind == TensorKind::kParam && !t.held.moe) replicated += 4 * num_elements(t.shape);
  }
  for (const Op& op : graph.ops()) {
    if (graph.def(op).collective == Collective::kAllReduce) {
      reduced += static_cast<Bytes>(graph.def(op).work(graph, op, {}).bytes);
    }
  }
  CHECK(reduced == replicated);
  CHECK(work_of(graph, "wpe.sgd").bytes == 5 * 4 * (5 * 14));
}

TEST_CASE("AdamW touches seven tensors, a router loss its logits twice") {
  Gpt2 model;
  model.vocab = 31;
  model.layers = 2;
  model.hidden = 14;
  model.heads = 2;
  model.seq = 5;
  model.batch_per_device = 3;
  model.balance_loss.coefficient = model.z_loss = model.bias_balance.rate = 0.1;
  Graph graph = build_forward(model, gate_spec(model), 2);
  add_backward_and_update(graph, Adamw{.lr = 0.1}, {});
  CHECK(work_of(graph, "wpe.adamw").bytes == 7 * 4 * (5 * 14));
  CHECK(work_of(graph, "b1.moe.z_loss").bytes == 2 * 4 * (15 * 4) + 8);
  CHECK(work_of(graph, "b1.moe.balance_loss").bytes == 2 * 4 * (15 * 4) + 8 + 4 * 4);
  CHECK(work_of(graph, "b1.moe.load").bytes == 4 * 15 + 4 * 4);
  CHECK(work_of(graph, "moe.load.all_reduce").bytes == 4 * 4);
}

TEST_CASE("a lookup and its gradient count the batch's rows, not the table, where they can") {
  const Graph graph = model_graph({}, 1);
  const double x = 15 * 14, wpe = 5 * 14, ids = 15, wte = 31 * 14;
  CHECK(work_of(graph, "embed").bytes == 4 * (2 * x + wpe + ids));
  CHECK(work_of(graph, "embed.dw").bytes == 4 * (x + ids + 2 * wte + wpe));
}

TEST_CASE("slots without a token are written but not read") {
  const Graph graph = model_graph({}, 1);
  const double slots = 4 * 4 * 8 * 14;
  CHECK(work_of(graph, "b1.moe.dispatch", 0.5).bytes == slots * 1.5 + 4 * 32);
  const double y = 4 * 15 * 14, maps = 4 * 2 * 15;
  CHECK(work_of(graph, "b1.moe.combine", 0.5).bytes == 0.5 * slots + 2 * y + maps);
}

TEST_CASE("every op of a step says what it costs") {
  const Graph graph = model_graph({}, 2);
  for (const Op& op : graph.ops()) {
    INFO(op.name);
    const Work work = graph.def(op).work(graph, op, {.slot_occupancy = 0.8});
    CHECK(work.bytes > 0);
    CHECK(work.flops >= 0);
    CHECK((!work.gemm() || work.flops > 0));
  }
}

}  // namespace moe::test
