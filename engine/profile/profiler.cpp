#include "engine/profile/profiler.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <limits>

#include "engine/base/cores.h"
#include "engine/base/stop.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/cost/profile_cache.h"
#include "engine/exec/cpu/activation_exchange.h"
#include "engine/exec/cpu/slice_exchange.h"
#include "engine/exec/finite.h"
#include "engine/exec/results/machine_state.h"
#include "engine/exec/sync.h"
#include "engine/graph/op_def.h"
#include "engine/ops/kernel_call.h"
#include "engine/ops/rules.h"
#include "engine/profile/call_sampler.h"
#include "engine/profile/operands.h"
#include "kernels/cpu/blas_buffers.h"

namespace moe {
namespace {

/// A small GEMM that runs before each call. In a step, an op runs after other ops: at the clock
/// rate to which wide vector instructions lower the core, and with caches and branch history of
/// other code.
class WarmUpGemm {
 public:
  void run() {
    kernels::fast_table().gemm(false, true, kSize, kSize, kSize, 1.0f, a_.data(), kSize, b_.data(),
                               kSize, 0.0f, c_.data(), kSize, nullptr);
  }

 private:
  static constexpr int64_t kSize = 128;
  std::vector<float> a_ = std::vector<float>(kSize * kSize, 0.5f), b_ = a_, c_ = a_;
};

/// Calls of one compute op on one thread.
class KernelCalls {
 public:
  KernelCalls(const Graph& graph, OpId op, const ProfileOptions& options)
      : graph_(graph),
        op_(graph.op(op)),
        run_(graph.def(op).run.f32),
        paced_(options.paced),
        operands_(graph, op, options.work) {
    if (graph.def(op).moe == MoeOp::kGate) gate_ = timed_gate(op_);
    if (!options.checked) return;
    for (const TensorId t : finite_operands(graph, op_)) {
      if (graph.tensor(t).dtype == DType::kF64) continue;  // the loss: a single number
      const bool is_output = std::count(op_.outputs.begin(), op_.outputs.end(), t) > 0;
      const auto& list = is_output ? op_.outputs : op_.inputs;
      const auto index = static_cast<size_t>(std::find(list.begin(), list.end(), t) - list.begin());
      finite_checks_.push_back({is_output, index, num_elements(graph.tensor(t).shape)});
    }
  }

  TimedCall call() {
    operands_.next();
    const RankContext context = {.num_ranks = graph_.num_ranks, .gate = &gate_};
    warm_up_.run();
    const Nanoseconds cpu = thread_cpu_ns(), begin = clock_ns();
    run_({graph_, op_, operands_.inputs(), operands_.outputs(), operands_.scratch(),
          kernels::fast_table(), context});
    for (const FiniteCheck& check : finite_checks_) {
      const auto operands = check.is_output ? operands_.outputs() : operands_.inputs();
      kernels::fast_table().first_nonfinite(static_cast<const float*>(operands[check.index]),
                                            check.n);
    }
    const Nanoseconds ns = clock_ns() - begin, of_core = thread_cpu_ns() - cpu;
    if (paced_) return {of_core};
    return {ns, lost_core(ns, of_core)};
  }

 private:
  const Graph& graph_;
  const Op& op_;
  void (*run_)(const KernelCall<float>&);
  const bool paced_;  // ProfileOptions::paced
  /// An operand that the executor checks for numbers that are not finite.
  struct FiniteCheck {
    bool is_output;
    size_t index;
    int64_t n;
  };
  std::vector<FiniteCheck> finite_checks_;
  ProfileOperands operands_;
  WarmUpGemm warm_up_;
  Gate gate_;
};

/// One rank's calls of one collective. Times do not include the wait for other ranks.
class CollectiveCalls {
 public:
  CollectiveCalls(const Graph& graph, OpId op, const WorkContext& work, Communicator& all)
      : op_(graph.op(op)),
        all_(all),
        comm_(all.group(group_of(graph, op_))),
        operands_(graph, op, work) {
    for (const TensorId t : op_.inputs) {
      elements_.push_back(t.valid() ? stored_elements(graph.tensor(t)) : 0);
    }
    const Collective collective = graph.def(op).collective;
    reduces_ = collective == Collective::kAllReduce;
    if (reduces_) return;
    const bool rows = carries(graph, op, Payload::kActivations);
    if (is_half(collective) || rows) {
      const CollectiveMemory memory = {[this](TensorId t) { return at(t); }, {}, sizeof(float)};
      lay_out_ = [=, this, &graph]() -> std::function<CommTimes()> {
        void* const scratch = operands_.scratch();
        if (rows) {
          return [this, made = ActivationExchange<float>(graph, op, memory, scratch)]() mutable {
            return made.call(all_, op_.name);
          };
        }
        return
            [this, made = SliceExchange<float>(graph, op, memory, scratch, all_.rank())]() mutable {
              return made.call(all_, op_.name, made.elements(0, 1));
            };
      };
      return;
    }
    exchange_ = even_exchange(graph, op, work, comm_.size());
  }

  TimedCall call() {
    operands_.next();
    // All groups begin a call together, so that they make the same number of calls.
    if (&comm_ != &all_) all_.barrier(op_.name);
    const std::function<CommTimes()> half = lay_out_ ? lay_out_() : nullptr;
    const Nanoseconds begin = clock_ns();
    const CommTimes times = half ? half() : reduces_ ? reduce() : exchange();
    return {(clock_ns() - begin) - (times.begin - times.post)};
  }

 private:
  /// The address of an input or output in the current call.
  void* at(TensorId tensor) const {
    const auto input = std::find(op_.inputs.begin(), op_.inputs.end(), tensor);
    if (input != op_.inputs.end()) {
      return operands_.inputs()[static_cast<size_t>(input - op_.inputs.begin())];
    }
    const auto output = std::find(op_.outputs.begin(), op_.outputs.end(), tensor);
    return operands_.outputs()[static_cast<size_t>(output - op_.outputs.begin())];
  }

  CommTimes exchange() {
    auto* receive = static_cast<std::byte*>(operands_.outputs()[0]);
    const CommTimes times =
        comm_.all_to_all(op_.name, operands_.inputs()[0], receive, exchange_.pieces);
    std::memset(receive + exchange_.used, 0, static_cast<size_t>(exchange_.unused));
    return times;
  }

  /// Runs the all-reduce of the op; several tensors are sent as one message, as the executor does.
  CommTimes reduce() {
    const auto in = [&](size_t i) { return static_cast<float*>(operands_.inputs()[i]); };
    const auto out = [&](size_t i) { return static_cast<float*>(operands_.outputs()[i]); };
    if (elements_.size() == 1) return comm_.all_reduce(op_.name, in(0), out(0), elements_[0]);
    auto* const packed = static_cast<float*>(operands_.scratch());
    float* to = packed;
    for (size_t i = 0; i < elements_.size(); ++i) to = std::copy_n(in(i), elements_[i], to);
    const CommTimes times = comm_.all_reduce(op_.name, packed, packed, to - packed);
    const float* from = packed;
    for (size_t i = 0; i < elements_.size(); from += elements_[i++]) {
      std::copy_n(from, elements_[i], out(i));
    }
    return times;
  }

  const Op& op_;
  Communicator &all_, &comm_;
  ProfileOperands operands_;
  bool reduces_ = false;
  /// Of a reduce-scatter or all-gather: lays it out for the operands of the current call, and
  /// returns the call; else null.
  std::function<std::function<CommTimes()>()> lay_out_;
  std::vector<int64_t> elements_;  // indexed by input
  EvenExchange exchange_;
};

CallSampler sampler_of(const ProfileOptions& options) {
  return {clock_ns(), static_cast<Nanoseconds>(options.min_time_s * 1e9), options.min_samples};
}

/// Runs body(t) on threads t = 1 .. num_threads - 1, in addition to the calling thread. The
/// returned group joins the threads at the end of its scope.
ThreadGroup other_ranks(int64_t num_threads, const std::function<void(int64_t)>& body) {
  return {num_threads - 1, [](int64_t i) { return fmt::format("rank {} of a measurement", i + 1); },
          [body](int64_t i) { body(i + 1); }};
}

Samples profile_kernel(const Graph& graph, OpId op, const ProfileOptions& options) {
  if (!kernels::reserve_blas_buffers(options.ranks_beside)) {
    throw run_error(
        "not enough memory to measure op '{}' on {} ranks: each rank needs 128 MiB of address "
        "space (see ulimit -v)",
        graph.op(op).name, options.ranks_beside);
  }
  // Constructed and called once here, so that errors of the op are thrown here and not on a thread.
  std::deque<KernelCalls> calls;
  for (int64_t t = 0; t < options.ranks_beside; ++t) calls.emplace_back(graph, op, options).call();
  std::vector<RankSamples> all(calls.size());
  std::atomic<bool> stop{false};
  std::barrier<> together(options.ranks_beside);
  const auto reference = [&] { return options.at_reference ? reference_ns() : kReferenceNs; };
  const auto measure = [&](size_t rank) {
    const StayOnCore core(static_cast<int64_t>(rank), options.ranks_beside);
    together.arrive_and_wait();
    const Nanoseconds before = reference();
    together.arrive_and_wait();
    CallSampler sampler = sampler_of(options);
    while (!stop) {
      const TimedCall call = calls[rank].call();
      sampler.add(call, clock_ns());
      if (rank == 0 && (sampler.done(clock_ns()) || stop_requested())) stop = true;
    }
    together.arrive_and_wait();
    all[rank] = {sampler.take(), (before + reference()) / 2};
  };
  {
    const ThreadGroup beside = other_ranks(
        options.ranks_beside, [&](int64_t rank) { measure(static_cast<size_t>(rank)); });
    measure(0);
  }
  check_stop();
  return at_reference_speed(std::move(all));
}

Samples profile_collective(const Graph& graph, OpId op, const ProfileOptions& options) {
  InProcessWorld world(options.ranks_beside, 1, {});
  std::deque<CollectiveCalls> calls;
  for (int64_t r = 0; r < options.ranks_beside; ++r)
    calls.emplace_back(graph, op, options.work, world.comm(r, 0));
  // Rank 0 sets this number before it takes part in the last round; other ranks read it after each
  // round.
  std::atomic<int64_t> last_round{std::numeric_limits<int64_t>::max()};
  std::vector<std::string> failed(calls.size());  // why a rank failed; "" when it did not
  const auto take_part = [&](int64_t rank) {
    const auto r = static_cast<size_t>(rank);
    try {
      for (int64_t round = 0; round <= last_round; ++round) calls[r].call();
    } catch (const RunError& error) {
      failed[r] = error.what();
    }
  };
  CallSampler sampler = sampler_of(options);
  {
    const ThreadGroup beside = other_ranks(options.ranks_beside, take_part);
    for (int64_t round = 0; round <= last_round; ++round) {
      if (sampler.done(clock_ns()) || stop_requested()) last_round = round;
      const TimedCall call = calls[0].call();
      sampler.add(call, clock_ns());
    }
  }
  check_stop();
  for (const std::string& why : failed) {
    if (!why.empty()) throw RunError(why);
  }
  return sampler.take();
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace

Samples at_reference_speed(std::vector<RankSamples> all) {
  double mean = 0;
  for (const RankSamples& rank : all) {
    const std::vector<Nanoseconds>& ns =
        rank.samples.ns.empty() ? all[0].samples.ns : rank.samples.ns;
    mean += static_cast<double>(median(ns)) * static_cast<double>(kReferenceNs) /
            static_cast<double>(std::max<Nanoseconds>(1, rank.reference_ns)) /
            static_cast<double>(all.size());
  }
  Samples samples = std::move(all[0].samples);
  const double scale = mean / static_cast<double>(std::max<Nanoseconds>(1, median(samples.ns)));
  for (Nanoseconds& ns : samples.ns) {
    ns = std::max<Nanoseconds>(1, std::llround(static_cast<double>(ns) * scale));
  }
  return samples;
}

EvenExchange even_exchange(const Graph& graph, OpId id, const WorkContext& work, int64_t size,
                           Bytes element_bytes) {
  const Op& op = graph.op(id);
  const Bytes in = tensor_bytes(graph.tensor(op.inputs[0]), element_bytes);
  const Bytes out = tensor_bytes(graph.tensor(op.outputs[0]), element_bytes);
  // Of input and output, one may consist of slots, more than there are rows to move, so the smaller
  // one counts. An op that gathers sends its whole input to each member and fills its whole output.
  const bool gathers = graph.def(op).payload == Payload::kLoads;
  const Bytes all = gathers ? out : std::min(in, out);
  const bool irregular = op.rows.irregular;
  const double slot_occupancy = irregular ? work.slot_occupancy * ops::share_of(op) : 1.0;
  // Of packed rows, `all` is the room for the rows in use, and `slots` that for all slots.
  const bool packed = graph.tensor(op.inputs[0]).stored_rows > 0;
  const auto slots_of = [&](TensorId t) {
    const Tensor& tensor = graph.tensor(t);
    return num_elements(tensor.shape) * dtype_bytes(tensor.dtype, element_bytes);
  };
  const Bytes slots = packed ? std::min(slots_of(op.inputs[0]), slots_of(op.outputs[0])) : all;
  EvenExchange exchange;
  exchange.used =
      std::min(static_cast<Bytes>(slot_occupancy * static_cast<double>(slots)), all) / size * size;
  const bool clears = !packed && !op.rows.share && !op.rows.loose;
  exchange.unused = clears ? all - exchange.used : 0;
  const auto n = static_cast<size_t>(size);
  Pieces& pieces = exchange.pieces;
  pieces.send_bytes.assign(n, exchange.used / size);
  for (size_t p = 0; p < n; ++p) {
    pieces.receive_offset.push_back(static_cast<Bytes>(p) * pieces.send_bytes[0]);
  }
  pieces.receive_bytes = pieces.send_bytes;
  pieces.send_offset = gathers ? std::vector<Bytes>(n) : pieces.receive_offset;
  return exchange;
}

Samples profile_op(const Graph& graph, OpId op, const ProfileOptions& options) {
  const OpDef& def = graph.def(op);
  MOE_CHECK(
      options.ranks_beside > 0 && options.min_samples > 0,
      "op '{}' is to be profiled on {} ranks with at least {} samples; both must be at least 1",
      graph.op(op).name, options.ranks_beside, options.min_samples);
  MOE_CHECK(!is_view(graph, graph.op(op)),
            "op '{}' of kind {} is a view, which takes no time; it must not be profiled",
            graph.op(op).name, def.name);
  // The placement of each step decides how many experts move; the link model computes their time,
  // and that of transfers between pipeline ranks.
  const bool of_link = options.paced && def.collective != Collective::kNone;
  if (def.collective == Collective::kExperts || def.collective == Collective::kHandoff || of_link) {
    return {std::vector<Nanoseconds>(static_cast<size_t>(options.min_samples))};
  }
  if (def.collective != Collective::kNone) return profile_collective(graph, op, options);
  if (def.run.f32 == nullptr) {
    throw user_error("op '{}': the op kind {} has no CPU kernel, so it cannot be timed",
                     graph.op(op).name, def.name);
  }
  return profile_kernel(graph, op, options);
}

Samples profile_handoff(int64_t ranks_beside) {
  constexpr uint32_t kRounds = 100, kWarmUpRounds = 10;
  constexpr Nanoseconds kCompute = 200'000, kTransfer = 500'000;
  const OpId computed(0), moved(1);
  std::deque<Progress> progress;
  for (int64_t r = 0; r < ranks_beside; ++r) progress.emplace_back(2);
  std::vector<Nanoseconds> samples[2];  // on rank 0: from compute to comm, from comm to compute
  const auto add = [&](size_t direction, int64_t rank, uint32_t round, Nanoseconds end) {
    if (rank == 0 && round > kWarmUpRounds) samples[direction].push_back(clock_ns() - end);
  };
  const auto compute = [] {
    const Nanoseconds until = clock_ns() + kCompute;
    while (clock_ns() < until) {
    }
  };
  const auto compute_lane = [&](int64_t rank) {
    Progress& own = progress[static_cast<size_t>(rank)];
    for (uint32_t round = 1; round <= kRounds; ++round) {
      compute();
      own.finish(computed, round, clock_ns(), true);
      compute();
      const Nanoseconds end = own.wait(moved, round);
      add(1, rank, round, end);
    }
  };
  const auto comm_lane = [&](int64_t rank) {
    wake_promptly();
    Progress& own = progress[static_cast<size_t>(rank)];
    for (uint32_t round = 1; round <= kRounds; ++round) {
      const Nanoseconds end = own.wait(computed, round);
      add(0, rank, round, end);
      wait_until_ns(clock_ns() + kTransfer);
      own.finish(moved, round, clock_ns(), true);
    }
  };
  {
    const ThreadGroup lanes = other_ranks(2 * ranks_beside + 1, [&](int64_t thread) {
      const int64_t rank = (thread - 1) / 2;
      const StayOnCore core(rank, ranks_beside);
      thread % 2 == 1 ? compute_lane(rank) : comm_lane(rank);
    });
  }
  samples[0].insert(samples[0].end(), samples[1].begin(), samples[1].end());
  return {std::move(samples[0])};
}

Gate timed_gate(const Op& op) {
  const std::string name = attr_string(op, "gate");
  for (const Gate& gate : builtin_gates()) {
    if (gate.name == name) return gate;
  }
  return builtin_gate("top_k");
}

std::string profile_key(const ProfileOptions& options) {
  return fmt::format("{}; {}; threads=1 beside={}{}{}{}", cpu_model(), kernels::kernel_set(),
                     options.ranks_beside, options.checked ? " checked" : "",
                     options.paced ? " paced" : "",
                     options.at_reference ? " at reference speed" : "");
}

}  // namespace moe
