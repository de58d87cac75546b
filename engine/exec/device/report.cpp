// How far a rank on a device has come, and its report of a step, read when the device has finished
// the step.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/errors.h"
#include "engine/exec/device/ops.h"
#include "engine/exec/device/rank.h"
#include "engine/graph/op_def.h"

namespace moe {

RankReport DeviceRank::report(const ProgramRun& spec, kernels::Event start) {
  current_ = OpId();
  check_finite();
  RankReport report = report_;
  report.spans.resize(streams_.size());
  report.gradients = gradients_;
  const auto* const token = reinterpret_cast<const int32_t*>(predictions_host_.data());
  report.predictions.assign(token,
                            token + predictions_host_.size() / static_cast<Bytes>(sizeof(int32_t)));
  for (const PlacedLayer& layer : persistents_.placed) {  // the run loop reads these
    std::memcpy(host_.at(layer.state), device_buffers_.host(layer.state),
                static_cast<size_t>(Placement::code_size(layer.bounds)) * sizeof(int32_t));
  }
  std::vector<Nanoseconds> ends(launches_.size(), 0);
  for (const DeviceStep& step : program_.steps) {
    const Launch& launch = launches_[step.op.index()];
    if (!launch.ran) continue;
    add_spans(launch, step, start, ends, report);
    const OpDef& def = plan_.graph.def(step.op);
    if (def.loss != Loss::kNone) {
      const Op& op = plan_.graph.op(step.op);
      const double loss = *static_cast<const double*>(device_buffers_.host(op.outputs[0]));
      add_loss(plan_.graph, step.op, loss, report);
    }
  }
  for (std::vector<Span>& lane : report.spans) {  // in the order of begins
    std::stable_sort(lane.begin(), lane.end(),
                     [](const Span& a, const Span& b) { return a.begin < b.begin; });
  }
  for (const OpId op : plan_.orders.lanes[0]) {
    const Launch& launch = launches_[op.index()];
    if (!launch.record) continue;
    if (launch.routed && spec.train) {
      launch.record->capture<float>(plan_.graph, op,
                                    [this](TensorId t) { return device_buffers_.host(t); });
      check_scores(op, launch.record->expert.data());
    }
    report.gates.push_back(launch.record.get());
  }
  check_device(device_, "times of the step");
  return report;
}

/// Throws RunError when scores of a gate are not numbers, which the device's routing marks by
/// experts below -1. Called when the step has finished, and before the CPU reads the choices.
void DeviceRank::check_scores(OpId op, const int32_t* expert) {
  const TensorId chosen = output_of(plan_.graph, plan_.graph.op(op), Role::kExpert);
  const Shape& choices = plan_.graph.tensor(chosen).shape;
  const int32_t* const end = expert + num_elements(choices);
  const int32_t* const bad = std::find_if(expert, end, [](int32_t e) { return e < -1; });
  if (bad == end) return;
  // If an earlier op produced a number that is not finite, check_finite() throws for that op.
  copy(nonfinite_host_.data(), nonfinite_.data(), nonfinite_.size(), stream(LaneId(0)));
  device_.record(idle_.get(), stream(LaneId(0)));
  wait_(idle_.get());
  check_finite();
  current_ = op;
  throw run_error("gate: the scores of token {} must be numbers, but at least one of them is NaN",
                  (bad - expert) / choices[1]);
}

void DeviceRank::add_spans(const Launch& launch, const DeviceStep& step, kernels::Event start,
                           std::vector<Nanoseconds>& ends, RankReport& report) const {
  std::vector<Span>& lane = report.spans[step.lane.index()];
  // On a lane that picks its next op at run time, an op may be posted while others transfer.
  const bool chosen = plan_.schedule.picks(step.lane);
  Nanoseconds post = chosen || lane.empty() ? 0 : lane.back().end;
  for (const OpId op : step.stream_waits) post = std::max(post, ends[op.index()]);
  for (size_t c = 0; c < launch.begins.size(); ++c) {
    // Event clocks have a coarse resolution: rounding must not put a begin before its post, nor an
    // end before its begin.
    const auto at = [&](const DeviceEvent& event, Nanoseconds earliest) {
      const double ns = device_.elapsed_ns(start, event.get());
      return std::max(earliest, static_cast<Nanoseconds>(std::llround(ns)));
    };
    const Nanoseconds begin = at(launch.begins[c], post), end = at(launch.ends[c], begin);
    lane.push_back({step.op, static_cast<int32_t>(rank_), step.lane, post, begin, end,
                    launch.bytes.empty() ? 0 : launch.bytes[c], static_cast<int32_t>(c)});
    post = end;
  }
  ends[step.op.index()] = post;
}

/// Throws RunError for the first op, in the order of issue, that produced a number that is not
/// finite.
void DeviceRank::check_finite() {
  const auto* const first = reinterpret_cast<const int64_t*>(nonfinite_host_.data());
  for (const DeviceStep& step : program_.steps) {
    const Launch& launch = launches_[step.op.index()];
    for (size_t i = 0; i < launch.checks.size() && launch.ran; ++i) {
      const int64_t at = first[launch.first_check + i];
      if (program_.on_host[step.op.index()] || at == kNoIndex) continue;
      current_ = step.op;
      throw run_error(
          "this op produced the first number that is not finite: element {} of tensor {}", at,
          plan_.graph.tensor(launch.checks[i]).name);
    }
  }
}

std::string DeviceRank::whereabouts(int64_t step) const {
  std::string where = fmt::format("rank {}, step {}", rank_, step);
  if (current_.valid()) where += fmt::format(", op {}", plan_.graph.op(current_).name);
  return where;
}

bool DeviceRank::is_over(OpId op, int64_t chunk) const {
  return device_.over(launches_[op.index()].ends[static_cast<size_t>(chunk)].get());
}

bool DeviceRank::has_begun(OpId op) const {
  return device_.over(launches_[op.index()].begins[0].get());
}

OpId DeviceRank::stuck() const {
  for (const DeviceStep& step : program_.steps) {
    const Launch& launch = launches_[step.op.index()];
    if (launch.ran && !device_.over(launch.ends.back().get())) return step.op;
  }
  return OpId();
}

}  // namespace moe
