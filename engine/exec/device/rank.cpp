#include "engine/exec/device/rank.h"

#include <algorithm>
#include <cstring>

#include "engine/base/contains.h"
#include "engine/base/errors.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/policies.h"
#include "engine/exec/results/expert_offload.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

using Where = DeviceStorage::Where;

}  // namespace

bool routes_on_device(const Plan& plan, const Policies& policies, OpId op) {
  return !policies.gate && plan.spec.routing == nullptr && routes_on_device(plan.graph, op);
}

std::vector<TensorId> kept_tensors(const Plan& plan) {
  std::vector<TensorId> kept;
  for (const OpId id : plan.graph.op_ids()) {
    const Op& op = plan.graph.op(id);
    if (plan.graph.def(id).loss != Loss::kNone) kept.push_back(op.outputs[0]);
    if (!is_gate(plan.graph, id)) continue;
    for (const Role role : {Role::kProbs, Role::kExpert, Role::kChoiceSlot, Role::kCounts}) {
      kept.push_back(output_of(plan.graph, op, role));
    }
  }
  return kept;
}

DeviceRank::DeviceRank(const Plan& plan, const RunOptions& options,
                       const PersistentTensors& persistents, const DeviceProgram& program,
                       const kernels::DeviceTable& device, HostWait wait, int64_t rank)
    : plan_(plan),
      options_(options),
      persistents_(persistents),
      program_(program),
      device_(device),
      wait_(std::move(wait)),
      rank_(rank),
      host_(plan, element_bytes(device)),
      device_buffers_(plan, program, device, scratch_bytes()),
      launches_(plan.graph.num_ops()),
      inputs_(plan.graph, *plan.spec.model),
      nonfinite_(device, Where::kDevice, 0),
      nonfinite_host_(device, Where::kHost, 0),
      step_(device, Where::kDevice, sizeof(int64_t)),
      step_host_(device, Where::kHost, sizeof(int64_t)),
      predictions_(device, Where::kDevice, prediction_bytes()),
      predictions_host_(device, Where::kHost, prediction_bytes()),
      idle_(device, false),
      gradients_(persistents.parameters.size()) {
  for (size_t l = 0; l < plan.orders.lanes.size(); ++l) {
    streams_.emplace_back(device, l > 0 && options.device.urgent_comm);
  }
  size_t checks = 0;
  for (const DeviceStep& step : program.steps) {
    Launch& launch = launches_[step.op.index()] = make_launch(step);
    launch.first_check = checks;
    checks += launch.checks.size();
  }
  const auto bytes = static_cast<Bytes>(checks * sizeof(int64_t));
  nonfinite_ = DeviceStorage(device, Where::kDevice, bytes);
  nonfinite_host_ = DeviceStorage(device, Where::kHost, bytes);
  check_device(device, "streams and events");
}

Bytes DeviceRank::prediction_bytes() const {
  if (!options_.infer.keep_predictions) return 0;
  return inputs_.tokens() * Bytes{sizeof(int32_t)};
}

std::vector<Bytes> DeviceRank::scratch_bytes() const {
  std::vector<Bytes> lanes(plan_.orders.lanes.size(), 0);
  for (const DeviceStep& step : program_.steps) {
    if (program_.on_host[step.op.index()]) continue;
    Bytes& bytes = lanes[step.lane.index()];
    bytes = std::max(bytes, device_scratch_bytes(plan_.graph, step.op, device_));
  }
  return lanes;
}

DeviceRank::Launch DeviceRank::make_launch(const DeviceStep& step) {
  const Graph& graph = plan_.graph;
  const Op& op = graph.op(step.op);
  const OpDef& def = graph.def(step.op);
  const bool on_host = program_.on_host[step.op.index()];
  Launch launch;
  launch.forward = op.phase == Phase::kForward;
  launch.routed = is_gate(graph, step.op) && !on_host;
  launch.num_chunks = moe::num_chunks(graph, plan_.schedule, step.op);
  const auto place = [&](TensorId t) {
    return on_host || contains(step.host_reads, t) ? device_buffers_.host(t)
                                                   : device_buffers_.at(t);
  };
  for (const TensorId t : op.inputs) launch.inputs.push_back(place(t));
  for (const TensorId t : op.outputs) launch.outputs.push_back(place(t));
  if (def.collective != Collective::kNone) {
    const CollectiveMemory memory = {
        [this](TensorId t) { return device_buffers_.at(t); },
        [this](TensorId t) { return static_cast<const int32_t*>(device_buffers_.host(t)); },
        element_bytes(device_)};
    if (def.collective == Collective::kExperts) {
      launch.mover = std::make_unique<ExpertMover<float>>(
          graph, step.op, memory, device_buffers_.scratch(step.lane), rank_);
    } else {
      launch.layout = std::make_unique<CollectiveLayout<float>>(graph, step.op, memory, rank_);
    }
  } else if (on_host ? def.run.f32 == nullptr : !has_kernel(graph, step.op, device_)) {
    throw user_error("op {}: the op kind {} has no kernel on cuda in precision {}", op.name,
                     def.name, element_bytes(device_) == 0 ? "bf16" : "f32");
  }
  launch.update = update_of(graph, persistents_, step.op);
  launch.predicts = options_.infer.keep_predictions && def.loss == Loss::kModel;
  launch.offloads = records_offload(plan_, step.op);
  if (options_.check_finite) launch.checks = checked_on_device(graph, op);
  if (step.marked) launch.done = DeviceEvent(device_, false);
  for (int64_t c = 0; c < launch.num_chunks; ++c) {
    launch.begins.emplace_back(device_, true);
    launch.ends.emplace_back(device_, true);
  }
  return launch;
}

void DeviceRank::fill_inputs(const DataSource& data, int64_t step) {
  inputs_.fill(data, step, rank_, [this](TensorId t) { return device_buffers_.host(t); });
  std::memcpy(step_host_.data(), &step, sizeof step);
}

void DeviceRank::start_step() {
  current_ = OpId();
  report_.stats = {};
  std::fill(gradients_.begin(), gradients_.end(), Measure());
  report_.placements.clear();
  report_.offloads.clear();
  for (Launch& launch : launches_) launch.ran = false;
  if (!options_.test.poison) return;
  // Values of the previous step must not be used in this one.
  for (size_t i = 0; i < plan_.graph.tensors().size(); ++i) {
    const TensorId t(static_cast<int64_t>(i));
    void* const mirror = device_buffers_.host(t);
    if (mirror == nullptr || plan_.memory.buffers[i].persistent) continue;
    std::memset(mirror, 0xff, static_cast<size_t>(device_buffers_.bytes(plan_.graph.tensor(t))));
  }
}

void DeviceRank::replayed() {
  for (Launch& launch : launches_) launch.ran = true;
}

void DeviceRank::queue_inputs() {
  const kernels::Stream first = stream(LaneId(0));
  for (const TensorId t : inputs_.all()) {
    copy(device_buffers_.at(t), device_buffers_.host(t),
         device_buffers_.bytes(plan_.graph.tensor(t)), first);
  }
  copy(step_.data(), step_host_.data(), step_.size(), first);
  if (nonfinite_.size() > 0) {
    device_.fill(nonfinite_.data(), kNoIndexByte, nonfinite_.size(), first);
  }
}

void DeviceRank::wait_for(const DeviceStep& step) {
  current_ = step.op;
  const kernels::Stream own = stream(step.lane);
  for (const OpId op : step.stream_waits) device_.wait(own, launches_[op.index()].done.get());
  for (const OpId op : step.host_waits) {
    wait_(launches_[op.index()].done.get());
    if (!launches_[op.index()].routed) continue;
    const TensorId expert = output_of(plan_.graph, plan_.graph.op(op), Role::kExpert);
    check_scores(op, static_cast<const int32_t*>(device_buffers_.host(expert)));
  }
  Launch& launch = launches_[step.op.index()];
  if (launch.layout) launch.layout->read_counts();
  if (launch.mover) launch.actions = &launch.mover->actions();
}

void DeviceRank::begin(const DeviceStep& step, int64_t chunk) {
  device_.record(launches_[step.op.index()].begins[static_cast<size_t>(chunk)].get(),
                 stream(step.lane));
}

void DeviceRank::moved(const DeviceStep& step, int64_t chunk) {
  Launch& launch = launches_[step.op.index()];
  const auto c = static_cast<size_t>(chunk);
  launch.bytes.resize(launch.ends.size());
  if (launch.mover) {
    launch.bytes[c] = launch.mover->bytes();
    return;
  }
  CollectiveLayout<float>& layout = *launch.layout;
  launch.bytes[c] = layout.sums() ? layout.bytes_of_sum(layout.elements(chunk, launch.num_chunks))
                                  : layout.bytes_to_others(layout.pieces(chunk, launch.num_chunks));
  if (chunk + 1 < launch.num_chunks) {  // end() records the last chunk's end
    device_.record(launch.ends[c].get(), stream(step.lane));
    return;
  }
  for (const UnusedRows& rows : layout.unused_rows()) {
    device_.fill(rows.data, 0, rows.bytes, stream(step.lane));
  }
}

RankContext DeviceRank::context(const DeviceStep& step, const Launch& launch,
                                const ProgramRun& spec) const {
  const auto* const number = reinterpret_cast<const int64_t*>(step_.data());
  return {.rank = rank_,
          .num_ranks = plan_.graph.num_ranks,
          .step = spec.step,
          .device_step = program_.on_host[step.op.index()] ? nullptr : number,
          .first_token = inputs_.first_token(plan_.graph.op(step.op), rank_),
          .gate = launch.record ? &launch.gate : nullptr,
          .place = launch.place ? &launch.place : nullptr,
          .popularity = options_.infer.popularity.get()};
}

void DeviceRank::compute(const DeviceStep& step, const ProgramRun& spec) {
  Launch& launch = launches_[step.op.index()];
  const kernels::Stream own = stream(step.lane);
  const TestHooks& test = options_.test;
  if (test.delay_ns) device_.sleep(test.delay_ns(rank_, step.op, spec.step), {}, own);
  if (test.poison) poison(step);
  if (program_.on_host[step.op.index()]) return run_on_host(step, launch, spec);
  if (spec.measure_gradients && launch.update.parameter >= 0) measure_gradient(step, launch);
  if (launch.predicts) {  // before the loss op may overwrite the logits
    queue_predictions(plan_.graph, plan_.graph.op(step.op), launch.inputs[0],
                      reinterpret_cast<int32_t*>(predictions_.data()), device_, own);
  }
  queue_op(plan_.graph, step.op,
           {launch.inputs, launch.outputs, device_buffers_.scratch(step.lane)},
           context(step, launch, spec), device_, own);
}

void DeviceRank::run_on_host(const DeviceStep& step, Launch& launch, const ProgramRun& spec) {
  const Op& op = plan_.graph.op(step.op);
  const kernels::KernelTable<float>& k = kernels::fast_table();
  plan_.graph.def(op).run.f32({plan_.graph, op, launch.inputs, launch.outputs,
                               device_buffers_.host_scratch(), k, context(step, launch, spec)});
  for (const TensorId t : launch.checks) {
    const auto* const x = static_cast<const float*>(device_buffers_.host(t));
    const int64_t at = k.first_nonfinite(x, num_elements(plan_.graph.tensor(t).shape));
    if (at < 0) continue;
    throw run_error(
        "this op produced the first number that is not finite: element {} of tensor {} is {}", at,
        plan_.graph.tensor(t).name, x[at]);
  }
  if (launch.place && spec.train) {
    report_.placements.push_back(
        placement_record(plan_.graph, op, [this](TensorId t) { return device_buffers_.host(t); }));
  }
  if (launch.offloads) {
    add_offload(
        plan_, step.op, [this](TensorId t) { return device_buffers_.host(t); }, report_.offloads);
  }
  if (launch.record && spec.train) {
    launch.record->capture<float>(plan_.graph, step.op,
                                  [this](TensorId t) { return device_buffers_.host(t); });
  }
  for (const TensorId t : step.push) {
    copy(device_buffers_.at(t), device_buffers_.host(t),
         device_buffers_.bytes(plan_.graph.tensor(t)), stream(step.lane));
  }
}

void DeviceRank::measure_gradient(const DeviceStep& step, const Launch& launch) {
  const TensorId t = plan_.graph.op(step.op).inputs[launch.update.gradient];
  std::vector<float> gradient(static_cast<size_t>(num_elements(plan_.graph.tensor(t).shape)));
  copy(gradient.data(), device_buffers_.at(t), static_cast<Bytes>(gradient.size() * sizeof(float)),
       stream(step.lane));
  device_.record(idle_.get(), stream(step.lane));
  wait_(idle_.get());
  const auto number = static_cast<size_t>(launch.update.parameter);
  add_measure(persistents_, launch.update, host_, rank_, gradient.data(), gradients_[number]);
}

/// For tests (TestHooks::poison): fills the outputs of an op before the op writes them, since no
/// other op may still use their memory: floats with NaN, index tensors with a value that is no
/// valid index.
void DeviceRank::poison(const DeviceStep& step) {
  const auto fill = [&](TensorId t) {
    const Tensor& tensor = plan_.graph.tensor(t);
    device_.fill(device_buffers_.at(t), tensor.dtype == DType::kI32 ? 0x80 : 0xff,
                 device_buffers_.bytes(tensor), stream(step.lane));
  };
  for (const TensorId t : plan_.graph.op(step.op).outputs) {
    const Buffer& buffer = plan_.memory.buffers[t.index()];
    if (!buffer.persistent && !buffer.alias_of.valid() && buffer.joined < 0) fill(t);
  }
  for (const JoinedBlock& block : plan_.memory.joined) {
    if (block.start != step.op) continue;
    for (const TensorId t : block.members) fill(t);
  }
}

DeviceMember DeviceRank::member(const DeviceStep& step, int64_t chunk) {
  const Launch& launch = launches_[step.op.index()];
  CollectiveLayout<float>& layout = *launch.layout;
  DeviceMember member = {.rank = rank_, .stream = stream(step.lane), .group = layout.group()};
  if (layout.sums()) {
    member.summed = &layout;
    member.range = layout.elements(chunk, launch.num_chunks);
    member.scratch = device_buffers_.scratch(step.lane);
  } else {
    member.send = layout.send();
    member.receive = layout.receive();
    member.pieces = &layout.pieces(chunk, launch.num_chunks);
  }
  return member;
}

DeviceMember DeviceRank::next_exchange(const DeviceStep& step, size_t& at) {
  const Launch& launch = launches_[step.op.index()];
  using Kind = ExpertAction<float>::Kind;
  const kernels::Stream own = stream(step.lane);
  DeviceMember member = {.rank = rank_, .stream = own, .group = launch.mover->group()};
  while (at < launch.actions->size()) {
    const ExpertAction<float>& action = (*launch.actions)[at++];
    if (action.kind == Kind::kCopy) {
      copy(action.to, action.from, action.n * Bytes{sizeof(float)}, own);
    } else if (action.kind == Kind::kAdd) {
      device_.kernels->add(action.to, action.to, action.from, action.n, own);
    } else {
      member.send = member.receive = launch.mover->base();
      member.pieces = &action.pieces;
      break;
    }
  }
  return member;
}

void DeviceRank::end(const DeviceStep& step) {
  Launch& launch = launches_[step.op.index()];
  const kernels::Stream own = stream(step.lane);
  for (const TensorId t : step.fetch) {
    copy(device_buffers_.host(t), device_buffers_.at(t),
         device_buffers_.bytes(plan_.graph.tensor(t)), own);
  }
  auto* const first = reinterpret_cast<int64_t*>(nonfinite_.data()) + launch.first_check;
  for (size_t i = 0; i < launch.checks.size() && !program_.on_host[step.op.index()]; ++i) {
    const TensorId t = launch.checks[i];
    queue_check(plan_.graph.tensor(t), device_buffers_.at(t), first + i, device_, own);
  }
  device_.record(launch.ends.back().get(), own);
  if (step.marked) device_.record(launch.done.get(), own);
  launch.ran = true;
  check_device(device_, "the device");
}

void DeviceRank::queue_results() {
  copy(predictions_host_.data(), predictions_.data(), predictions_.size(), stream(LaneId(0)));
  copy(nonfinite_host_.data(), nonfinite_.data(), nonfinite_.size(), stream(LaneId(0)));
}

void DeviceRank::copy(void* to, const void* from, Bytes bytes, kernels::Stream stream) {
  if (bytes > 0) device_.copy(to, from, bytes, stream);
}

}  // namespace moe
