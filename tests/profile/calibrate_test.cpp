// What a calibration holds; what the numbers are is the machine's business.
#include "engine/profile/calibrate_device.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"
#include "engine/graph/op_def.h"
#include "engine/model/model.h"
#include "engine/network/closed_form.h"
#include "tests/exec/device/lazy_device.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

CalibrateOptions quick(int64_t ranks) {
  CalibrateOptions options;
  options.num_ranks = ranks;
  options.profile = {.min_time_s = 0, .min_samples = 3};
  options.hidden = {32, 256};
  options.max_payload = 4 << 20;
  return options;
}

void check_rows(const std::vector<Calibrated>& rows) {
  for (const Calibrated& row : rows) {
    INFO(row.what << " of " << row.x);
    CHECK(row.x > 0);
    CHECK(row.ns > 0);
    CHECK(row.spread >= 0);
    CHECK(row.num_samples >= 3);
  }
}

void check_table(const CalibratedTable& table, double first, double last) {
  check_rows(table.rows);
  REQUIRE(table.rows.size() == 13);
  CHECK(table.rows.front().x == first);
  CHECK(table.rows.back().x == last);
  for (size_t i = 1; i < table.rows.size(); ++i) CHECK(table.rows[i].x > table.rows[i - 1].x);
  CHECK(table.fit.beta_ns > 0);
  CHECK(table.interpolation.worst >= table.interpolation.median);
}

TEST_CASE("a calibration has every rate that a roofline and links want, from the lines it fitted") {
  const Calibration c = calibrate(quick(2));
  check_rows(c.gemm.rows);
  check_rows(c.memory.rows);
  CHECK(c.gemm.rows.size() >= 20);
  CHECK(c.memory.rows.size() >= 20);
  CHECK(c.device.gemm_flops_per_s == Approx(1e9 / c.gemm.fit.beta_ns));
  CHECK(c.device.memory_bytes_per_s == Approx(1e9 / c.memory.fit.beta_ns));
  CHECK(c.device.vector_flops_per_s > 0);
  CHECK(static_cast<double>(c.device.launch_ns) <= c.gemm.fit.alpha_ns + 1);
  CHECK(static_cast<double>(c.device.launch_ns) <= c.memory.fit.alpha_ns + 1);
  CHECK(c.roofline.worst >= c.roofline.median);
  CHECK_THAT(c.machine, Catch::Contains("beside=2"));
  // Tables go from 1 KiB per rank upwards, and their line is the link's closed form.
  check_table(c.all_to_all, 1 << 10, 4 << 20);
  check_table(c.all_reduce, 1 << 10, 4 << 20);
  Cluster cluster{.nodes = 1, .devices_per_node = 2, .device = c.device};
  cluster.intra = cluster.nic = c.link;
  for (const double payload : {1e4, 1e7}) {
    const auto closed = static_cast<double>(all_to_all_ns(cluster, payload / 2));
    CHECK(closed == Approx(c.all_to_all.fit.at(payload)).margin(3));
  }
}

/// t = 5 us + work / rate of GEMMs and of memory, 7 us + bytes / rate of collectives.
Samples made_up(const Graph& graph, OpId op, const ProfileOptions&) {
  const OpDef& def = graph.def(op);
  const Work work = def.work(graph, graph.op(op), {});
  double us = 5 + (work.gemm() ? work.flops / 4e6 : work.bytes / 2e5);
  if (def.collective != Collective::kNone) us = 7 + payload_bytes(graph, op, {}) / 1e4;
  return {std::vector<Nanoseconds>(5, std::llround(1e3 * us))};
}

TEST_CASE("a payload holds as many elements for every rank") {
  CalibrateOptions options = quick(3);
  options.time_op = made_up;
  const Calibration c = calibrate(options);
  // 256 and 1,048,576 floats in three equal parts.
  check_table(c.all_to_all, 3 * 85 * 4, 3 * 349525 * 4);
}

TEST_CASE("one rank has no collectives, and less than one is refused") {
  CalibrateOptions options = quick(1);
  options.time_op = made_up;
  const Calibration c = calibrate(options);
  CHECK(c.all_to_all.rows.empty());
  CHECK(c.all_reduce.rows.empty());
  CHECK(c.link.bytes_per_s == 0);
  CHECK_THROWS_WITH(calibrate(quick(0)), Catch::Contains("ranks = 0"));
}

TEST_CASE("ops that something else times calibrate what it times") {
  CalibrateOptions options = quick(4);
  options.time_op = made_up;
  options.machine = [](const ProfileOptions& o) {
    return fmt::format("beside {}", o.ranks_beside);
  };
  const Calibration c = calibrate(options);
  CHECK(c.machine == "beside 4");
  CHECK(c.device.gemm_flops_per_s == Approx(4e12).epsilon(1e-3));
  CHECK(c.device.memory_bytes_per_s == Approx(2e11).epsilon(1e-3));
  CHECK(static_cast<double>(c.device.launch_ns) == Approx(5000).margin(20));
  CHECK(c.all_to_all.fit.alpha_ns == Approx(7000).margin(20));
  CHECK(c.link.bytes_per_s == Approx(0.75 * 1e10).epsilon(1e-3));
  CHECK(c.gemm.fit.error.worst < 1e-2);
}

TEST_CASE("a calibration on a device times its ops there, and its copies between ranks") {
  lazy_start(LazyOrder::kAsGiven);
  const CalibrateOptions options = calibrated_on(lazy_device(), quick(2));
  CHECK_THAT(options.machine(options.profile), Catch::StartsWith("lazy; "));
  const auto plan = make_plan(spec_of(small_model("switch", 4), 2));
  ProfileOptions profile = options.profile;
  profile.ranks_beside = 2;
  for (const char* kind : {"linear", "layernorm", "all_to_all", "all_reduce"}) {
    OpId op;
    for (size_t i = 0; i < plan->graph.num_ops() && !op.valid(); ++i) {
      if (plan->graph.def(OpId(int64_t(i))).name == std::string(kind)) op = OpId(int64_t(i));
    }
    CAPTURE(kind);
    const std::vector<Nanoseconds> samples = options.time_op(plan->graph, op, profile).ns;
    CHECK(samples.size() >= 3);
    CHECK(samples[0] >= 1000);  // a task of the lazy device
  }
  CHECK(lazy_stats().handles == 0);
}

TEST_CASE("a calibration in bf16 times what stores bf16, and compute beside transfers") {
  lazy_start(LazyOrder::kAsGiven);
  CalibrateOptions wanted = quick(2);
  wanted.hidden = {64, 32};
  wanted.max_payload = 4 << 10;
  wanted.dtype = DType::kBF16;
  CalibrateOptions options = calibrated_on(lazy_without_copying(), wanted);
  int64_t stored = 0, largest = 0;
  options.time_op = [&](const Graph& graph, OpId op, const ProfileOptions& profile) {
    stored += stores_bf16(graph, graph.op(op));
    largest = std::max(largest, graph.tensor(graph.op(op).inputs[0]).shape.back());
    return made_up(graph, op, profile);
  };
  const auto overlap = options.overlap;
  options.overlap = [&](const Graph& graph, const ProfileOptions& profile) {
    CHECK(graph.tensor(graph.op(graph.find_op("b0.ln1")).inputs[0]).shape.back() == 64);
    CHECK(profile.ranks_beside == 2);
    const PlanSpec small = spec_of(small_model("switch", 4), 2);  // is timed in less time
    return overlap(small.model->forward, profile);
  };
  const Calibration c = calibrate(options);
  CHECK(stored > 20);
  CHECK_THAT(c.machine, Catch::EndsWith("; bf16"));
  CHECK_THAT(c.overlap.source, Catch::StartsWith("measured with "));
  CHECK(c.overlap.by_blocks.size() == 5);
  CHECK(calibrate(quick(1)).overlap.source.empty());
  kernels::DeviceTable without = lazy_device();
  without.mixed = nullptr;
  CHECK_THROWS_WITH(calibrated_on(without, wanted), Catch::Contains("no kernels for bfloat16"));
  CHECK(lazy_stats().handles == 0);
}

TEST_CASE("a calibration ends where its caller says so") {
  CalibrateOptions options = quick(1);
  int reports = 0;
  options.progress = [&](const std::string& what) {
    CHECK_FALSE(what.empty());
    if (++reports == 3) throw RunError("interrupted");
  };
  CHECK_THROWS_WITH(calibrate(options), "interrupted");
  CHECK(reports == 3);
}

}  // namespace
}  // namespace moe::test
