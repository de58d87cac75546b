#include "engine/profile/device_trial.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine/base/contains.h"
#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/exec/device/ops.h"
#include "engine/graph/op_def.h"
#include "engine/ops/kernel_call.h"
#include "engine/profile/profiler.h"
#include "engine/schedule/lifetime.h"

namespace moe {
namespace {

using kernels::DeviceTable;
using Where = DeviceStorage::Where;

// Size of the L2 cache of an H200; an H100 has 50 MiB.
constexpr Bytes kL2Bytes = 60 << 20;
static_assert(ProfileOperands::kFarBytes >= 2 * kL2Bytes,
              "kFarBytes of other traffic must evict data from the L2");

constexpr Nanoseconds kSpin = 200'000;  // time of busy waiting before the host sleeps in between
constexpr Nanoseconds kPatience = 60'000'000'000;

/// Returns the bytes of an operand of an op that the host runs, which is float32.
Bytes operand_bytes(const Graph& graph, TensorId t) {
  return tensor_bytes(graph.tensor(t), sizeof(float));
}

Bytes aligned(Bytes bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Returns the inputs that the op overwrites: parameters that it updates, and inputs whose storage
/// the plan lets its outputs take over.
std::vector<size_t> overwritten_inputs(const Graph& graph, OpId op) {
  std::vector<size_t> inputs;
  for (const int i : mutated_inputs(graph, graph.op(op))) inputs.push_back(static_cast<size_t>(i));
  for (const auto& [out, in] : dying_aliases(graph, op)) inputs.push_back(static_cast<size_t>(in));
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  return inputs;
}

}  // namespace

void wait_for(const DeviceTable& device, kernels::Event event, kernels::Stream stream,
              const std::string& what) {
  device.record(event, stream);
  const Nanoseconds begin = clock_ns();
  while (!device.over(event)) {
    check_device(device, what);
    const Nanoseconds waited = clock_ns() - begin;
    if (waited > kPatience) {
      throw run_error("{}: the device did not finish within {} s", what, kPatience / 1'000'000'000);
    }
    if (waited > kSpin) std::this_thread::sleep_for(kDevicePoll);
  }
  check_device(device, what);
}

bool works_on_host(const Graph& graph, OpId op) {
  return runs_on_host(graph, graph.op(op)) && !routes_on_device(graph, op);
}

TrialOperands::TrialOperands(const Graph& graph, OpId op, const WorkContext& work,
                             int64_t num_ranks, const DeviceTable& device)
    : op_(graph.op(op)),
      device_(device),
      host_(graph, op, work, element_bytes(device)),
      inputs_(static_cast<size_t>(num_ranks), std::vector<void*>(op_.inputs.size())),
      outputs_(static_cast<size_t>(num_ranks), std::vector<void*>(op_.outputs.size())) {
  const bool none = runs_on_host(graph, op_);  // true here for a gate that the device routes
  const std::vector<TensorId> read = none ? std::vector<TensorId>{} : host_inputs(graph, op_);
  for (const TensorId t : op_.inputs) stays_on_host_.push_back(t.valid() && contains(read, t));
  const auto bytes = static_cast<Bytes>(host_.storage().size());
  for (int64_t r = 0; r < num_ranks; ++r) ranks_.emplace_back(device, Where::kDevice, bytes);
  for (const size_t i : overwritten_inputs(graph, op)) {
    const Bytes size = tensor_bytes(graph.tensor(op_.inputs[i]), element_bytes(device));
    overwritten_.push_back({i, {device, Where::kDevice, size}});
  }
}

void TrialOperands::fill(kernels::Stream stream) {
  advance();
  for (const Overwritten& o : overwritten_) {
    device_.copy(o.pristine.data(), host_.inputs()[o.input], o.pristine.size(), stream);
  }
  const void* from = host_.storage().data();
  for (const DeviceStorage& rank : ranks_) {  // from rank 1 on from rank 0: faster than from host
    device_.copy(rank.data(), from, rank.size(), stream);
    from = ranks_[0].data();
  }
}

std::byte* TrialOperands::on_device(size_t rank, const void* host) const {
  return ranks_[rank].data() + (static_cast<const std::byte*>(host) - host_.storage().data());
}

void TrialOperands::advance() {
  host_.advance();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    for (size_t i = 0; i < op_.inputs.size(); ++i) {
      void* const host = host_.inputs()[i];
      const bool stays = host == nullptr || stays_on_host_[i];
      inputs_[r][i] = stays ? host : on_device(r, host);
    }
    for (size_t o = 0; o < op_.outputs.size(); ++o) {
      outputs_[r][o] = on_device(r, host_.outputs()[o]);
    }
  }
}

void* TrialOperands::at(size_t rank, TensorId tensor) const {
  if (!tensor.valid()) return nullptr;
  for (size_t o = 0; o < op_.outputs.size(); ++o) {
    if (op_.outputs[o] == tensor) return outputs_[rank][o];
  }
  const auto input = std::find(op_.inputs.begin(), op_.inputs.end(), tensor);
  MOE_CHECK(input != op_.inputs.end(),
            "op '{}': the tensor with index {} must be an input or output of the op", op_.name,
            tensor.index());
  return inputs_[rank][static_cast<size_t>(input - op_.inputs.begin())];
}

void TrialOperands::put_back(size_t rank, kernels::Stream stream) const {
  for (const Overwritten& o : overwritten_) {
    device_.copy(inputs_[rank][o.input], o.pristine.data(), o.pristine.size(), stream);
  }
}

HostTrial::HostTrial(const Graph& graph, OpId op, const ProfileOptions& options,
                     const DeviceTable& device)
    : graph_(graph),
      id_(op),
      op_(graph.op(op)),
      what_("op " + op_.name),
      device_(device),
      operands_(graph, op, options.work),
      host_(device, Where::kHost, lay_out()),
      on_device_(device, Where::kDevice, host_.size()),
      stream_(device, false),
      over_(device, false) {
  for (size_t i = 0; i < in_.size(); ++i) {
    inputs_.push_back(op_.inputs[i].valid() ? host_.data() + in_[i].offset : nullptr);
  }
  for (const Place& place : out_) outputs_.push_back(host_.data() + place.offset);
  if (is_gate(graph, op)) gate_ = timed_gate(op_);
  const TensorUses uses(graph);
  for (size_t i = 0; i < in_.size(); ++i) {
    const TensorId t = op_.inputs[i];
    const OpId from = t.valid() ? uses.producer[t.index()] : OpId();
    if (from.valid() && !works_on_host(graph, from)) fetched_.push_back(in_[i]);
  }
  pushed_ = out_;
  for (const int i : mutated_inputs(graph, op_)) pushed_.push_back(in_[static_cast<size_t>(i)]);
  const std::vector<TensorId> checked =
      options.checked ? checked_on_device(graph, op_) : std::vector<TensorId>{};
  for (const TensorId t : checked) {
    const auto o = std::find(op_.outputs.begin(), op_.outputs.end(), t) - op_.outputs.begin();
    const auto i = std::find(op_.inputs.begin(), op_.inputs.end(), t) - op_.inputs.begin();
    const bool made = static_cast<size_t>(o) < out_.size();
    void* const x = made ? outputs_[static_cast<size_t>(o)] : inputs_[static_cast<size_t>(i)];
    looks_.emplace_back(static_cast<const float*>(x), num_elements(graph.tensor(t).shape));
  }
  check_device(device, what_);
}

/// Lays out the host's operands and returns their bytes. An input that is in the storage of an
/// output in operands_ is in that output's storage here too; all other operands have their own
/// storage.
Bytes HostTrial::lay_out() {
  operands_.advance();
  Bytes end = 0;
  const auto room = [&](TensorId t) {
    const Bytes bytes = t.valid() ? operand_bytes(graph_, t) : 0;
    return Place{std::exchange(end, end + aligned(bytes)), bytes};
  };
  for (const TensorId t : op_.outputs) out_.push_back(room(t));
  for (size_t i = 0; i < op_.inputs.size(); ++i) {
    const auto* const at = static_cast<const std::byte*>(operands_.inputs()[i]);
    size_t o = 0;
    const auto inside = [&] {
      const auto* const from = static_cast<const std::byte*>(operands_.outputs()[o]);
      return at != nullptr && at >= from && at < from + out_[o].bytes;
    };
    while (o < out_.size() && !inside()) ++o;
    if (o == out_.size()) {
      in_.push_back(room(op_.inputs[i]));
      continue;
    }
    const auto* const from = static_cast<const std::byte*>(operands_.outputs()[o]);
    in_.push_back({out_[o].offset + (at - from), operand_bytes(graph_, op_.inputs[i])});
  }
  return end;
}

void HostTrial::copy(const std::vector<Place>& places, std::byte* to, const std::byte* from) {
  for (const Place& p : places) {
    device_.copy(to + p.offset, from + p.offset, p.bytes, stream_.get());
  }
  if (!places.empty()) wait_for(device_, over_.get(), stream_.get(), what_);
}

Nanoseconds HostTrial::call() {
  operands_.next();
  for (size_t i = 0; i < in_.size(); ++i) {
    if (inputs_[i] == nullptr) continue;
    std::memcpy(inputs_[i], operands_.inputs()[i], static_cast<size_t>(in_[i].bytes));
  }
  copy(fetched_, on_device_.data(), host_.data());  // restores what the last call overwrote
  const RankContext context = {.num_ranks = graph_.num_ranks, .gate = &gate_};
  const kernels::KernelTable<float>& k = kernels::fast_table();
  const Nanoseconds begin = clock_ns();
  copy(fetched_, host_.data(), on_device_.data());
  graph_.def(id_).run.f32({graph_, op_, inputs_, outputs_, operands_.scratch(), k, context});
  for (const auto& [x, n] : looks_) k.first_nonfinite(x, n);
  copy(pushed_, on_device_.data(), host_.data());
  return clock_ns() - begin;
}

}  // namespace moe
