#include "engine/profile/rehearsal.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "engine/base/cores.h"
#include "engine/base/stop.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/cpu/executor.h"
#include "engine/exec/data.h"
#include "engine/exec/results/machine_state.h"
#include "engine/exec/sync.h"
#include "engine/graph/op_def.h"
#include "engine/network/closed_form.h"
#include "engine/ops/defs.h"
#include "engine/profile/machine_reading.h"
#include "engine/routing/workload.h"

namespace moe {
namespace {

// Slow enough that copying the bytes in memory takes less time than the emulated transfer, and fast
// enough for a short rehearsal.
constexpr LinkSpec kRehearsalLink = {.bytes_per_s = 5e8, .latency_ns = 20'000};
constexpr Bytes kBucketBytes = 25 << 20;  // as in the all-reduces of the compiler RAF
// On a shared host the speed of a core changes within a tenth of a second.
constexpr double kReadingSeconds = 0.4;
constexpr const char* kPeers = "peers";
constexpr const char* kStep = "step";
constexpr const char* kCore = "core";
constexpr const char* kCoreLate = "core late";

/// Whether comm lanes take time from the cores of compute lanes: they wake, copy and spin while
/// compute runs. With a pace they do not: an op's time follows from its own thread's CPU time.
bool shares_cores(const Plan& plan, const RehearsalOptions& options) {
  return options.emulated && plan.num_ranks() > 1 && options.pace == 0;
}

/// Returns the step groups (step_group()) of the collectives, or of the other ops.
std::set<std::string> groups_of(const Graph& graph, bool collectives) {
  std::set<std::string> groups;
  for (const OpId op : graph.op_ids()) {
    const bool collective = graph.def(op).collective != Collective::kNone;
    if (collective == collectives && !is_view(graph, graph.op(op))) {
      groups.insert(step_group(graph, op));
    }
  }
  return groups;
}

/// Returns the plan with a learning rate of 0, so that training cannot diverge.
Plan standing_still(const Plan& plan) {
  Plan still = plan;
  for (const OpId id : still.graph.op_ids()) {
    Attrs& attrs = still.graph.op(id).attrs;
    if (attrs.contains("lr")) attrs["lr"] = 0.0;
  }
  for (auto& program : still.programs) {
    program = std::make_shared<const Plan>(standing_still(*program));
  }
  return still;
}

bool is_handoff(const Graph& graph, OpId op) {
  return graph.def(op).collective == Collective::kHandoff;
}

/// Returns, for each step group, the sum of its ops' durations in one step, averaged over the ranks
/// of an op; the duration of a collective is counted from the post of its last member. In a group
/// "peers": the waits of comm lanes for members of collectives, so averaged. Waits for another
/// pipeline rank, most of which follow from the order of turns, are not in it.
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
    // Both ends of a transfer between pipeline ranks have spans.
    sums[step_group(graph, span.op)] += (span.end - begin) / (is_handoff(graph, span.op) ? 2 : 1);
    if (graph.def(span.op).lane != LaneKind::kComm || is_handoff(graph, span.op)) continue;
    sums[kPeers] += span.begin - span.post;
  }
  for (auto& [group, ns] : sums) ns /= graph.num_ranks;
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
      [&](int64_t i) {
        const StayOnCore core(i / 2, n);
        i % 2 == 0 ? comm_lane(i / 2) : compute_lane();
      });
}

std::string link_text(const Plan& plan, const RehearsalOptions& options) {
  if (!options.emulated) return "memory as the link";
  const LinkSpec& link = plan.spec.cluster.nic;
  return fmt::format("link of {:g} GB/s, {:g} us{}", link.bytes_per_s / 1e9,
                     static_cast<double>(link.latency_ns) / 1e3,
                     options.pace > 0 ? fmt::format(", pace {:g}", options.pace) : "");
}

/// Whether ops of the step group were faster inside the steps than alone.
bool faster_in_step(const InStep& result, const std::string& group) {
  const auto late = result.late.find(group);
  if (late != result.late.end()) return late->second < 0;
  const auto factor = result.factors.find(group);
  return factor != result.factors.end() &&
         factor->second < kLeastFactor * std::min(1.0, result.overall);
}

void time_disturbed_again(const Graph& graph, const InStep& result,
                          const RehearsalOptions& options) {
  std::set<std::string> done;
  for (const OpId op : graph.op_ids()) {
    if (!faster_in_step(result, step_group(graph, op))) continue;
    if (is_view(graph, graph.op(op)) || !done.insert(op_signature(graph, op)).second) continue;
    options.time_again(graph, op);
  }
}

/// Returns the mean of the samples between the quartiles. Late steps change it hardly more than the
/// median; where the cores of a shared host have two speeds it does not jump from one to the other.
Nanoseconds middle(std::vector<Nanoseconds> samples) {
  MOE_CHECK(!samples.empty(), "the middle of no samples");
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size(), cut = n < 3 ? 0 : std::max<size_t>(1, n / 4);
  Nanoseconds sum = 0;
  for (size_t i = cut; i < n - cut; ++i) sum += samples[i];
  return sum / static_cast<Nanoseconds>(n - 2 * cut);
}

/// Returns the distance between the quartiles, divided by the median.
double spread_of(std::vector<Nanoseconds> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const auto at = [&](size_t i) { return static_cast<double>(samples[i]); };
  return (at(n - 1 - n / 4) - at(n / 4)) / std::max(1.0, at(n / 2));
}

double ratio(Nanoseconds a, Nanoseconds b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 1;
}

/// Returns the sum over all groups of compute ops of the middles of their samples.
Nanoseconds compute_ns(const Graph& graph, const StepSamples& samples) {
  Nanoseconds sum = 0;
  for (const std::string& group : groups_of(graph, false)) sum += middle(samples.at(group));
  return sum;
}

}  // namespace

PlanSpec rehearsal_spec(const PlanSpec& target, bool emulated) {
  PlanSpec spec = target;
  spec.system = {.name = "rehearsal",
                 .sync = {.bucket_bytes = kBucketBytes, .place = ReducePlace::kAfter}};
  for (const Stage& stage : target.system.stages) {
    if (stage.is_built_in() && builtin_pass(stage.name).rehearsed) {
      spec.system.stages.push_back(stage);
    }
  }
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

RehearsalRun rehearsal_run(const Plan& plan, const RehearsalOptions& options) {
  MOE_CHECK(options.steps >= 1, "rehearsal: {} steps are to be executed, but must be at least 1",
            options.steps);
  const Model& model = *plan.spec.model;
  RunOptions run;
  run.steps = options.steps + 1;
  run.emulate_link = options.emulated;
  run.check_finite = options.check_finite;
  run.pace = options.pace;
  run.policies.gate = options.gate;
  run.record = options.routing;
  run.data = options.data ? options.data : run_data(model, plan.graph.num_ranks).train;
  return {std::make_shared<const Plan>(standing_still(plan)), std::move(run)};
}

/// Executes the rehearsal with the target's learning rate, since a router that learns routes in
/// another way; if the training diverges, with a learning rate of 0.
RunResult executed(const Plan& plan, const RehearsalOptions& options) {
  const RehearsalRun still = rehearsal_run(plan, options);
  const auto run = [&](const Plan& with) {
    RunResult result = make_cpu_executor()->run(with, still.options);
    if (result.stopped) throw Interrupted();
    return result;
  };
  try {
    return run(plan);
  } catch (const Interrupted&) {
    throw;
  } catch (const RunError&) {
    if (options.routing) *options.routing = {};
    return run(*still.plan);
  }
}

StepSamples step_samples(const Graph& graph, const RunResult& result) {
  StepSamples samples;
  for (size_t step = 1; step < result.timelines.size(); ++step) {
    auto sums = sums_of(graph, result.timelines[step]);
    sums.try_emplace(kPeers, 0);
    for (const auto& [group, ns] : sums) samples[group].push_back(ns);
    samples[kStep].push_back(result.metrics[step].makespan_ns);
  }
  return samples;
}

StepSamples rehearse(const Plan& plan, const RehearsalOptions& options) {
  StepSamples samples = step_samples(plan.graph, executed(plan, options));
  if (shares_cores(plan, options)) probe_core(plan.num_ranks(), samples);
  return samples;
}

InStep in_step(const Plan& plan, const StepSamples& samples) {
  const auto samples_of = [&](const std::string& group) -> const std::vector<Nanoseconds>& {
    const auto known = samples.find(group);
    MOE_CHECK(known != samples.end(),
              "rehearsal: there are no samples of the group '{}' of ops; the plan's groups must "
              "all have some",
              group);
    return known->second;
  };
  const auto middle_of = [&](const std::string& group) { return middle(samples_of(group)); };
  std::map<std::string, Nanoseconds> alone, count;
  std::map<std::string, double> bytes;
  std::set<std::string> collectives;
  for (const OpId op : plan.graph.op_ids()) {
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
    const Nanoseconds taken = middle_of(group);
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
  result.peers = 1 + ratio(middle_of(kPeers), std::max<Nanoseconds>(1, all_in_step));
  result.spread = spread_of(samples_of(kStep));
  if (samples.contains(kCore)) {
    result.core_ns = middle_of(kCore);
    result.core_late_ns =
        std::max<Nanoseconds>(0, middle_of(kCoreLate) - result.late_of(ops::kAllToAll.name, 0));
  }
  return result;
}

double slower(const Graph& graph, const StepSamples& now, const StepSamples& then) {
  const auto taken = [&](const StepSamples& samples) {
    return compute_ns(graph, samples) + middle(samples.at(kPeers));
  };
  return ratio(taken(now), taken(then));
}

Rehearsal::Rehearsal(std::shared_ptr<const Plan> plan, RehearsalOptions options)
    : plan_(std::move(plan)), options_(std::move(options)) {}

void Rehearsal::execute(Nanoseconds since) {
  if (began_ > since) return;
  const bool first = began_ == 0;
  RehearsalOptions options = options_;
  if (plan_->spec.routing == nullptr) options.routing = std::make_shared<Trace>();
  const double varies = speed_spread(read_machine(kReadingSeconds));
  const Nanoseconds begin = clock_ns();
  const double others = least_disturbed(options);
  const Nanoseconds took = clock_ns() - begin;
  began_ = begin;
  in_step_ = moe::in_step(*plan_, samples_);
  if (first && options.time_again) {
    time_disturbed_again(plan_->graph, in_step_, options);
    in_step_ = moe::in_step(*plan_, samples_);
  }
  in_step_.source = fmt::format("{} rehearsed steps of plain expert parallelism, {}", options.steps,
                                link_text(*plan_, options));
  in_step_.took_ns = took;
  in_step_.others = others;
  in_step_.speed_spread = varies;
  if (!options.routing || options.routing->steps == 0) return;
  if (options.routing->k != plan_->spec.gate.k) return;  // the number of choices varies
  routing_ = std::make_shared<const RoutingModel>(
      routing_of(std::move(options.routing), "the rehearsed steps", true));
}

/// Rehearses up to kAttempts times, until others take no more than kMostOthers of the cores. Keeps
/// the samples and the routing of the attempt in which they took least; returns their share in it.
double Rehearsal::least_disturbed(const RehearsalOptions& options) {
  constexpr int kAttempts = 3;
  double least = 1;
  for (int attempt = 0; attempt < kAttempts && (attempt == 0 || least > kMostOthers); ++attempt) {
    RehearsalOptions anew = options;
    if (options.routing) anew.routing = std::make_shared<Trace>();
    const OthersWatch watch;
    StepSamples samples = rehearse(*plan_, anew);
    const double others = watch.share();
    if (attempt > 0 && others >= least) continue;
    least = others;
    samples_ = std::move(samples);
    if (options.routing) *options.routing = std::move(*anew.routing);
  }
  return least;
}

RehearsalRun Rehearsal::beside(int64_t steps) const {
  RehearsalRun run = rehearsal_run(*plan_, options_);
  run.options.steps = steps;
  return run;
}

SpeedBeside Rehearsal::speed(const RunResult& beside) {
  const Graph& graph = plan_->graph;
  StepSamples now = step_samples(graph, beside);
  for (const char* const core : {kCore, kCoreLate}) {  // which only the rehearsal measures
    if (samples_.contains(core)) now[core] = samples_.at(core);
  }
  beside_ = moe::in_step(*plan_, now);
  const std::vector<Nanoseconds>& steps = now.at("step");
  const Nanoseconds step = middle(steps);
  SpeedBeside speed{.slower = slower(graph, now, samples_),
                    .compute_share = std::min(1.0, ratio(compute_ns(graph, now), step))};
  for (const Nanoseconds ns : steps) speed.steps.push_back(ratio(ns, step));
  return speed;
}

}  // namespace moe
