#include "engine/profile/rehearsal.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "engine/base/stop.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/exec/cpu/executor.h"
#include "engine/exec/data.h"
#include "engine/exec/sync.h"
#include "engine/graph/op_def.h"
#include "engine/network/closed_form.h"
#include "engine/ops/defs.h"
#include "engine/routing/workload.h"

namespace moe {
namespace {

// Slow enough that copying the bytes in memory takes less time than the emulated transfer, and fast
// enough for a short rehearsal.
constexpr LinkSpec kRehearsalLink = {.bytes_per_s = 5e8, .latency_ns = 20'000};
constexpr Bytes kBucketBytes = 25 << 20;  // as in the all-reduces of the compiler RAF
constexpr const char* kPeers = "peers";
constexpr const char* kCore = "core";
constexpr const char* kCoreLate = "core late";

/// Whether comm lanes take time from the cores of compute lanes: they wake, copy and spin while
/// compute runs.
bool shares_cores(const Plan& plan, const RehearsalOptions& options) {
  return options.emulated && plan.graph.num_ranks > 1;
}

/// Returns the step groups (step_group()) of the collectives, or of the other ops.
std::set<std::string> groups_of(const Graph& graph, bool collectives) {
  std::set<std::string> groups;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const bool collective = graph.def(op).collective != Collective::kNone;
    if (collective == collectives && !is_view(graph, graph.op(op))) {
      groups.insert(step_group(graph, op));
    }
  }
  return groups;
}

/// Returns the plan with a learning rate of 0, so that training on made-up tokens cannot diverge
/// whatever learning rate the target has.
Plan standing_still(const Plan& plan) {
  Plan still = plan;
  for (size_t i = 0; i < still.graph.num_ops(); ++i) {
    Attrs& attrs = still.graph.op(OpId(static_cast<int64_t>(i))).attrs;
    if (attrs.contains("lr")) attrs["lr"] = 0.0;
  }
  return still;
}

/// Returns, for each step group, the sum of its ops' durations in one step, averaged over ranks;
/// the duration of a collective is counted from the post of its last member.
std::map<std::string, Nanoseconds> sums_of(const Graph& graph, const Timeline& timeline) {
  std::vector<Nanoseconds> posted(graph.num_ops());
  for (const Span& span : timeline.spans) {
    Nanoseconds& last = posted[span.op.index()];
    last = std::max(last, span.post);
  }
  std::map<std::string, Nanoseconds> sums;
  for (const Span& span : timeline.spans) {
    const bool collective = graph.def(span.op).collective != Collective::kNone;
    const Nanoseconds begin = collective ? posted[span.op.index()] : span.begin;
    sums[step_group(graph, span.op)] += span.end - begin;
  }
  for (auto& [group, ns] : sums) ns /= timeline.num_ranks;
  return sums;
}

/// Measures how much core time a very small transfer takes from the compute that it interrupts, and
/// how late it ends, with the communicators and threads of a run. Samples are of rank 0's comm
/// lane.
void probe_core(int64_t n, StepSamples& samples) {
  constexpr int kRounds = 100, kWarmUpRounds = 10;
  constexpr Bytes kBytes = 256;  // bytes to each rank
  constexpr Nanoseconds kPause = 300'000;
  // Slow, so that lanes sleep during the transfer as they do during a large one.
  constexpr LinkSpec kSlow = {.bytes_per_s = 5e5, .latency_ns = 20'000};
  const Cluster link = {.nodes = n, .devices_per_node = 1, .intra = kSlow, .nic = kSlow};
  InProcessWorld world(n, 1, {});
  EmulatedWire wire(link);
  std::atomic<int64_t> running{n};
  const Nanoseconds model = all_to_all_ns(link, kBytes);
  const auto comm_lane = [&](int64_t rank) {
    wake_promptly();
    const std::unique_ptr<Communicator> comm = emulate_link(world.comm(rank, 0), wire, 0);
    std::vector<std::byte> send(static_cast<size_t>(n * kBytes)), receive(send.size());
    Pieces pieces;
    pieces.send_bytes.assign(static_cast<size_t>(n), kBytes);
    pieces.receive_bytes = pieces.send_bytes;
    for (int64_t p = 0; p < n; ++p) pieces.send_offset.push_back(p * kBytes);
    pieces.receive_offset = pieces.send_offset;
    for (int round = 0; round < kRounds; ++round) {
      wait_until_ns(clock_ns() + kPause);
      const Nanoseconds begin = thread_cpu_ns();
      const CommTimes times = comm->all_to_all("rehearsal", send.data(), receive.data(), pieces);
      const Nanoseconds woken = clock_ns();
      if (rank != 0 || round < kWarmUpRounds) continue;
      samples[kCore].push_back(thread_cpu_ns() - begin);
      samples[kCoreLate].push_back(std::max<Nanoseconds>(0, woken - times.begin - model));
    }
    --running;
  };
  const auto compute_lane = [&running] {
    while (running > 0) {
    }
  };
  const ThreadGroup lanes(
      2 * n, [](int64_t i) { return fmt::format("rank {} of a rehearsal", i / 2); },
      [&](int64_t i) { i % 2 == 0 ? comm_lane(i / 2) : compute_lane(); });
}

std::string link_text(const Plan& plan, bool emulated) {
  if (!emulated) return "memory as the link";
  const LinkSpec& link = plan.spec.cluster.nic;
  return fmt::format("link of {:g} GB/s, {:g} us", link.bytes_per_s / 1e9,
                     static_cast<double>(link.latency_ns) / 1e3);
}

void time_disturbed_again(const Graph& graph, const InStep& result,
                          const RehearsalOptions& options) {
  std::set<std::string> done;
  for (size_t i = 0; i < graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    const auto factor = result.factors.find(step_group(graph, op));
    if (factor == result.factors.end() || factor->second >= kLeastFactor) continue;
    if (is_view(graph, graph.op(op)) || !done.insert(op_signature(graph, op)).second) continue;
    options.time_again(graph, op);
  }
}

double ratio(Nanoseconds a, Nanoseconds b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 1;
}

}  // namespace

PlanSpec rehearsal_spec(const PlanSpec& target, bool emulated) {
  PlanSpec spec = target;
  spec.system = {.name = "rehearsal",
                 .sync = {.bucket_bytes = kBucketBytes, .place = ReducePlace::kAfter},
                 .zero = spec.system.zero};
  spec.work = {};
  // With skewed routing, differences between ranks would be mistaken for jitter. A prediction
  // accounts for the skew by itself.
  if (spec.routing && spec.routing->runs_gate()) {
    spec.routing = nullptr;
  } else if (spec.routing) {
    spec.routing = std::make_shared<const RoutingModel>(workload("balanced", {}, 1));
  }
  spec.element_bytes = sizeof(float);
  if (emulated) spec.cluster.intra = spec.cluster.nic = kRehearsalLink;
  return spec;
}

StepSamples rehearse(const Plan& plan, const RehearsalOptions& options) {
  MOE_CHECK(options.steps >= 1, "rehearsal: {} steps are to be executed, but must be at least 1",
            options.steps);
  const Model& model = *plan.spec.model;
  RunOptions run;
  run.steps = options.steps + 1;
  run.emulate_link = options.emulated;
  run.check_finite = options.check_finite;
  run.policies.gate = options.gate;
  run.data = reference_data(model.vocab, model.batch_per_device, plan.graph.num_ranks, model.seq);
  const Plan still = standing_still(plan);
  const RunResult result = make_cpu_executor()->run(still, run);
  if (result.stopped) throw Interrupted();
  StepSamples samples;
  for (size_t step = 1; step < result.timelines.size(); ++step) {
    for (const auto& [group, ns] : sums_of(plan.graph, result.timelines[step])) {
      samples[group].push_back(ns);
    }
    samples[kPeers].push_back(result.metrics[step].wait_ns);
  }
  if (shares_cores(plan, options)) probe_core(plan.graph.num_ranks, samples);
  return samples;
}

InStep in_step(const Plan& plan, const StepSamples& samples) {
  const auto median_of = [&](const std::string& group) {
    const auto known = samples.find(group);
    MOE_CHECK(known != samples.end(),
              "rehearsal: there are no samples of the group '{}' of ops; the plan's groups "
              "must all have some",
              group);
    return median(known->second);
  };
  std::map<std::string, Nanoseconds> alone, count;
  std::map<std::string, double> bytes;
  std::set<std::string> collectives;
  for (size_t i = 0; i < plan.graph.num_ops(); ++i) {
    const OpId op(static_cast<int64_t>(i));
    if (is_view(plan.graph, plan.graph.op(op))) continue;
    const std::string group = step_group(plan.graph, op);
    alone[group] += plan.spec.cost->op_ns(plan.graph, op);
    ++count[group];
    if (plan.graph.def(op).collective == Collective::kNone) continue;
    collectives.insert(group);
    bytes[group] += payload_bytes(plan.graph, op, plan.spec.work);
  }
  InStep result;
  Nanoseconds all_alone = 0, all_in_step = 0;
  for (const auto& [group, ns] : alone) {
    const Nanoseconds taken = median_of(group);
    if (collectives.contains(group)) {
      result.late[group] = (taken - ns) / count[group];
      result.late_bytes[group] = bytes[group] / static_cast<double>(count[group]);
    } else {
      result.factors[group] = ratio(taken, ns);
      all_alone += ns;
      all_in_step += taken;
    }
  }
  result.overall = ratio(all_in_step, all_alone);
  result.peers = 1 + ratio(median_of(kPeers), std::max<Nanoseconds>(1, all_in_step));
  if (samples.contains(kCore)) {
    result.core_ns = median_of(kCore);
    result.core_late_ns =
        std::max<Nanoseconds>(0, median_of(kCoreLate) - result.late_of(ops::kAllToAll.name, 0));
  }
  return result;
}

InStep rehearsed(const PlanSpec& spec, const RehearsalOptions& options, ProfileCache& cache,
                 const std::string& key_prefix) {
  const std::shared_ptr<const Plan> plan = make_plan(spec);
  const std::string link = link_text(*plan, options.emulated);
  const std::string prefix = fmt::format("{} | in step, plan {}, {}, {} steps | ", key_prefix,
                                         plan->hash, link, options.steps);
  const std::set<std::string> computing = groups_of(plan->graph, false);
  std::set<std::string> groups = groups_of(plan->graph, true);
  groups.insert(computing.begin(), computing.end());
  groups.insert(kPeers);
  if (shares_cores(*plan, options)) groups.insert({kCore, kCoreLate});
  StepSamples samples;
  for (const std::string& group : groups) {
    const Nanoseconds least = computing.contains(group) ? 1 : 0;
    if (const auto known = cache.find(prefix + group, least)) samples[group] = known->ns;
  }
  Nanoseconds took = 0;
  if (samples.size() < groups.size()) {
    const Nanoseconds begin = clock_ns();
    samples = rehearse(*plan, options);
    took = clock_ns() - begin;
    for (const auto& [group, ns] : samples) cache.store(prefix + group, {ns});
  }
  InStep result = in_step(*plan, samples);
  if (took > 0 && options.time_again) {
    time_disturbed_again(plan->graph, result, options);
    result = in_step(*plan, samples);
  }
  result.source =
      fmt::format("{} rehearsed steps of plain expert parallelism, {}", options.steps, link);
  result.took_ns = took;
  return result;
}

}  // namespace moe
