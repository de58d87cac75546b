// The emulated link on a device where transfers of several lanes may meet on it: the bits of a
// training do not depend on it, and nothing waits for ever, in whatever order streams run.
#include <atomic>
#include <catch2/catch.hpp>
#include <map>

#include "engine/base/errors.h"
#include "engine/network/closed_form.h"
#include "tests/exec/device/run_lazy.h"
#include "tests/exec/support.h"

namespace moe::test {
namespace {

using Catch::Contains;
using Catch::StartsWith;

/// All-reduces in buckets on a lane of their own; a link whose transfers take some 10 us.
PlanSpec two_lanes(int64_t ranks, std::vector<Stage> stages = {},
                   const Gpt2& model = small_model("switch", 4)) {
  PlanSpec spec = spec_of(model, ranks);
  spec.cluster.intra = {.bytes_per_s = 1e10, .latency_ns = 2'000};
  spec.system.sync.lane = ReduceLane::kOwn;
  spec.system.sync.bucket_bytes = 16384;
  spec.system.stages = std::move(stages);
  return spec;
}

RunOptions on_link(const Plan& plan, int64_t steps) {
  RunOptions options = options_of(plan, steps);
  options.emulate_link = true;
  options.test.poison = true;
  options.timeout_s = 20;
  return options;
}

void check_bits(const Plan& plan, int64_t steps, LazyOrder order, uint64_t seed) {
  const RunResult cpu = run_cpu(plan, options_of(plan, steps));
  const RunResult device = run_lazy(plan, on_link(plan, steps), order, seed);
  CAPTURE(static_cast<int>(order), seed);
  CHECK(same_run(cpu, device));
  CHECK(device.provenance == Provenance::kEmulated);
}

void check_in_every_order(const Plan& plan) {
  for (const LazyOrder order :
       {LazyOrder::kAsGiven, LazyOrder::kFirstFirst, LazyOrder::kLastFirst, LazyOrder::kRandom}) {
    check_bits(plan, 2, order, 3);
  }
}

/// What each link carried, by its name.
std::map<std::string, double> bytes_of_links(const Timeline& timeline) {
  std::map<std::string, double> bytes;
  for (const LinkSpan& span : timeline.links) {
    bytes[span.name] += span.bytes_per_s * static_cast<double>(span.end - span.begin) / 1e9;
  }
  return bytes;
}

TEST_CASE("systems whose all-reduces have a lane of their own train on a device's link") {
  const std::vector<std::vector<Stage>> systems = {
      {},
      {pass("blocking_a2a")},
      {pass("capacity_pipeline", {{"degree", 2.0}})},
      {pass("irregular_a2a"), pass("used_rows"), pass("dw_schedule")},
      {pass("fastermoe_pipeline", {{"groups", 2.0}})},
      {pass("micro_ops", {{"bytes", 2048.0}}), pass("priority"),
       pass("chunked", {{"bytes", 4096.0}})},
  };
  for (const auto& stages : systems) {
    CAPTURE(stages.size(), stages.empty() ? "" : stages[0].name);
    check_in_every_order(*make_plan(two_lanes(2, stages)));
  }
  check_in_every_order(*make_plan(two_lanes(4)));
}

TEST_CASE("groups that meet within themselves, and experts that move, share a device's link") {
  Gpt2 model = small_model("switch", 2);
  model.ep = 2;
  check_in_every_order(*make_plan(two_lanes(4, {}, model)));
  check_in_every_order(*make_plan(two_lanes(2, {pass("top_k", {{"k", 2.0}, {"shadows", 2.0}})})));
}

TEST_CASE(
    "whatever lanes, turns, chunks and holds a schedule has, a device's link leaves its bits") {
  const bool ragged = GENERATE(false, true);
  const PlanSpec spec = two_lanes(2);
  const Graph graph = ragged ? ragged_step_graph(spec) : step_graph(spec);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const Schedule schedule =
        seed % 2 == 0 ? random_schedule(graph, rng) : random_discipline(spec, graph, rng);
    check_bits(*make_plan_of(spec, graph, schedule), 1, static_cast<LazyOrder>(seed % 4), seed);
  }
}

/// Steps on the emulated link: no transfer is shorter than alone. Returns how many were recorded.
int64_t recordings_on_link(const PlanSpec& spec) {
  const auto plan = make_plan(spec);
  RunOptions options = on_link(*plan, 4);
  options.test.poison = false;
  const RunResult result = run_lazy(*plan, options, LazyOrder::kRandom, 1);
  int64_t transfers = 0;
  for (const Span& s : result.timelines[3].spans) {
    const Collective kind = plan->graph.def(s.op).collective;
    if (kind == Collective::kNone) continue;
    ++transfers;
    const auto bytes = static_cast<double>(s.bytes);
    const Cluster& link = plan->spec.cluster;
    CAPTURE(plan->graph.op(s.op).name);
    CHECK(s.end - s.begin >= (kind == Collective::kAllToAll
                                  ? all_to_all_ns(link, bytes / 3)
                                  : all_reduce_ns(link, {bytes * 4 / (2 * 3)})));
  }
  CHECK(transfers > 0);
  return lazy_stats().recordings;
}

TEST_CASE(
    "on a link no transfer is shorter than alone, and where lanes share it none is recorded") {
  PlanSpec spec = two_lanes(4);
  CHECK(recordings_on_link(spec) == 0);
  spec.system.sync.lane = ReduceLane::kWithAllToAlls;
  CHECK(recordings_on_link(spec) == 1);
}

TEST_CASE("a device's link that lanes share tells what it carried, as that of CPU ranks does") {
  Gpt2 model = small_model("switch", 2);
  model.ep = 2;
  PlanSpec groups = two_lanes(4, {}, model);
  groups.cluster.nodes = groups.cluster.devices_per_node = 2;
  groups.cluster.nic = groups.cluster.intra;
  for (const PlanSpec& spec :
       {two_lanes(2, {pass("irregular_a2a"), pass("used_rows")}), two_lanes(4), groups}) {
    const auto plan = make_plan(spec);
    const RunOptions options = on_link(*plan, 2);
    const RunResult cpu = run_cpu(*plan, options);
    const RunResult device = run_lazy(*plan, options, LazyOrder::kRandom, 1);
    for (size_t step = 0; step < 2; ++step) {
      const auto want = bytes_of_links(cpu.timelines[step]);
      const auto got = bytes_of_links(device.timelines[step]);
      REQUIRE(want.size() > 1);
      REQUIRE(got.size() == want.size());
      for (const auto& [name, bytes] : want) {
        CAPTURE(plan->graph.num_ranks, step, name);
        CHECK(got.at(name) == Approx(bytes).epsilon(0.01));  // times are whole nanoseconds
      }
      for (const LinkSpan& span : device.timelines[step].links) CHECK(span.begin >= 0);
    }
  }
}

TEST_CASE("lanes that take turns have the link for themselves, and nobody keeps it") {
  const PlanSpec spec = two_lanes(2);
  const Graph graph = step_graph(spec);
  Schedule schedule = default_schedule(graph);
  schedule.lanes.push_back({"comm2", LaneKind::kComm});
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const bool sums = graph.def(OpId(int64_t(i))).collective == Collective::kAllReduce;
    if (sums) schedule.lane_of[i] = LaneId(2);
  }
  schedule.exclusive = {{{LaneId(1), LaneId(2)}, "test"}};
  const auto plan = make_plan_of(spec, graph, schedule);
  check_in_every_order(*plan);
  const RunResult result = run_lazy(*plan, on_link(*plan, 1), LazyOrder::kRandom, 1);
  CHECK(result.timelines[0].links.empty());
  CHECK(result.timelines[0].spans.size() > 0);
}

TEST_CASE("a transfer that does not end is told with its op, and the run ends all that wait") {
  PlanSpec spec = two_lanes(2);
  spec.cluster.intra.bytes_per_s = 10;  // hours
  const auto plan = make_plan(spec);
  RunOptions options = on_link(*plan, 1);
  options.timeout_s = 0.1;
  for (const LazyOrder order : {LazyOrder::kAsGiven, LazyOrder::kLastFirst}) {
    lazy_start(order);
    CHECK_THROWS_WITH(
        make_device_executor(lazy_device())->run(*plan, options),
        StartsWith("rank 0, step 0: the device has not finished ") && Contains("0.1 s"));
    CHECK(lazy_stats().handles == 0);
  }
}

TEST_CASE("what the host fails in while transfers wait ends the run with its message") {
  PlanSpec spec = two_lanes(2);
  const auto plan = make_plan(spec);
  RunOptions options = on_link(*plan, 3);
  options.on_step = [](int64_t step, double) -> bool {
    if (step == 1) throw run_error("enough");
    return true;
  };
  lazy_start(LazyOrder::kRandom);
  CHECK_THROWS_WITH(make_device_executor(lazy_device())->run(*plan, options), "enough");
  CHECK(lazy_stats().handles == 0);
}

TEST_CASE("what ends the driver of the link ends the run with its message") {
  const auto plan = make_plan(two_lanes(2));
  kernels::DeviceTable device = lazy_device();
  // A device whose clock goes wild after the step has begun.
  device.paced_copies = [](const kernels::Copy* copies, int64_t n, int64_t ns, int32_t blocks,
                           const kernels::LinkSignal& signal, kernels::Stream stream) {
    lazy_give(stream, [signal] {
      if (signal.begins == 0) return;
      std::atomic_ref(signal.flags->began_ns).store(int64_t{3} << 61);
      std::atomic_ref(signal.flags->begun).store(signal.begins);
    });
    lazy_device().paced_copies(copies, n, ns, blocks, {signal.flags, 0, signal.ends}, stream);
  };
  lazy_start(LazyOrder::kAsGiven);
  CHECK_THROWS_WITH(make_device_executor(device)->run(*plan, on_link(*plan, 1)),
                    Contains("the emulated link: ") && Contains("beyond the clock"));
  CHECK(lazy_stats().handles == 0);
}

}  // namespace
}  // namespace moe::test
