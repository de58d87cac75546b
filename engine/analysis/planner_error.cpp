#include "engine/analysis/planner_error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"
#include "engine/ops/placed.h"
#include "engine/placement/performance_model.h"

namespace moe {
namespace {

/// The parts of a layer's step in the performance model. There are four all-to-alls: to the experts
/// (there) and back, in the forward and in the backward pass; each has its own estimate.
enum Part : int32_t {
  kThere,
  kBack,
  kGradThere,
  kGradBack,
  kForward,
  kBackward,
  kCopies,
  kGradients,
  kNumParts
};
constexpr std::array<std::pair<ModelOp, Phase>, kNumParts> kOpOf = {{
    {ModelOp::kA2a, Phase::kForward},
    {ModelOp::kA2a, Phase::kForward},
    {ModelOp::kA2a, Phase::kBackward},
    {ModelOp::kA2a, Phase::kBackward},
    {ModelOp::kExperts, Phase::kForward},
    {ModelOp::kExperts, Phase::kBackward},
    {ModelOp::kTrans, Phase::kForward},
    {ModelOp::kAgg, Phase::kBackward},
}};

using PartTimes = std::array<double, kNumParts>;  // seconds

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

/// Returns the part to which an op belongs; kNumParts if it belongs to none.
Part part_of(const Graph& graph, OpId id) {
  const Op& op = graph.op(id);
  const OpDef& def = graph.def(op);
  const bool forward = op.phase == Phase::kForward;
  if (op.phase == Phase::kRecompute) return kNumParts;  // not in the performance model
  if (def.payload == Payload::kShadows) return kCopies;
  if (def.payload == Payload::kShadowGradients) return kGradients;
  if (def.payload == Payload::kRows) {
    const bool there = op.rows.to_expert();
    return forward ? (there ? kThere : kBack) : (there ? kGradThere : kGradBack);
  }
  const bool computes = op.segment == Segment::kExpert && def.lane == LaneKind::kCompute;
  if (!computes || op.phase == Phase::kUpdate) return kNumParts;
  return forward ? kForward : kBackward;
}

/// The simulated or executed times of the parts (Part) of a step, per block.
class StepTimes {
 public:
  StepTimes(const Graph& graph, const Timeline& timeline) : graph_(graph) {
    for (const Span& span : timeline.spans) add(span);
  }

  std::map<int64_t, PartTimes> by_block() const {
    std::map<int64_t, PartTimes> times;
    for (const auto& [key, transfer] : transfers_) {
      const Op& op = graph_.op(std::get<0>(key));
      times[op.layer][part_of(graph_, std::get<0>(key))] += seconds(transfer.end - transfer.begin);
    }
    for (const auto& [key, ns] : compute_) {
      double& longest = times[std::get<0>(key)][std::get<1>(key)];
      longest = std::max(longest, seconds(ns));
    }
    return times;
  }

 private:
  struct Transfer {
    Nanoseconds begin = std::numeric_limits<Nanoseconds>::min();
    Nanoseconds end = std::numeric_limits<Nanoseconds>::min();
  };

  void add(const Span& span) {
    const Part part = part_of(graph_, span.op);
    const int32_t block = graph_.op(span.op).layer;
    if (part == kNumParts) return;
    if (part == kForward || part == kBackward) {
      compute_[{block, part, span.rank}] += span.end - span.begin;
      return;
    }
    Transfer& transfer = transfers_[{span.op, span.chunk}];
    transfer.begin = std::max(transfer.begin, span.begin);
    transfer.end = std::max(transfer.end, span.end);
  }

  const Graph& graph_;
  std::map<std::tuple<OpId, int32_t>, Transfer> transfers_;            // key: op, chunk
  std::map<std::tuple<int32_t, Part, int32_t>, Nanoseconds> compute_;  // key: block, part, rank
};

PartTimes estimated(const PlacementRecord& record, const PlacementRates& rates) {
  const DeviceLoads loads = {record.computed, record.received};
  const double copies = shadow_copies(Placement::decode(record.bounds, record.in_force), rates);
  PartTimes times{};
  for (const Part part : {kThere, kBack, kGradThere, kGradBack}) times[part] = a2a_s(loads, rates);
  times[kForward] = fec_s(loads, rates);
  times[kBackward] = bec_s(loads, rates);
  times[kCopies] = trans_s(copies, record.bounds.devices, rates);
  times[kGradients] = agg_s(copies, record.bounds.devices, rates);
  return times;
}

void set_mean(ModelError& error, bool without_first) {
  for (const ModelSample& sample : error.samples) {
    if (sample.real_s <= 0 || (without_first && sample.step == 0)) continue;
    error.mean += std::abs(sample.estimated_s - sample.real_s) / sample.real_s;
    ++error.count;
  }
  if (error.count > 0) error.mean /= static_cast<double>(error.count);
}

}  // namespace

ModelErrors planner_errors(const Plan& plan, const RunResult& result) {
  std::map<int64_t, PlacementRates> rates;  // key: block
  for (const OpId id : plan.graph.op_ids()) {
    if (plan.graph.def(id).moe != MoeOp::kPlace) continue;
    rates[plan.graph.op(id).layer] = ops::placement_rates(plan.graph.op(id));
  }
  const size_t steps = result.placements.size();
  MOE_CHECK(
      steps == 0 || steps == result.timelines.size(),
      "the result has placements for {} steps, but timelines for {}; the numbers must be equal",
      steps, result.timelines.size());
  ModelErrors errors;
  for (size_t step = 0; step < steps; ++step) {
    const auto real = StepTimes(plan.graph, result.timelines[step]).by_block();
    for (const PlacementRecord& record : result.placements[step]) {
      MOE_CHECK(
          rates.contains(record.layer) && real.contains(record.layer),
          "step {}: block {} has a placement, so it must have a place op in the plan and spans in "
          "the timeline",
          step, record.layer);
      const PartTimes estimates = estimated(record, rates.at(record.layer));
      for (size_t part = 0; part < kNumParts; ++part) {
        const bool transfers = part == kCopies || part == kGradients;
        if (transfers && estimates[part] == 0) continue;
        const auto& [op, phase] = kOpOf[part];
        errors[static_cast<size_t>(op)].samples.push_back(
            {step, record.layer, phase, estimates[part], real.at(record.layer)[part]});
      }
    }
  }
  for (ModelError& error : errors) set_mean(error, steps > 1);
  return errors;
}

}  // namespace moe
