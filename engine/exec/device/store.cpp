// What a rank on a device does outside steps: it makes gates and initial values, and copies
// persistent tensors between host and device memory.
#include <cstring>

#include "engine/exec/device/ops.h"
#include "engine/exec/device/rank.h"
#include "engine/exec/policies.h"
#include "engine/graph/op_def.h"

namespace moe {

void DeviceRank::prepare(bool initialise_parameters) {
  const auto gate_of = gates_of(plan_, options_.policies, rank_);
  for (const OpId op : plan_.orders.lanes[0]) {
    Launch& launch = launches_[op.index()];
    if (plan_.graph.def(op).moe == MoeOp::kPlace) {
      launch.place =
          policy_of(plan_.graph.op(op), options_.policies, rank_, placed_, report_.policy_failure);
    }
    if (!is_gate(plan_.graph, op)) continue;
    launch.gate = gate_of(plan_.graph.op(op));
    launch.record = std::make_unique<GateRecord>(plan_.graph, op, launch.gate.code);
  }
  if (!initialise_parameters) return;
  initialise<float>(plan_, persistents_, host_, rank_, options_);
  store();
}

/// Calls body(tensor, bytes) for each persistent tensor.
template <class Body>
void DeviceRank::each_persistent(Body body) const {
  for (size_t i = 0; i < plan_.graph.tensors().size(); ++i) {
    const TensorId t(static_cast<int64_t>(i));
    if (!plan_.memory.buffers[i].persistent) continue;
    body(t, device_buffers_.bytes(plan_.graph.tensor(t)));
  }
}

void DeviceRank::fetch() {
  each_persistent([this](TensorId t, Bytes bytes) {
    if (program_.host_only[t.index()]) return;
    copy(host_.at(t), device_buffers_.at(t), bytes, stream(LaneId(0)));
  });
  device_.record(idle_.get(), stream(LaneId(0)));
  wait_(idle_.get());
}

void DeviceRank::store() {
  each_persistent([this](TensorId t, Bytes bytes) {
    if (!program_.host_only[t.index()]) {
      copy(device_buffers_.at(t), host_.at(t), bytes, stream(LaneId(0)));
    }
    void* const mirror = device_buffers_.host(t);
    if (mirror != nullptr) std::memcpy(mirror, host_.at(t), static_cast<size_t>(bytes));
  });
  device_.record(idle_.get(), stream(LaneId(0)));
  wait_(idle_.get());
}

}  // namespace moe
