#include "bindings/host/field_json.h"

#include <catch2/catch.hpp>

#include "engine/cluster/cluster.h"
#include "engine/exec/results/run_result.h"
#include "engine/exec/run_options.h"
#include "engine/model/model.h"
#include "engine/plan.h"
#include "engine/timeline/metrics.h"

namespace moe::lua {
namespace {

using nlohmann::json;

json row_of(const json& rows, const std::string& name) {
  for (const json& row : rows) {
    if (row["name"] == name) return row;
  }
  return nullptr;
}

}  // namespace

static_assert(rows_differ<Cluster>() && rows_differ<Device>() && rows_differ<LinkSpec>());
static_assert(rows_differ<RunOptions>() && rows_differ<TrainOptions>());
static_assert(rows_differ<Checkpoints>() && rows_differ<DeviceSettings>());
static_assert(rows_differ<RunResult>() && rows_differ<MoeStats>() && rows_differ<RankStats>());
static_assert(rows_differ<Metrics>() && rows_differ<MoeTimes>());
static_assert(rows_differ<Sgd>() && rows_differ<Adamw>() && rows_differ<GradientSync>());

TEST_CASE("what is written of a struct reads back as the same struct") {
  Cluster cluster{.name = "c", .nodes = 3, .devices_per_node = 4, .nics_per_node = 2};
  cluster.nic = {25e9, 1'500};
  cluster.device.memory_bytes = Bytes{80} << 30;
  cluster.share = Share::kPerFlow;
  cluster.overlap_slowdown.memory = 1.5;
  const json written = values_json(cluster);
  CHECK(written["nic"]["latency_us"] == 1.5);
  CHECK(written["share"] == "per_flow");
  Cluster read;
  read_fields(Fields(written, "cluster"), read);
  CHECK(values_json(read) == written);
  CHECK(read.nic.latency_ns == 1'500);
}

TEST_CASE("what is not given keeps its default, unless it has to be given") {
  RunOptions options;
  read_fields(Fields(json{{"steps", 7}, {"nccl", {{"channels", 4}}}}, "run"), options);
  CHECK(options.steps == 7);
  CHECK(options.device.nccl.channels == 4);
  CHECK(options.device.link_blocks == RunOptions().device.link_blocks);
  CHECK(options.timeout_s == kWatchdogSeconds);
  Cluster cluster;
  CHECK_THROWS_WITH(read_fields(Fields(json{{"nodes", 2}}, "cluster"), cluster),
                    "cluster.devices_per_node: is missing");
  CHECK_THROWS_WITH(read_fields(Fields(json{{"precision", "f16"}}, "run"), options),
                    Catch::Contains("unknown precision 'f16'"));
}

TEST_CASE("the table of a struct says type, range, default and names") {
  const json run = fields_json<RunOptions>();
  CHECK(row_of(run, "timeout_s")["default"] == kWatchdogSeconds);
  CHECK(row_of(run, "precision")["enum"] == json{"f32", "f64", "bf16"});
  CHECK(row_of(run, "link_blocks")["hi"] == 32);
  CHECK(row_of(run, "checkpoint_every")["type"] == "integer");
  CHECK(row_of(run, "eval_data").is_null());
  const json cluster = fields_json<Cluster>();
  CHECK(row_of(cluster, "nodes")["required"] == true);
  const json rate = row_of(row_of(cluster, "device")["fields"], "gemm_flops_per_s");
  CHECK_FALSE(rate.contains("default"));  // 0 may not be written
  const json ranks = row_of(fields_json<RunResult>(), "ranks");
  CHECK(ranks["of"]["of"]["fields"][1]["name"] == "cpu_ms");
}

TEST_CASE("ids count from 1, bits are hexadecimal and times are in their unit") {
  const json stats = values_json(MoeStats{.layer = 2, .checksum = 0xab});
  CHECK(stats["layer"] == 3);
  CHECK(stats["checksum"] == "00000000000000ab");
  Metrics metrics;
  metrics.makespan_ns = 2'500'000;
  metrics.all_reduce.wait_ns = 1'000;
  metrics.backward.layer_ns = 3'000'000;
  const json written = values_json(metrics);
  CHECK(written["iteration_ms"] == 2.5);
  CHECK(written["all_reduce_wait_ms"] == 0.001);
  CHECK(written["moe_backward_ms"] == 3);
  CHECK(written["imbalance"] == 1);
  CHECK_FALSE(written.contains("busy_ns"));
}

}  // namespace moe::lua
