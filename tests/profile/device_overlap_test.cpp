// Compute timed beside transfers on the lazy device, on whose clock paced copies last beside what
// other streams do: the table, what is kept of it, and a device that runs nothing side by side.
#include <catch2/catch.hpp>
#include <string>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"
#include "engine/model/model.h"
#include "engine/profile/device_overlap.h"
#include "engine/profile/device_profiler.h"
#include "tests/exec/device/lazy_device.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Matchers::Contains;

const Graph& forward() {
  static const Graph graph = [] {
    const PlanSpec spec = spec_of(small_model("switch", 4), 2);
    return spec.model->forward;
  }();
  return graph;
}

OverlapOptions quick(std::vector<int32_t> blocks) {
  return {.profile = {.ranks_beside = 2, .min_time_s = 0, .min_samples = 5},
          .blocks = std::move(blocks)};
}

OverlapTable table_of(const std::vector<int32_t>& blocks, ProfileCache& cache,
                      const kernels::DeviceTable& device = lazy_device()) {
  OverlapTable table = overlap_table(forward(), quick(blocks), cache, "lazy", device);
  CHECK(std::string(lazy_device().take_error()) == "");
  return table;
}

int64_t transfers = 0;  // that counting_device() was given
int32_t last_blocks = 0;

/// The lazy device, which counts.
kernels::DeviceTable counting_device() {
  transfers = last_blocks = 0;
  kernels::DeviceTable device = lazy_device();
  device.paced_copies = [](const kernels::Copy* copies, int64_t n, int64_t ns, int32_t blocks,
                           const kernels::LinkSignal& turn, kernels::Stream stream) {
    ++transfers;
    last_blocks = blocks;
    lazy_device().paced_copies(copies, n, ns, blocks, turn, stream);
  };
  return device;
}

TEST_CASE("the ops that are timed are the largest GEMM and what moves the most bytes") {
  const OverlapOps ops = overlap_ops(forward());
  REQUIRE(ops.gemm.valid());
  REQUIRE(ops.memory.valid());
  CHECK(is_gemm(forward(), ops.gemm));
  CHECK_FALSE(is_gemm(forward(), ops.memory));
  CHECK(forward().def(ops.memory).collective == Collective::kNone);
  for (size_t i = 0; i < forward().num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (!is_gemm(forward(), op)) continue;
    const auto flops = [&](OpId of) {
      return forward().def(of).work(forward(), forward().op(of), {}).flops;
    };
    CHECK(flops(op) <= flops(ops.gemm));
  }
}

TEST_CASE("compute beside transfers is measured by class and blocks, and kept in the cache") {
  lazy_start(LazyOrder::kAsGiven);
  lazy_slow_beside(1.5);
  ProfileCache cache("");
  const kernels::DeviceTable device = counting_device();
  const OverlapTable table = table_of({1, 4}, cache, device);
  REQUIRE(table.by_blocks.size() == 2);
  for (const int32_t blocks : {1, 4}) {
    // Each task of the lazy device takes its microsecond, or one and a half.
    CHECK(table.by_blocks.at(blocks).gemm == Approx(1.5));
    CHECK(table.by_blocks.at(blocks).memory == Approx(1.5));
  }
  CHECK(last_blocks == 4);
  CHECK_THAT(table.describe(), Contains("measured with") && Contains("4 blocks: GEMMs x1.500"));
  CHECK(lazy_stats().handles == 0);

  transfers = 0;
  CHECK(table_of({1, 4}, cache, device).describe() == table.describe());
  CHECK(transfers == 0);
  table_of({1, 8}, cache, device);  // one row more
  CHECK(transfers > 0);
  CHECK(last_blocks == 8);
}

TEST_CASE("compute that transfers do not slow down has a factor of 1, never less") {
  lazy_start(LazyOrder::kAsGiven);
  ProfileCache cache("");
  const OverlapTable plain = table_of({2}, cache);
  CHECK(plain.at(2).gemm == 1);
  CHECK(plain.at(2).memory == 1);
  lazy_start(LazyOrder::kAsGiven);
  lazy_slow_beside(0.5);
  ProfileCache other("");
  CHECK(table_of({2}, other).at(2).gemm == 1);
}

TEST_CASE("where a device runs no transfer beside compute no slowdown is made up") {
  lazy_start(LazyOrder::kAsGiven);
  ProfileCache cache("");
  kernels::DeviceTable one_by_one = counting_device();
  one_by_one.paced_copies = [](const kernels::Copy*, int64_t, int64_t, int32_t,
                               const kernels::LinkSignal&, kernels::Stream) { ++transfers; };
  const OverlapTable table = table_of({1, 2}, cache, one_by_one);
  CHECK(table.by_blocks.empty());
  CHECK_THAT(table.describe(), Contains("the device runs no transfer while it computes"));
  CHECK(table.at(8).gemm == 1);
  CHECK(table.at(8).memory == 1);
  CHECK(transfers == 3);  // found out without an op
  CHECK(lazy_stats().handles == 0);
}

}  // namespace
}  // namespace moe::test
