// Ranks on a device, one per process: the process groups' side of the device table by the
// processes' own communicators, on a device that runs late, on the host.
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "engine/base/errors.h"
#include "engine/exec/device/executor.h"
#include "engine/ops/ops.h"
#include "engine/profile/calibrate_device.h"
#include "tests/exec/device/lazy_device.h"
#include "tests/exec/support.h"
#include "tests/job/programs/ranks.h"

namespace moe::test {
namespace {

// Pieces for a peer that one exchange may have here, the same on all members.
constexpr int64_t kMostPieces = 64;

struct FakeProcessGroup {
  Communicator* comm;
  bool whole;
};

Processes* job = nullptr;
int64_t lanes_used = 0;
int64_t still_there = 0;
kernels::ProcessGroupSettings joined_with;  // the last process group

FakeProcessGroup& state(kernels::ProcessGroup c) {
  return *static_cast<FakeProcessGroup*>(c);
}

kernels::ProcessGroup made(Communicator* comm, bool whole) {
  ++still_there;
  return new FakeProcessGroup{comm, whole};
}

kernels::ProcessGroup join(const void*, int64_t, int64_t, double timeout_s,
                           const kernels::ProcessGroupSettings& settings) {
  joined_with = settings;
  const int64_t lane = lanes_used++;
  return made(job->lanes(lane + 1, timeout_s)[static_cast<size_t>(lane)], true);
}

/// Members of one color are a group of even strides.
kernels::ProcessGroup split(kernels::ProcessGroup all, int64_t color, double) {
  const auto colors = job->gather("colors", std::to_string(color));
  std::string text;
  for (const std::string& c : colors) text += c + " ";
  text = job->broadcast("colors", text);
  std::vector<int64_t> members;
  size_t at = 0;
  for (int64_t rank = 0; rank < job->size(); ++rank) {
    const size_t end = text.find(' ', at);
    if (std::stoll(text.substr(at, end - at)) == color) members.push_back(rank);
    at = end + 1;
  }
  const Group group = {static_cast<int64_t>(members.size()),
                       members.size() > 1 ? members[1] - members[0] : 1};
  return made(&state(all).comm->group(group), false);
}

/// Offsets are addresses.
void exchange(kernels::ProcessGroup process_group, const kernels::Message* sends, int64_t num_sends,
              const kernels::Message* receives, int64_t num_receives, kernels::Stream stream) {
  Communicator* const comm = state(process_group).comm;
  Pieces pieces;
  pieces.groups = kMostPieces;
  const auto lay_out = [&](const kernels::Message* messages, int64_t n, std::vector<Bytes>& offset,
                           std::vector<Bytes>& bytes) {
    offset.assign(static_cast<size_t>(comm->size() * kMostPieces), 0);
    bytes = offset;
    std::map<int32_t, int64_t> of_peer;
    for (int64_t i = 0; i < n; ++i) {
      const auto piece =
          static_cast<size_t>(messages[i].peer * kMostPieces + of_peer[messages[i].peer]++);
      offset.at(piece) = reinterpret_cast<Bytes>(messages[i].data);
      bytes.at(piece) = messages[i].bytes;
    }
  };
  lay_out(sends, num_sends, pieces.send_offset, pieces.send_bytes);
  lay_out(receives, num_receives, pieces.receive_offset, pieces.receive_bytes);
  lazy_give(stream, [=] { comm->all_to_all("exchange", nullptr, nullptr, pieces); });
}

void all_reduce(kernels::ProcessGroup process_group, const float* in, float* out, int64_t n,
                kernels::Stream stream) {
  Communicator* const comm = state(process_group).comm;
  lazy_give(stream, [=] { comm->all_reduce("sum", in, out, n); });
}

void destroy(kernels::ProcessGroup process_group) {
  delete &state(process_group);
  --still_there;
}

const kernels::ProcessGroupTable kProcessGroups = {
    .make_id = [](void*) { return true; },
    .join = join,
    .split = split,
    .exchange = exchange,
    .all_reduce = all_reduce,
    .trouble = [](kernels::ProcessGroup) { return ""; },
    .abort = destroy,
    .destroy = destroy};

/// The lanes of rank 0 on all ranks, which hold their ops in the order in which they began.
void expect_one_order(Processes& processes, const Plan& plan, const RunResult& result) {
  for (const Arbiter& lanes : arbiters(plan.schedule)) {
    for (const LaneId lane : lanes) {
      for (const auto& rank : result.executed) {
        expect(processes, rank[lane.index()] == result.executed[0][lane.index()], "one order");
      }
    }
  }
}

RunResult run_device(Processes& processes, const Plan& plan, RunOptions options) {
  kernels::DeviceTable device = lazy_device();
  device.process_groups = &kProcessGroups;
  // Blocking calls stand for what is queued on a GPU: all ranks must run them in one order.
  lazy_start(LazyOrder::kAsGiven);
  job = &processes;
  lanes_used = 0;
  options.processes = &processes;
  options.device.nccl.channels = 4;
  options.device.nccl.channels_per_net_peer = 2;
  joined_with = {};
  RunResult result = make_device_executor(device)->run(plan, options);
  expect(processes, joined_with.channels == 4 && joined_with.channels_per_net_peer == 2,
         "the run's channels");
  return result;
}

void check_plan(Processes& processes, const std::shared_ptr<const Plan>& plan) {
  RunOptions options = options_of(*plan, 4);
  options.timeout_s = 20;
  options.train.keep_grad_norms = true;
  options.infer.keep_predictions = plan->spec.inference;
  options.test.poison = true;
  const RunResult expected = processes.is_root() ? run_cpu(*plan, options) : RunResult();
  const RunResult result = run_device(processes, *plan, options);
  expect(processes, lazy_stats().handles == 0 && still_there == 0, "nothing is left");
  if (!processes.is_root()) return;
  const SameRun same = same_run(expected, result);
  expect(processes, result.losses.size() == 4, "losses");
  expect(processes, bool(same), "the same run: " + same.differences);
  expect_one_order(processes, *plan, result);
  if (!arbiters(plan->schedule).empty()) return;
  expect(processes, result.executed == expected.executed, "the same ops on all lanes");
}

void check_device(Processes& processes, PlanSpec spec, std::vector<Stage> stages) {
  spec.system.stages = std::move(stages);
  check_plan(processes, make_plan(spec));
}

void device(Processes& processes) {
  const int64_t n = processes.size();
  const auto pass = [](const char* name) { return Stage{.name = name}; };
  const PlanSpec plain = spec_of(small_model("switch", 2), n);
  check_device(processes, plain, {});
  check_device(processes, plain, {pass("irregular_a2a"), pass("used_rows"), pass("dw_schedule")});
  check_device(processes, plain, {pass("prophet"), pass("prophet_schedule")});
  Gpt2 grouped = small_model("top2", 2);
  grouped.ep = n / 2;
  PlanSpec two_lanes = spec_of(grouped, n);
  two_lanes.system.sync.lane = ReduceLane::kOwn;
  check_device(processes, two_lanes, {});
  PlanSpec serving = plain;
  serving.inference = true;
  check_device(processes, serving,
               {{.name = "lina_inference", .options = {{"estimation", false}}}});
}

/// A collective of so many floats per rank.
Graph collective(std::string_view kind, int64_t n, int64_t part) {
  Graph graph(op_table());
  graph.num_ranks = n;
  const TensorId x = graph.add_tensor({"x", {n, part, 1}, DType::kF32, TensorKind::kInput});
  graph.add_op(kind, std::string(kind), {x},
               kind == "all_to_all" ? Attrs{{"to", "expert"}} : Attrs{});
  return graph;
}

void calibrate_device(Processes& processes) {
  const int64_t n = processes.size();
  kernels::DeviceTable device = lazy_without_copying();
  device.process_groups = &kProcessGroups;
  lazy_start(LazyOrder::kAsGiven);
  job = &processes;
  lanes_used = 0;
  joined_with = {};
  {
    const CalibrateOptions options = calibrated_among(
        processes, device, {.profile = {.min_time_s = 0, .min_samples = 3}}, {.channels = 2});
    expect(processes, options.num_ranks == n, "as many ranks as processes");
    expect(processes, joined_with.channels == 2, "the channels that were asked for");
    const std::string machine = options.machine(options.profile);
    expect(processes, machine.find("lazy; ") == 0, "the device's name");
    expect(processes,
           machine.find(fmt::format("one rank in each of {} processes", n)) != std::string::npos,
           "how many processes");
    std::string all;
    const auto time = [&](const Graph& graph, OpId op) {
      const std::vector<Nanoseconds> samples = options.time_op(graph, op, options.profile).ns;
      for (const Nanoseconds ns : samples) all += fmt::format("{} ", ns);
      expect(processes, !samples.empty() && *std::min_element(samples.begin(), samples.end()) > 0,
             "times");
      return samples.size();
    };
    for (const char* kind : {"all_to_all", "all_reduce"}) {
      for (const int64_t part : {1, 1000}) {
        expect(processes, time(collective(kind, n, part), OpId(0)) == 20, "20 rounds");
      }
    }
    const auto plan = make_plan(spec_of(small_model("switch", 2), n));
    expect(processes, time(plan->graph, plan->graph.find_op("b0.attn.qkv")) >= 3, "compute");
    const OverlapTable beside = options.overlap(plan->graph, options.profile);
    expect(processes, beside.by_blocks.size() == 5, "compute beside transfers");
    all += beside.describe();
    const std::string same = processes.broadcast("samples", all);
    expect(processes, same == all, "the same numbers on all ranks");
  }
  expect(processes, lazy_stats().handles == 0 && still_there == 0, "nothing is left");
}

/// Any disciplines of lanes that share one network: all transfers are turns of one arbiter.
void device_turns(Processes& processes) {
  const int64_t n = processes.size();
  PlanSpec lina = spec_of(small_model("switch", 2), n);
  lina.system.sync.lane = ReduceLane::kOwn;
  lina.system.sync.bucket_bytes = 0;
  check_device(processes, lina,
               {{.name = "priority"}, {.name = "chunked", .options = {{"bytes", 1024.0}}}});
  const PlanSpec spec = spec_of(small_model("switch", 2), n);
  int64_t made = 0;
  // More processes than cores take turns to look, and so take long.
  for (uint64_t seed = 1; seed <= (n > 2 ? 1 : 4); ++seed) {
    const Graph graph = seed % 2 == 0 ? step_graph(spec) : ragged_step_graph(spec);
    Rng rng(seed);
    Schedule schedule = random_discipline(spec, graph, rng);
    schedule.exclusive.clear();
    std::vector<LaneId> shared;
    for (size_t l = 1; l < schedule.lanes.size(); ++l) shared.emplace_back(static_cast<int64_t>(l));
    if (shared.size() > 1) schedule.exclusive = {{shared, "test"}};
    std::shared_ptr<const Plan> plan;
    try {
      plan = make_plan_of(spec, graph, schedule);
    } catch (const RunError&) {
      continue;  // a hold that would hold back what it waits for
    }
    made += !arbiters(plan->schedule).empty();
    check_plan(processes, plan);
  }
  expect(processes, made > 1 || n > 2, "lanes that choose");
}

/// A lane for all-reduces in order beside one that picks.
void device_other_lane(Processes& processes) {
  PlanSpec spec = spec_of(small_model("switch", 2), processes.size());
  spec.system.sync.lane = ReduceLane::kOwn;
  Schedule schedule = make_plan(spec)->schedule;
  schedule.set_pick(LaneId(1), Pick::kPriority, "mine");
  const auto plan = make_plan_of(spec, make_plan(spec)->graph, schedule);
  run_device(processes, *plan, options_of(*plan, 1));
}

/// Rank 1's host is late with what comes before a transfer.
void device_never_posts(Processes& processes) {
  const PlanSpec spec = spec_of(small_model("switch", 2), processes.size());
  const Graph graph = step_graph(spec);
  Schedule schedule = default_schedule(graph);
  schedule.set_pick(LaneId(1), Pick::kPriority, "mine");
  const auto plan = make_plan_of(spec, graph, schedule);
  RunOptions options = options_of(*plan, 3);
  options.timeout_s = 0.7;
  options.policies.gate = [](int64_t rank) {
    Gate gate = builtin_gate("switch");
    gate.route = [rank, route = gate.route](const GateInput& in, RoutingBuilder& out) {
      if (rank == 1 && in.step == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
      route(in, out);
    };
    return gate;
  };
  run_device(processes, *plan, options);
}

}  // namespace

Cases device_cases() {
  return {{"device", device},
          {"calibrate_device", calibrate_device},
          {"device_turns", device_turns},
          {"device_other_lane", device_other_lane},
          {"device_never_posts", device_never_posts}};
}

}  // namespace moe::test
