#include "engine/exec/rank.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "engine/base/errors.h"
#include "engine/comm/emulated_link.h"
#include "engine/exec/finite.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

template <class T>
constexpr Bytes kElementBytes = static_cast<Bytes>(sizeof(T));

const kernels::KernelTable<float>& table_of(float) {
  return kernels::fast_table();
}
const kernels::KernelTable<double>& table_of(double) {
  return kernels::reference_table();
}

auto kernel_of(const OpDef& def, float) {
  return def.run_f32;
}
auto kernel_of(const OpDef& def, double) {
  return def.run_f64;
}

bool contains(const std::vector<int>& list, size_t i) {
  return std::find(list.begin(), list.end(), static_cast<int>(i)) != list.end();
}

}  // namespace

template <class T>
Rank<T>::Rank(const Plan& plan, const RunOptions& options, const Persistents& persistents,
              int64_t rank)
    : plan_(plan),
      options_(options),
      persistents_(persistents),
      rank_(rank),
      table_(table_of(T())),
      buffers_(plan, kElementBytes<T>),
      progress_(plan.graph.num_ops()),
      ids_(plan.graph.find_tensor("ids")),
      targets_(plan.graph.find_tensor("targets")),
      gradients_(persistents.parameters.size()) {
  if (!ids_.valid() || !targets_.valid()) {
    throw user_error("the graph has no inputs 'ids' and 'targets' to train on");
  }
  if (options.poison) poison_ = std::make_unique<Poison>(plan, buffers_, kElementBytes<T>);
  lanes_.resize(plan.orders.lanes.size());
  for (size_t l = 0; l < lanes_.size(); ++l) {
    for (const OpId op : plan.orders.lanes[l]) {
      lanes_[l].launches.push_back(make_launch(LaneId(static_cast<int64_t>(l)), op));
    }
    lanes_[l].spans.reserve(lanes_[l].launches.size());
  }
  std::vector<bool> awaited(plan.graph.num_ops());
  for (const auto& waits : plan.waits) {
    for (const OpId op : waits) awaited[op.index()] = true;
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
  for (const TensorId t : op.inputs) launch.inputs.push_back(buffers_.at(t));
  for (const TensorId t : op.outputs) launch.outputs.push_back(buffers_.at(t));
  if (def.collective != Collective::kNone) {
    launch.collective = std::make_unique<CollectiveOp<T>>(graph, id, buffers_, launch.scratch);
  } else {
    launch.kernel = kernel_of(def, T());
    if (launch.kernel == nullptr)
      throw user_error("op {}: a {} has no CPU kernel", op.name, def.name);
  }
  const TensorId loss = loss_of(graph);
  for (const TensorId t : op.outputs) {
    if (t == loss) launch.loss = static_cast<const double*>(buffers_.at(t));
  }
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
  const Op& op = plan_.graph.op(launch.op);
  const OpDef& def = plan_.graph.def(launch.op);
  if (def.mutates.empty()) return;
  const TensorId parameter = op.inputs[static_cast<size_t>(def.mutates[0])];
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!contains(def.mutates, i)) launch.gradient = static_cast<const T*>(launch.inputs[i]);
  }
  for (size_t p = 0; p < persistents_.parameters.size(); ++p) {
    if (persistents_.parameters[p].tensor == parameter) launch.updates = static_cast<int64_t>(p);
  }
}

template <class T>
void Rank<T>::prepare(bool initialise_parameters) {
  buffers_.touch();
  if (initialise_parameters) {
    initialise<T>(plan_, persistents_, buffers_, rank_,
                  options_.init ? options_.init : ParamInit(reference_init));
  }
  const Gate own = options_.gate ? options_.gate(rank_) : Gate();
  for (Launch& launch : lanes_[0].launches) {
    const Op& op = plan_.graph.op(launch.op);
    if (plan_.graph.def(op).name != std::string_view("gate")) continue;
    launch.gate = options_.gate ? own : builtin_gate(attr_string(op, "gate"));
    launch.record = std::make_unique<GateRecord>(plan_.graph, launch.op, launch.gate.code);
  }
}

template <class T>
void Rank<T>::fill_inputs(const DataSource& data, int64_t step) {
  data(step, rank_, static_cast<int32_t*>(buffers_.at(ids_)),
       static_cast<int32_t*>(buffers_.at(targets_)));
}

template <class T>
void Rank<T>::start_pass() {
  if (poison_) poison_->start_step();
  std::fill(gradients_.begin(), gradients_.end(), Measure());
  for (Lane& lane : lanes_) lane.spans.clear();
}

template <class T>
void Rank<T>::run_lane(LaneId id, const Pass& pass, Communicator* comm) {
  Lane& lane = lanes_[id.index()];
  if (id.index() == 0) wait_until_ns(pass.start);
  Nanoseconds ready =
      pass.start;  // the lane's last op and all that the next one waits for are over
  for (Launch& launch : lane.launches) {
    lane.current = launch.op;
    for (const OpId op : launch.waits) ready = std::max(ready, progress_.wait(op, pass.epoch));
    if (aborted_.load(std::memory_order_relaxed)) throw Aborted();
    // A forward-only pass walks the whole program, so that its order is the proven one.
    if (pass.train || launch.forward) ready = run(launch, id, pass, ready, comm);
    progress_.finish(launch.op, pass.epoch, ready, launch.awaited);
  }
  lane.current = OpId();
}

template <class T>
void Rank<T>::abort() {
  aborted_.store(true, std::memory_order_relaxed);
  progress_.abort();
}

template <class T>
Nanoseconds Rank<T>::run(Launch& launch, LaneId lane, const Pass& pass, Nanoseconds ready,
                         Communicator* comm) {
  if (options_.delay_ns) {
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(options_.delay_ns(rank_, launch.op, pass.step)));
    ready = clock_ns();
  }
  if (poison_) poison_->before(launch.op);
  Span span = {launch.op, static_cast<int32_t>(rank_), lane, ready, 0, 0, 0};
  if (launch.collective) {
    comm->posted_at(ready);
    const CollectiveDone done = launch.collective->call(*comm);
    span.post = done.times.post;
    span.begin = done.times.begin;
    span.bytes = done.bytes;
  } else {
    span.begin = clock_ns();
    call_kernel(launch, pass);
  }
  after(launch, pass);
  const Nanoseconds end = clock_ns();
  span.end = end;
  for (Nanoseconds* t : {&span.post, &span.begin, &span.end}) *t -= pass.start;
  lanes_[lane.index()].spans.push_back(span);
  return end;
}

template <class T>
void Rank<T>::call_kernel(Launch& launch, const Pass& pass) {
  const bool measured = pass.measure_gradients && launch.updates >= 0;
  if (measured) {
    const auto number = static_cast<size_t>(launch.updates);
    const Persistent& p = persistents_.parameters[number];
    gradients_[number] = measure(launch.gradient, p.local, p.expert ? rank_ * p.local : 0);
  }
  const RankContext context = {
      .rank = rank_,
      .num_ranks = plan_.graph.num_ranks,
      .step = pass.step,
      .first_token = rank_ * num_elements(plan_.graph.tensor(ids_).shape),
      .gate = launch.record ? &launch.gate : nullptr,
  };
  launch.kernel({plan_.graph, plan_.graph.op(launch.op), launch.inputs, launch.outputs,
                 launch.scratch, table_, context});
}

template <class T>
void Rank<T>::after(Launch& launch, const Pass& pass) {
  if (launch.loss != nullptr) loss_ = *launch.loss;
  if (launch.record && pass.train) {
    launch.record->template capture<T>(plan_.graph, launch.op, buffers_);
  }
  if (options_.check_finite) check(launch);
  if (poison_) poison_->after(launch.op);
}

template <class T>
void Rank<T>::check(const Launch& launch) const {
  for (const Check& c : launch.checks) {
    // Only the loss may be of another float type than the run.
    const int64_t at =
        c.is_double
            ? kernels::reference_table().first_nonfinite(static_cast<const double*>(c.data), c.n)
            : kernels::fast_table().first_nonfinite(static_cast<const float*>(c.data), c.n);
    if (at < 0) continue;
    const double value = c.is_double ? static_cast<const double*>(c.data)[at]
                                     : static_cast<double>(static_cast<const float*>(c.data)[at]);
    throw run_error("made the first number that is not finite: element {} of {} is {}", at,
                    plan_.graph.tensor(c.tensor).name, value);
  }
}

template <class T>
std::vector<const GateRecord*> Rank<T>::gate_records() const {
  std::vector<const GateRecord*> records;
  for (const Launch& launch : lanes_[0].launches) {
    if (launch.record) records.push_back(launch.record.get());
  }
  return records;
}

template class Rank<float>;
template class Rank<double>;

}  // namespace moe
