// Plans of a model on a cluster whose device has measured op times.
#include <fmt/format.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/cost/cost_model.h"
#include "engine/cost/op_table.h"
#include "engine/graph/autodiff.h"
#include "engine/graph/text.h"
#include "engine/model/model.h"
#include "engine/ops/ops.h"
#include "tests/model/gpt2.h"

namespace moe {
namespace {

const std::string kFile = MOE_SOURCE_DIR "/scripts/moe/gpus/h100.times";
constexpr int64_t kRanks = 8, kHidden = 256, kRows = 4 * 128;

Graph step_of(DType dtype) {
  test::Gpt2 model;
  model.layers = 2, model.hidden = kHidden, model.heads = 4, model.ffn = 1024;
  model.seq = 128, model.batch_per_device = 4, model.vocab = 512, model.experts = 16;
  model.dtype = dtype;
  Graph graph = test::build_forward(model, gate_spec(model), kRanks);
  add_backward_and_update(graph, {}, {});
  return graph;
}

/// A node whose rates are so low that no product by them is mistaken for a measured one.
Cluster slow_node() {
  Cluster c{.nodes = 1, .devices_per_node = kRanks};
  c.device = {.gemm_flops_per_s = 1e9,
              .vector_flops_per_s = 1e12,
              .memory_bytes_per_s = 1e13,
              .launch_ns = 3000};
  c.intra = {300e9, 1000};
  return c;
}

Cluster measured_node() {
  Cluster c = slow_node();
  c.device.op_times = c.collective_times = kFile;
  return c;
}

OpId named(const Graph& graph, std::string_view name) {
  const OpId id = graph.find_op(name);
  REQUIRE(id.valid());
  return id;
}

Nanoseconds table_ns(const char* op, std::vector<double> point, double factor = 1) {
  return static_cast<Nanoseconds>(
      std::ceil(factor * OpTables::open(kFile)->find(op, "bf16")->at(point).ns));
}

TEST_CASE("with measured op times, products take their table's time and a launch") {
  const Graph graph = step_of(DType::kF16);
  const RooflineCost cost(measured_node(), {});
  const auto ns = [&](const char* name) { return cost.op_ns(graph, named(graph, name)) - 3000; };
  const double h = kHidden, rows = kRows;
  CHECK(ns("b0.attn.qkv") == table_ns("gemm", {rows, 3 * h, h}));
  CHECK(ns("b0.attn.qkv.dx") == table_ns("gemm", {rows, h, 3 * h}));
  CHECK(ns("b0.attn.qkv.dw") == table_ns("gemm", {3 * h, h, rows}));
  const std::vector<double> sizes{4, 128, 4, 4, 64};
  CHECK(ns("b0.attn.core") == table_ns("attention", sizes));
  CHECK(ns("b0.attn.core.dx") == table_ns("attention", sizes, 2.9));
}

TEST_CASE("linears and experts take their times in fp8, gate, head and attention those of bf16") {
  const Graph graph = step_of(DType::kBF16);
  const RooflineCost wide(measured_node(), {});
  for (const char* const dtype : {"fp8", "fp8_block"}) {
    CAPTURE(dtype);
    const RooflineCost narrow(measured_node(), {}, {}, {}, "bf16", {dtype, 2e9});
    const auto ns = [&](const char* op) { return narrow.op_ns(graph, named(graph, op)) - 3000; };
    const OpGrid& gemm = *OpTables::open(kFile)->find("gemm", dtype);
    const auto rows = static_cast<double>(kRows), h = static_cast<double>(kHidden);
    CHECK(ns("b0.attn.qkv") == std::ceil(gemm.at(std::array{rows, 3 * h, h}).ns));
    CHECK(ns("b0.attn.qkv.dx") == std::ceil(gemm.at(std::array{rows, h, 3 * h}).ns));
    CHECK_THAT(narrow.describe(), Catch::Contains(fmt::format("linears and experts in {}", dtype)));
    size_t experts = 0;
    for (size_t i = 0; i < graph.num_ops(); ++i) {
      const OpId op(i);
      INFO(graph.op(op).name);
      const Segment segment = graph.op(op).segment;
      const std::string_view kind = graph.def(op).name;
      const bool linear =
          kind.starts_with("linear") && segment != Segment::kHead && segment != Segment::kGate;
      const bool expert = kind.starts_with("expert_linear");
      if (!linear && !expert) CHECK(narrow.op_ns(graph, op) == wide.op_ns(graph, op));
      experts += expert && narrow.op_ns(graph, op) != wide.op_ns(graph, op) ? 1 : 0;
    }
    CHECK(experts > 0);
    // Without tables by the rate of fp8, and operands of one byte.
    const RooflineCost rates(slow_node(), {}, {}, {}, "bf16", {dtype, 2e9});
    CHECK(rates.op_ns(graph, named(graph, "b0.attn.qkv")) ==
          static_cast<Nanoseconds>(rows * 3 * h * h) + 3000);
  }
  CHECK_THROWS_WITH(RooflineCost(slow_node(), {}, {}, {}, "bf16", {"fp8", 0}),
                    Catch::Contains("gemm_flops_per_s.fp8"));
}

TEST_CASE("attention of grouped queries takes the time of its heads, a window its share of it") {
  const auto ns = [](const std::string& attrs) {
    const Graph graph = parse_graph(R"(
graph g ranks=1
%0 param f16 [4,128,512] q
%1 param f16 [4,128,128] k
%2, %3 = attend(%0, %1, %1) {heads=8, kv_heads=2)" +
                                        attrs + R"(} core forward attn
)",
                                    op_table());
    return RooflineCost(measured_node(), {}).op_ns(graph, named(graph, "core")) - 3000;
  };
  const std::vector<double> sizes{4, 128, 8, 2, 64};
  CHECK(ns("") == table_ns("attention", sizes));
  const double pairs = 128 * 129 / 2, unseen = 96 * 97 / 2;
  CHECK(ns(", window=32") == table_ns("attention", sizes, (pairs - unseen) / pairs));
}

TEST_CASE("products of experts take measured ratios, more where an expert has few rows") {
  const Graph graph = step_of(DType::kF16);
  const RooflineCost half(measured_node(), {.slot_occupancy = 0.5}), full(measured_node(), {});
  size_t num_experts = 0;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(i);
    if (graph.def(op).moe != MoeOp::kExpertProduct) continue;
    ++num_experts;
    INFO(graph.op(op).name);
    CHECK(full.op_ns(graph, op) < 1'000'000);
    CHECK(full.op_ns(graph, op) > 3000);
    CHECK(half.op_ns(graph, op) <= full.op_ns(graph, op));
  }
  CHECK(num_experts > 0);
}

TEST_CASE("what is not measured takes the rates: float32, and a cluster without tables") {
  const Graph halves = step_of(DType::kF16), singles = step_of(DType::kF32);
  const double flops = 2.0 * kRows * 3 * kHidden * kHidden;
  const RooflineCost measured(measured_node(), {}), rates(slow_node(), {});
  CHECK(measured.op_ns(singles, named(singles, "b0.attn.qkv")) == flops + 3000);
  CHECK(rates.op_ns(halves, named(halves, "b0.attn.qkv")) == flops + 3000);
}

TEST_CASE("a product in a model of float32 takes no less than is measured of bf16") {
  const Graph singles = step_of(DType::kF32);
  Cluster quick = measured_node();
  quick.device.gemm_flops_per_s = 1e15;
  const auto ns = [&](const Cluster& cluster, const char* dtype) {
    const RooflineCost cost(cluster, {}, {}, {}, dtype);
    CHECK(cost.time_source(singles, named(singles, "b0.attn.qkv")) == TimeSource::kModel);
    return cost.op_ns(singles, named(singles, "b0.attn.qkv")) - 3000;
  };
  for (const char* const dtype : {"f32", "tf32"}) {
    CHECK(ns(quick, dtype) == table_ns("gemm", {kRows, 3. * kHidden, kHidden}));
    CHECK(ns(measured_node(), dtype) == 2.0 * kRows * 3 * kHidden * kHidden);
  }
  CHECK_THAT(RooflineCost(quick, {}, {}, {}, "tf32").describe(),
             Catch::Contains("tf32 GEMM 1000 TFLOP/s"));
}

TEST_CASE("float32 takes a user's measurements of float32, two-byte elements do not") {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("measured_times_{}.csv", getpid());
  std::ofstream(file) << "op,dtype,m,n,k,us\ngemm,f32,512,768,256,70\ngemm,f32,64,768,256,40\n";
  Cluster cluster = slow_node();
  cluster.device.op_times = file;
  const Graph halves = step_of(DType::kF16), singles = step_of(DType::kF32);
  const RooflineCost cost(cluster, {}), tf32(cluster, {}, {}, {}, "tf32");
  std::filesystem::remove(file);
  const Nanoseconds ns = cost.op_ns(singles, named(singles, "b0.attn.qkv")) - 3000;
  CHECK(std::abs(ns - 70'000) < 100);
  CHECK(cost.op_ns(halves, named(halves, "b0.attn.qkv")) > 1'000'000);
  CHECK(tf32.op_ns(singles, named(singles, "b0.attn.qkv")) > 1'000'000);
}

TEST_CASE("a ratio multiplies measured times, of bf16 for a type without a table") {
  const Graph halves = step_of(DType::kF16), singles = step_of(DType::kF32);
  Cluster node = measured_node();
  node.device.gemm_flops_per_s = 1e15;
  node.device.op_times_ratio = 2.5;
  const double bf16 = table_ns("gemm", {kRows, 3. * kHidden, kHidden});
  const RooflineCost tf32(node, {}, {}, {}, "tf32"), f16(node, {}, {}, {}, "f16");
  const OpId op = named(singles, "b0.attn.qkv");
  CHECK(std::abs(tf32.op_ns(singles, op) - 3000 - 2.5 * bf16) <= 3);
  CHECK(tf32.time_source(singles, op) == TimeSource::kExtrapolated);
  CHECK(std::abs(f16.op_ns(halves, named(halves, "b0.attn.qkv")) - 3000 - 2.5 * bf16) <= 3);
}

TEST_CASE("collectives inside a node take their table's time; between nodes their closed form") {
  const Graph graph = step_of(DType::kF16);
  OpId a2a;
  for (size_t i = 0; i < graph.num_ops() && !a2a.valid(); ++i) {
    if (graph.def(OpId(i)).collective == Collective::kAllToAll) a2a = OpId(i);
  }
  REQUIRE(a2a.valid());
  const double bytes = payload_bytes(graph, a2a, {});
  CHECK(RooflineCost(measured_node(), {}).op_ns(graph, a2a) ==
        table_ns("all_to_all", {kRanks, bytes}));
  Cluster two = measured_node(), plain = slow_node();
  for (Cluster* c : {&two, &plain}) {
    c->nodes = 2, c->devices_per_node = kRanks / 2, c->nic = {10e9, 2500};
  }
  CHECK(RooflineCost(two, {}).op_ns(graph, a2a) == RooflineCost(plain, {}).op_ns(graph, a2a));
}

}  // namespace
}  // namespace moe
