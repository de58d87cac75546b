#include "engine/cost/op_time.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/cost/op_table.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

const std::string kFile = MOE_SOURCE_DIR "/scripts/moe/gpus/h100.times";

Cluster two_nodes(bool measured) {
  Cluster c{.name = "two", .nodes = 2, .devices_per_node = 8};
  c.device = {.name = "gpu",
              .gemm_flops_per_s = 1e14,
              .vector_flops_per_s = 1e14,
              .memory_bytes_per_s = 1e12};
  c.intra = {300e9, 1000}, c.nic = {50e9, 2500};
  c.nics_per_node = 8;
  if (measured) c.device.op_times = c.collective_times = kFile;
  return c;
}

TEST_CASE("the time of an op is its table's, with kernel, framework and version as the source") {
  const OpTimeAnswer gemm = op_time(two_nodes(true), {.op = "gemm", .sizes = {4096, 4096, 4096}});
  CHECK(gemm.ns ==
        OpTables::open(kFile)->find("gemm", "bf16")->at(std::array{4096., 4096., 4096.}).ns);
  CHECK((gemm.measured && !gemm.extrapolated));
  CHECK((gemm.lo_ns < gemm.ns && gemm.ns < gemm.hi_ns));
  CHECK(gemm.source == "measured on H100 SXM: torch.nn.functional.linear, vllm 0.24.0");
  CHECK(op_time(two_nodes(true), {.op = "gemm", .sizes = {1e5, 4096, 4096}}).extrapolated);
  // Skew makes the slowest rank slower; more ranks make each of them faster.
  const auto experts = [&](double ep, const std::string& load) {
    return op_time(two_nodes(true),
                   {.op = "experts", .sizes = {16384, 4096, 1536, 128, 8, ep}, .load = load})
        .ns;
  };
  CHECK(experts(8, "power_law_1.2") > experts(8, "balanced"));
  CHECK(experts(8, "balanced") < 0.5 * experts(1, "balanced"));
}

TEST_CASE("an op that no table has takes the cluster's rates") {
  const OpTimeAnswer gemm = op_time(two_nodes(false), {.op = "gemm", .sizes = {1000, 1000, 1000}});
  CHECK(gemm.ns == Approx(2e9 / 1e14 * 1e9));
  CHECK((!gemm.measured && gemm.lo_ns == gemm.ns && gemm.hi_ns == gemm.ns));
  CHECK(op_time(two_nodes(false), {.op = "gemm", .sizes = {1, 1000, 1000}}).ns ==
        Approx(2 * 1002e3 / 1e12 * 1e9).epsilon(1e-3));
  CHECK(op_time(two_nodes(false), {.op = "attention", .sizes = {1, 1e4, 8, 8, 64}}).ns ==
        Approx(2. * 8 * 1e8 * 64 / 1e14 * 1e9));
  CHECK(op_time(two_nodes(false), {.op = "gemm", .dtype = "f32", .sizes = {1, 1000, 1000}}).ns ==
        Approx(4 * 1002e3 / 1e12 * 1e9).epsilon(1e-3));
  CHECK(op_time(two_nodes(false), {.op = "latent_attention", .sizes = {1, 1e4, 8}}).ns ==
        Approx(8. * 1e8 * 320 / 1e14 * 1e9));
  Cluster without = two_nodes(false);
  without.device.gemm_flops_per_s = 0;
  CHECK_THROWS_WITH(op_time(without, {.op = "gemm", .dtype = "fp8", .sizes = {1, 1, 1}}),
                    "dtype 'fp8': gpu has neither measured times of 'gemm' in it nor a rate of it");
  CHECK_THROWS_WITH(
      op_time(two_nodes(false),
              {.op = "experts", .sizes = {1, 1, 1, 1, 1, 1}, .load = "power_law_1.2"}),
      "load 'power_law_1.2': gpu has no measured 'experts' of it in bf16; give 'balanced'");
}

TEST_CASE("f16 takes the tables' times of bf16, wider types theirs by rates but no less") {
  const auto of = [](double rate, const std::string& dtype) {
    Cluster cluster = two_nodes(true);
    cluster.device.gemm_flops_per_s = rate;
    cluster.device.memory_bytes_per_s = 1e14;
    return op_time(cluster, {.op = "gemm", .dtype = dtype, .sizes = {4096, 4096, 4096}});
  };
  const OpTimeAnswer bf16 = of(1e14, "bf16");
  CHECK(of(1e14, "f16").ns == bf16.ns);
  CHECK(of(1e13, "f32").ns == Approx(2 * std::pow(4096., 3) / 1e13 * 1e9));
  CHECK(!of(1e13, "f32").measured);
  CHECK((of(1e18, "tf32").ns == bf16.ns && of(1e18, "tf32").extrapolated));
}

TEST_CASE("experts beyond the measured layers take what a plan takes, not all ranks' rows") {
  const auto of = [](double ep, const std::string& load = "balanced") {
    return op_time(two_nodes(true),
                   {.op = "experts", .sizes = {4096 * ep, 7168, 2048, 256, 8, ep}, .load = load});
  };
  // 32,768 rows of a rank in 4 experts: 2.9 TFLOP at 40 to 90% of the peak.
  CHECK((of(64).ns > 2.9e12 / 0.9 / 989e3 && of(64).ns < 2.9e12 / 0.4 / 989e3));
  CHECK((of(64).extrapolated && of(64).lo_ns < of(64).ns && of(64).ns < of(64).hi_ns));
  CHECK_THAT(of(64).source, Catch::Contains("as a plan"));
  CHECK_THAT(of(64, "power_law_1.2").source,
             Catch::Contains("also moves the rows of all 64 ranks"));
}

TEST_CASE("a time beyond the clock is an error, with and without tables") {
  for (const bool measured : {true, false}) {
    for (const OpTimeQuery& query :
         {OpTimeQuery{.op = "gemm", .sizes = {1e15, 1e15, 1e15}},
          OpTimeQuery{.op = "attention", .sizes = {1e15, 1e15, 1e15, 1e15, 1e15}},
          OpTimeQuery{.op = "experts", .sizes = {1e15, 1e15, 1e15, 8, 1, 1}},
          OpTimeQuery{.op = "all_reduce", .sizes = {8, 1e30}}}) {
      CHECK_THROWS_WITH(op_time(two_nodes(measured), query), Catch::Contains("beyond the clock"));
    }
  }
}

TEST_CASE("a collective takes its table's time inside a node, else that of its links") {
  const auto of = [](bool measured, double ranks) {
    return op_time(two_nodes(measured), {.op = "all_to_all", .sizes = {ranks, 16e6}});
  };
  CHECK((of(true, 8).measured && !of(true, 16).measured && !of(false, 8).measured));
  CHECK(of(true, 16).ns == static_cast<double>(all_to_all_ns(two_nodes(false), 1e6)));
  CHECK_THROWS_WITH(of(true, 17), "ranks = 17: the cluster has 16 devices; give it more nodes");
  CHECK_THROWS_WITH(of(true, 12), "ranks = 12: give whole nodes of 8 devices");
}

TEST_CASE("halves of an all-reduce, and a cluster's own tables among all of its ranks") {
  OpTimeQuery query{.op = "reduce_scatter", .sizes = {16, 16e6}};
  const double half = op_time(two_nodes(false), query).ns;
  CHECK(half == static_cast<double>(
                    all_reduce_ns(two_nodes(false), {.bytes = 16e6,
                                                     .algorithm = AllReduceAlgorithm::kTwoLevel,
                                                     .part = ReducePart::kReduceScatter})));
  query.collectives.emplace(Collective::kAllReduce, InterpolatedTable({{1e6, 1e5}, {16e6, 2e6}}));
  query.collectives_from = "mine.log";
  const OpTimeAnswer own = op_time(two_nodes(true), query);
  CHECK((own.ns == 1e6 && own.measured && own.extrapolated));
  CHECK(own.source == "half of collectives.all_reduce of two, from mine.log");
  query.op = "all_reduce";
  CHECK(
      (op_time(two_nodes(true), query).ns == 2e6 && !op_time(two_nodes(true), query).extrapolated));
  query.sizes = {8, 16e6};  // not all ranks
  CHECK(op_time(two_nodes(false), query).ns < 1e6);
}

TEST_CASE("a dispatch takes its table's time, and is refused where no table has it") {
  const auto of = [](bool measured, double nodes, const std::string& dtype = "fp8") {
    return op_time(two_nodes(measured),
                   {.op = "dispatch", .dtype = dtype, .sizes = {nodes, 20, 4096, 7168, 8}});
  };
  const OpTimeAnswer one = of(true, 1);
  CHECK(one.ns == Approx(492e3).epsilon(0.01));  // the mean of 256 and 384 experts
  CHECK((one.measured && !one.extrapolated && one.lo_ns < one.ns && one.ns < one.hi_ns));
  CHECK(one.source == "measured on H100 SXM: deepep normal, sglang 0.5.12 (2 to 8 nodes: 0.5.0)");
  CHECK(of(true, 2).ns == Approx(843.5e3 + 50e3).epsilon(0.01));  // transmit and notify
  CHECK_THROWS_WITH(of(true, 3),
                    "nodes = 3: H100 SXM has measured 'dispatch' for 1, 2, 4, 8 nodes only");
  CHECK_THROWS_WITH(of(true, 4), "nodes = 4 of 8 devices: the cluster has 2 of 8");
  CHECK_THROWS_WITH(of(true, 1, "bf16"), Catch::Contains("two has no 'dispatch' of bf16"));
  CHECK_THROWS_WITH(of(false, 1),
                    Catch::Contains("of two is not given, so there is no 'dispatch'") &&
                        Catch::Contains("no rates give its time"));
}

}  // namespace
}  // namespace moe
