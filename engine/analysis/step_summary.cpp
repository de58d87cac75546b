#include "engine/analysis/step_summary.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

#include "engine/base/errors.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// Sets the members of `out` to their means over the steps; of(step) is the struct in a step that
/// `out` is the mean of.
template <class S, class Of>
void set_means(S& out, const std::vector<Metrics>& steps, const std::vector<size_t>& counted,
               const Of& of) {
  for_each_row<S>([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      auto& mean = out.*row.member;
      const auto member = [&](const Metrics& step) { return of(step).*row.member; };
      if constexpr (HasFields<std::remove_reference_t<decltype(mean)>>) {
        set_means(mean, steps, counted, member);
      } else {
        TimeSum sum;
        for (const size_t i : counted) sum += member(steps[i]);
        mean = sum.mean(static_cast<Nanoseconds>(counted.size()), [] { return "a step"; });
      }
    }
  });
}

}  // namespace

size_t median_step(const std::vector<Metrics>& steps) {
  std::vector<std::pair<Nanoseconds, size_t>> order;
  for (size_t i = 0; i < steps.size(); ++i) order.emplace_back(steps[i].makespan_ns, i);
  std::sort(order.begin(), order.end());
  return order.at((order.size() - 1) / 2).second;
}

std::vector<size_t> counted_steps(const std::vector<Metrics>& steps, std::string_view statistic) {
  if (statistic == "median") return {median_step(steps)};
  if (statistic != "mean" && statistic != "mean_after_first") {
    throw user_error("simulate.statistic: '{}' is none of mean, mean_after_first, median",
                     statistic);
  }
  const size_t first = statistic == "mean" || steps.size() == 1 ? 0 : 1;
  std::vector<size_t> counted(steps.size() - first);
  std::iota(counted.begin(), counted.end(), first);
  return counted;
}

Metrics mean_metrics(const std::vector<Metrics>& steps, const std::vector<size_t>& counted) {
  Metrics mean;
  set_means(mean, steps, counted, [](const Metrics& step) { return step; });
  return mean;
}

Nanoseconds forward_end_ns(const Graph& graph, const Timeline& timeline) {
  Nanoseconds end = 0;
  for (const Span& span : timeline.spans) {
    if (graph.op(span.op).phase == Phase::kForward) end = std::max(end, span.end);
  }
  return end;
}

std::map<std::string, TimeSum> ops_alone(const Graph& graph, const CostModel& cost) {
  std::map<std::string, TimeSum> sums;
  for (const OpId id : graph.op_ids()) {
    const OpDef& def = graph.def(id);
    const Op& op = graph.op(id);
    const bool again = op.phase == Phase::kRecompute;
    const char* const key = again ? name_of(op.phase) : name_of(op.segment);
    sums[def.lane == LaneKind::kComm ? def.name : key] += cost.op_ns(graph, id);
  }
  return sums;
}

MeasuredShares measured_shares(const Graph& graph, const CostModel& cost) {
  double all = 0;
  MeasuredShares shares;
  for (const OpId id : graph.op_ids()) {
    const auto ns = static_cast<double>(cost.op_ns(graph, id));
    const TimeSource source = cost.time_source(graph, id);
    all += ns;
    if (source == TimeSource::kMeasured) shares.measured += ns;
    if (source == TimeSource::kExtrapolated) shares.extrapolated += ns;
  }
  if (all > 0) shares = {shares.measured / all, shares.extrapolated / all};
  return shares;
}

std::string padded_rows(const Graph& graph) {
  std::string sent, computed;
  for (const OpId id : graph.op_ids()) {
    const OpDef& def = graph.def(id);
    if (def.only_used_rows != nullptr && def.only_used_rows(graph.op(id))) continue;
    if (def.payload == Payload::kRows) sent = "send";
    if (def.moe == MoeOp::kExpertProduct) computed = "compute";
  }
  return sent + (sent.empty() || computed.empty() ? "" : " and ") + computed;
}

MicroOpTimes micro_op_times(const Graph& graph, const CostModel& cost) {
  std::map<std::pair<int32_t, int32_t>, TimeSum> a2a, ffn;  // by layer and part
  for (const OpId id : graph.op_ids()) {
    const Op& op = graph.op(id);
    if (op.phase != Phase::kForward) continue;
    const bool sends = graph.def(id).collective == Collective::kAllToAll;
    if (sends && op.segment == Segment::kDispatch) {
      a2a[{op.layer, op.part}] += cost.op_ns(graph, id);
    }
    if (op.segment == Segment::kExpert) ffn[{op.layer, op.part}] += cost.op_ns(graph, id);
  }
  const auto mean_ms = [](const auto& times) {
    TimeSum all;
    for (const auto& [key, sum] : times) all += sum;
    return times.empty() ? 0.0 : all.ms() / static_cast<double>(times.size());
  };
  return {mean_ms(a2a), mean_ms(ffn), ffn.size()};
}

}  // namespace moe
