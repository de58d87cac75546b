#include "engine/exec/cpu/rank.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "engine/base/errors.h"
#include "engine/base/threads.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/exec/finite.h"
#include "engine/exec/policies.h"
#include "engine/exec/results/expert_offload.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

template <class T>
constexpr Bytes kElementBytes = static_cast<Bytes>(sizeof(T));

// A lane that is held looks this often whether the run has failed.
constexpr Nanoseconds kLongestSleep = 100'000'000;

const kernels::KernelTable<float>& table_of(float) {
  return kernels::fast_table();
}
const kernels::KernelTable<double>& table_of(double) {
  return kernels::reference_table();
}

auto kernel_of(const OpDef& def, float) {
  return def.run.f32;
}
auto kernel_of(const OpDef& def, double) {
  return def.run.f64;
}

}  // namespace

template <class T>
Rank<T>::Rank(const Plan& plan, const RunOptions& options, const PersistentTensors& persistents,
              const std::vector<LaneArbiter*>& arbiters, int64_t rank)
    : plan_(plan),
      options_(options),
      persistents_(persistents),
      arbiters_(arbiters),
      rank_(rank),
      number_(plan.pipeline_rank * plan.graph.num_ranks + rank),
      table_(table_of(T())),
      buffers_(plan, kElementBytes<T>),
      progress_(plan.graph.num_ops()),
      inputs_(plan.graph, *plan.spec.model) {
  report_.gradients.resize(persistents.parameters.size());
  if (options.test.poison) poison_ = std::make_unique<Poison>(plan, buffers_, kElementBytes<T>);
  lanes_.resize(plan.orders.lanes.size());
  for (size_t l = 0; l < lanes_.size(); ++l) {
    for (const OpId op : plan.orders.lanes[l]) {
      lanes_[l].launches.push_back(make_launch(LaneId(static_cast<int64_t>(l)), op));
    }
    lanes_[l].spans.reserve(lanes_[l].launches.size());
  }
  add_postings();
  std::vector<bool> awaited(plan.graph.num_ops());
  for (const Lane& lane : lanes_) {
    for (const Launch& launch : lane.launches) {
      for (const OpId op : launch.waits) awaited[op.index()] = true;
    }
  }
  for (Lane& lane : lanes_) {
    for (Launch& launch : lane.launches) launch.awaited = awaited[launch.op.index()];
  }
}

template <class T>
typename Rank<T>::Launch Rank<T>::make_launch(LaneId lane, OpId id) {
  const Graph& graph = plan_.graph;
  const Op& op = graph.op(id);
  const OpDef& def = graph.def(id);
  Launch launch;
  launch.op = id;
  launch.scratch = buffers_.scratch(lane);
  launch.waits = plan_.waits[id.index()];
  launch.forward = op.phase == Phase::kForward;
  launch.num_chunks = num_chunks(graph, plan_.schedule, id);
  for (const TensorId t : op.inputs) launch.inputs.push_back(buffers_.at(t));
  for (const TensorId t : op.outputs) launch.outputs.push_back(buffers_.at(t));
  if (def.collective != Collective::kNone) {
    launch.collective =
        std::make_unique<CollectiveOp<T>>(plan_, id, buffers_, launch.scratch, rank_);
  } else {
    launch.kernel = kernel_of(def, T());
    if (launch.kernel == nullptr)
      throw user_error("op {}: the op kind {} has no CPU kernel for floats of {} bytes", op.name,
                       def.name, sizeof(T));
  }
  if (def.loss != Loss::kNone) {
    launch.loss = static_cast<const double*>(buffers_.at(op.outputs[0]));
  }
  launch.predicts = options_.infer.keep_predictions && def.loss == Loss::kModel;
  launch.offloads = records_offload(plan_, id);
  add_checks(launch);
  add_update(launch);
  return launch;
}

template <class T>
void Rank<T>::add_checks(Launch& launch) {
  const Graph& graph = plan_.graph;
  for (const TensorId t : finite_operands(graph, graph.op(launch.op))) {
    const Tensor& tensor = graph.tensor(t);
    const int64_t n = num_elements(tensor.shape);
    launch.checks.push_back(
        {t, buffers_.at(t), n, tensor_bytes(tensor, kElementBytes<T>) == 8 * n});
  }
}

template <class T>
void Rank<T>::add_update(Launch& launch) {
  launch.update = update_of(plan_.graph, persistents_, launch.op);
  const auto parameter = static_cast<size_t>(launch.update.parameter);
  // It counts once.
  if (launch.update.parameter >= 0 && persistents_.parameters[parameter].copy) launch.update = {};
  if (launch.update.parameter >= 0)
    launch.gradient = static_cast<const T*>(launch.inputs[launch.update.gradient]);
}

template <class T>
void Rank<T>::prepare(bool initialise_parameters) {
  buffers_.touch();
  if (initialise_parameters) {
    initialise<T>(plan_, persistents_, buffers_, rank_, options_);
  }
  const auto gate_of = gates_of(plan_, options_.policies, rank_);
  for (Launch& launch : lanes_[0].launches) {
    const Op& op = plan_.graph.op(launch.op);
    if (plan_.graph.def(op).moe == MoeOp::kPlace) {
      launch.place = policy_of(op, options_.policies, rank_, placed_, report_.policy_failure);
    }
    if (plan_.graph.def(op).moe != MoeOp::kGate) continue;
    launch.gate = gate_of(op);
    launch.record = std::make_unique<GateRecord>(plan_.graph, launch.op, launch.gate.code);
  }
}

template <class T>
void Rank<T>::fill_inputs(const DataSource& data, int64_t step) {
  inputs_.fill(data, step, rank_, [this](TensorId t) { return buffers_.at(t); });
}

template <class T>
void Rank<T>::start_step() {
  if (poison_) poison_->start_step();
  report_.stats = {};
  std::fill(report_.gradients.begin(), report_.gradients.end(), Measure());
  report_.placements.clear();
  report_.offloads.clear();
  report_.router_losses.clear();
  report_.mtp_losses.clear();
  for (Lane& lane : lanes_) {
    lane.spans.clear();
    lane.behind = 0;
  }
  for (Posting& posting : postings_) posting.left = posting.waits.size();
}

template <class T>
void Rank<T>::run_lane(LaneId id, const ProgramRun& spec, Communicator* comm) {
  Lane& lane = lanes_[id.index()];
  const Nanoseconds cpu_before = thread_cpu_ns();
  if (arbiters_[id.index()] != nullptr) {
    take_turns(id, spec, *comm);
  } else {
    walk(id, spec, comm);
  }
  lane.current = OpId();
  lane.cpu_ns = thread_cpu_ns() - cpu_before;
}

template <class T>
void Rank<T>::walk(LaneId id, const ProgramRun& spec, Communicator* comm) {
  Lane& lane = lanes_[id.index()];
  if (id.index() == 0) paced() ? hold_until(spec.start) : wait_until_ns(spec.start);
  // The time at which the lane's previous op, and all ops that the next op waits for, have ended.
  Nanoseconds ready = spec.start;
  for (Launch& launch : lane.launches) {
    lane.current = launch.op;
    for (const OpId op : launch.waits) ready = std::max(ready, progress_.wait(op, spec.epoch));
    if (aborted_.load(std::memory_order_relaxed)) throw Aborted();
    // A forward-only step also goes through the ops that it does not run and marks them as
    // finished, so that the order of its ops is the one that the legality check proved.
    if (spec.train || launch.forward) {
      ready = before(launch, spec, ready);
      if (launch.collective) {
        launch.chunk_post = ready;
        for (int64_t c = 0; c < launch.num_chunks; ++c) {
          ready = transfer(launch, c, id, spec, ready, *comm);
        }
        ready = after(launch, id, spec, ready, launch.chunk_cpu);
        // The last span lasts until the op has finished, including its checks.
        lane.spans.back().end = ready - spec.start;
      } else {
        ready = compute(launch, id, spec, ready);
      }
    }
    finish(launch, spec, ready);
  }
}

template <class T>
void Rank<T>::abort() {
  aborted_.store(true, std::memory_order_relaxed);
  progress_.abort();
}

/// Does what precedes an op: the delay and poison of tests, and reports to arbiters with a hold
/// that starts with the op. Returns the time at which the op is ready.
template <class T>
Nanoseconds Rank<T>::before(const Launch& launch, const ProgramRun& spec, Nanoseconds ready) {
  if (options_.test.delay_ns) {
    const Nanoseconds delay = options_.test.delay_ns(number_, plan_.in_step(launch.op), spec.step);
    if (paced()) {
      ready += std::llround(options_.pace * static_cast<double>(delay));
      hold_until(ready);
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
      ready = clock_ns();
    }
  }
  for (LaneArbiter* arbiter : launch.announces) arbiter->begun(rank_, launch.op);
  // What a rank receives may lie where another tensor is in use until the sender has posted it.
  if (poison_ && !plan_.graph.op(launch.op).inputs.empty()) poison_->before(launch.op);
  return ready;
}

/// Runs a compute op; returns the time at which it ended, including the check for finite numbers.
template <class T>
Nanoseconds Rank<T>::compute(Launch& launch, LaneId lane, const ProgramRun& spec,
                             Nanoseconds ready) {
  const Nanoseconds begin = paced() ? ready : clock_ns(), cpu = cpu_now();
  call_kernel(launch, spec);
  const Nanoseconds end = after(launch, lane, spec, ready, cpu);
  lanes_[lane.index()].spans.push_back({launch.op, static_cast<int32_t>(rank_), lane,
                                        ready - spec.start, begin - spec.start, end - spec.start});
  return end;
}

/// Transfers one chunk; returns the time at which it ended and the next chunk may be posted.
template <class T>
Nanoseconds Rank<T>::transfer(Launch& launch, int64_t chunk, LaneId lane, const ProgramRun& spec,
                              Nanoseconds posted, Communicator& comm) {
  comm.posted_at(posted);
  const CollectiveDone done = launch.collective->call(comm, chunk, launch.num_chunks);
  const Nanoseconds end = options_.emulate_link ? done.times.end : clock_ns();
  // What a rank receives it waits for without a part in it, as in a simulation.
  const bool receives = plan_.graph.op(launch.op).inputs.empty();
  const Nanoseconds post =
      receives ? done.times.begin : std::min(launch.chunk_post, done.times.post);
  lanes_[lane.index()].spans.push_back({launch.op, static_cast<int32_t>(rank_), lane,
                                        post - spec.start, done.times.begin - spec.start,
                                        end - spec.start, done.bytes, static_cast<int32_t>(chunk)});
  launch.chunk_post = end;
  launch.chunk_cpu = done.times.cpu;
  return end;
}

template <class T>
void Rank<T>::call_kernel(Launch& launch, const ProgramRun& spec) {
  const bool measured = spec.measure_gradients && launch.update.parameter >= 0;
  if (measured) {
    add_measure(persistents_, launch.update, buffers_, rank_, launch.gradient,
                report_.gradients[static_cast<size_t>(launch.update.parameter)]);
  }
  const RankContext context = {
      .rank = rank_,
      .num_ranks = plan_.graph.num_ranks,
      .step = spec.step,
      .first_token = inputs_.first_token(plan_.graph.op(launch.op), rank_),
      .gate = launch.record ? &launch.gate : nullptr,
      .place = launch.place ? &launch.place : nullptr,
      .popularity = options_.infer.popularity.get(),
  };
  if (launch.predicts) predict(launch);
  launch.kernel({plan_.graph, plan_.graph.op(launch.op), launch.inputs, launch.outputs,
                 launch.scratch, table_, context});
}

/// Does what follows an op: adds its results to the rank's report and checks that its numbers are
/// finite. Returns the time at which the op ended, by ended().
template <class T>
Nanoseconds Rank<T>::after(Launch& launch, LaneId lane, const ProgramRun& spec, Nanoseconds ready,
                           Nanoseconds cpu_before) {
  if (launch.loss != nullptr) add_loss(plan_.graph, launch.op, *launch.loss, report_);
  if (launch.record && spec.train) {
    launch.record->template capture<T>(plan_.graph, launch.op,
                                       [this](TensorId t) { return buffers_.at(t); });
  }
  if (launch.place && spec.train) {
    report_.placements.push_back(placement_record(plan_.graph, plan_.graph.op(launch.op),
                                                  [this](TensorId t) { return buffers_.at(t); }));
  }
  if (launch.offloads) {
    add_offload(
        plan_, launch.op, [this](TensorId t) { return buffers_.at(t); }, report_.offloads);
  }
  if (options_.check_finite) check(launch);
  if (poison_) poison_->after(launch.op);
  return ended(lanes_[lane.index()], ready, cpu_before);
}

/// Returns the time at which work ended for which the lane was ready at `ready`. `cpu_before`:
/// cpu_now() when the work began, CommTimes::cpu for what follows a transfer. In a paced run the
/// end follows from the work's CPU time, and the lane sleeps until then.
template <class T>
Nanoseconds Rank<T>::ended(Lane& lane, Nanoseconds ready, Nanoseconds cpu_before) {
  if (!paced()) return clock_ns();
  const auto cpu = static_cast<double>(cpu_now() - cpu_before);
  const Nanoseconds end = ready + std::llround(options_.pace * cpu);
  lane.behind = std::max(lane.behind, clock_ns() - end);
  hold_until(end);
  return end;
}

/// Sleeps until the time, or until the run has failed.
template <class T>
void Rank<T>::hold_until(Nanoseconds until) const {
  for (Nanoseconds now = clock_ns(); now < until; now = clock_ns()) {
    if (aborted_.load(std::memory_order_relaxed)) return;
    sleep_until_ns(std::min(until, now + kLongestSleep));
  }
}

template <class T>
void Rank<T>::check(const Launch& launch) const {
  for (const Check& c : launch.checks) {
    // Only losses may have another float type than the run.
    const int64_t at =
        c.is_double
            ? kernels::reference_table().first_nonfinite(static_cast<const double*>(c.data), c.n)
            : kernels::fast_table().first_nonfinite(static_cast<const float*>(c.data), c.n);
    if (at < 0) continue;
    const double value = c.is_double ? static_cast<const double*>(c.data)[at]
                                     : static_cast<double>(static_cast<const float*>(c.data)[at]);
    throw run_error(
        "this op produced the first number that is not finite: element {} of tensor {} is {}", at,
        plan_.graph.tensor(c.tensor).name, value);
  }
}

/// Stores the most probable next token of each token in the rank's report. Called before the loss
/// op, which may overwrite the logits.
template <class T>
void Rank<T>::predict(const Launch& launch) {
  const Shape& logits = plan_.graph.tensor(plan_.graph.op(launch.op).inputs[0]).shape;
  const int64_t vocab = logits.back(), tokens = num_elements(logits) / vocab;
  const T* row = static_cast<const T*>(launch.inputs[0]);
  report_.predictions.resize(static_cast<size_t>(tokens));
  for (int32_t& token : report_.predictions) {
    token = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
    row += vocab;
  }
}

template <class T>
RankReport Rank<T>::report() const {
  RankReport report = report_;
  for (const Lane& lane : lanes_) {
    report.spans.push_back(lane.spans);
    for (Span& span : report.spans.back()) {
      span.op = plan_.in_step(span.op);
      span.lane = plan_.in_step(span.lane);
      span.rank = static_cast<int32_t>(number_);
    }
    report.stats.cpu_ns += lane.cpu_ns;
    report.stats.behind_ns =
        std::max(report.stats.behind_ns, paced_ns(lane.behind, options_.dilation()));
    if (!paced()) continue;
    for (Span& span : report.spans.back()) {
      for (Nanoseconds* const time : {&span.post, &span.begin, &span.end}) {
        *time = paced_ns(*time, options_.pace);
      }
    }
  }
  for (const Launch& launch : lanes_[0].launches) {
    if (launch.record) report.gates.push_back(launch.record.get());
  }
  return report;
}

template class Rank<float>;
template class Rank<double>;

}  // namespace moe
