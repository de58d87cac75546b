#include <algorithm>
#include <chrono>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/base/limits.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/profile_cache.h"

namespace moe {
namespace {

/// Returns the fill to three digits, as in cache keys.
double rounded(double fill) {
  return std::stod(fmt::format("{:.3g}", fill));
}

/// Returns the slot occupancy at which packed rows of the op (Tensor::stored_rows) fill their
/// storage, to three digits; 1 if its rows are not packed.
double full_occupancy(const Graph& graph, const Op& op) {
  double full = 1;
  for (const auto* list : {&op.inputs, &op.outputs}) {
    for (const TensorId t : *list) {
      if (!t.valid() || graph.tensor(t).stored_rows == 0) continue;
      const Tensor& rows = graph.tensor(t);
      const double slots = static_cast<double>(num_elements(rows.shape)) /
                           static_cast<double>(rows.dtype == DType::kI32 ? 1 : rows.shape.back()) *
                           op.rows.occupancy;
      full = std::min(full, static_cast<double>(rows.stored_rows) / slots);
    }
  }
  return rounded(full);
}

/// Returns the fills of the blocks, or of packed rows the fills of slots, each with the weight 1.
std::vector<std::pair<double, double>> weights_of(const BlockFills& blocks, bool packed) {
  const size_t n = packed ? index(blocks.sources) : 1;
  std::vector<std::pair<double, double>> weights;
  for (size_t b = 0; b < blocks.fills.size(); b += n) {
    double sum = 0;
    for (size_t i = b; i < b + n; ++i) sum += blocks.fills[i];
    weights.emplace_back(sum / static_cast<double>(n), 1.0);
  }
  return weights;
}

/// Whether samples of a new measurement are better than those with the median `before`.
bool replaces(const Samples& samples, Nanoseconds before, bool before_disturbed) {
  return median(samples.ns) < before || (before_disturbed && !samples.disturbed);
}

/// Returns the largest slot occupancy that an op can have. With a placement it can be above 1: a
/// compute op gets more rows than its expected share of slots (attribute occupancy), and the
/// fullest rank of a collective receives at most the rows of all members.
double most_occupancy(const Graph& graph, OpId op) {
  if (graph.def(op).collective != Collective::kNone) {
    return static_cast<double>(group_of(graph, graph.op(op)).size);
  }
  return 1 / graph.op(op).rows.occupancy;
}

}  // namespace

ProfileCost::ProfileCost(std::shared_ptr<ProfileCache> cache, std::string key_prefix,
                         Measure measure, const Cluster* link, WorkContext context,
                         MeasureHandoff measure_handoff, Quiet quiet)
    : cache_(std::move(cache)),
      key_prefix_(std::move(key_prefix)),
      measure_(std::move(measure)),
      has_link_(link != nullptr),
      link_(link != nullptr ? *link : Cluster()),
      context_(context),
      slot_occupancy_(rounded(context.slot_occupancy)),
      measure_handoff_(std::move(measure_handoff)),
      quiet_(std::move(quiet)) {
  if (has_link_) check(link_);
}

Nanoseconds ProfileCost::keep(const std::string& signature, const Samples& samples,
                              bool measured) const {
  MOE_CHECK(!samples.ns.empty(), "measuring '{}' must give at least 1 sample, but gave none",
            signature);
  if (measured) cache_->store(key_prefix_ + " | " + signature, samples);
  disturbed_.erase(signature);
  if (samples.disturbed) disturbed_.insert(signature);
  return seen_[signature] = median(samples.ns);
}

template <class F>
Nanoseconds ProfileCost::median_of(const std::string& signature, Nanoseconds least,
                                   const F& measure) const {
  const auto known = seen_.find(signature);
  if (known != seen_.end()) return known->second;
  const std::optional<Samples> stored = cache_->find(key_prefix_ + " | " + signature, least);
  if (stored && !(stored->disturbed && quiet_ && quiet_())) return keep(signature, *stored, false);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const Samples samples = measure();
  measuring_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
  ++num_measured_;
  const bool better = !stored || replaces(samples, median(stored->ns), stored->disturbed);
  return keep(signature, better ? samples : *stored, better);
}

std::pair<std::string, WorkContext> ProfileCost::signature_of(const Graph& graph, OpId op,
                                                              double fill) const {
  std::string signature = op_signature(graph, op);
  if (!work_follows_occupancy(graph, op)) return {std::move(signature), {}};
  if (!counts_blocks(graph, graph.op(op))) {
    return {signature + fmt::format(" fill={:g}", fill), {.slot_occupancy = fill}};
  }
  return {signature + fmt::format(" each block={:g}", fill),
          {.slot_occupancy = fill / graph.op(op).rows.occupancy}};
}

Nanoseconds ProfileCost::measured_ns(const Graph& graph, OpId op, double fill) const {
  const auto [signature, context] = signature_of(graph, op, fill);
  const Nanoseconds least = graph.def(op).collective == Collective::kNone ? 1 : 0;
  return checked_ns(
      median_of(signature, least, [&, &with = context] { return measure_(graph, op, with); }),
      [&] { return fmt::format("op '{}', as measured,", graph.op(op).name); });
}

std::vector<double> ProfileCost::fills_of(const Graph& graph, OpId id) const {
  const Op& op = graph.op(id);
  std::vector<double> fills = {0, 0.25, 0.5, 0.75, 1, slot_occupancy_};
  if (counts_blocks(graph, op)) {
    fills = timed_fills(graph, op, slot_occupancy_);
    for (double& fill : fills) fill = rounded(fill);
  } else if (const double full = full_occupancy(graph, op); full < 1) {
    fills = {0, rounded(full / 2), full, std::min(slot_occupancy_, full)};
  }
  std::sort(fills.begin(), fills.end());
  fills.erase(std::unique(fills.begin(), fills.end()), fills.end());
  return fills;
}

double ProfileCost::all_filled_ns(const Graph& graph, OpId op, double fill) const {
  const auto taken = static_cast<double>(measured_ns(graph, op, fill));
  if (!counts_blocks(graph, graph.op(op))) return taken;
  const TimedRows timed = timed_rows(graph, graph.op(op), fill);
  if (timed.filled == timed.slots) return taken;
  const auto empty = static_cast<double>(measured_ns(graph, op, 0));
  const double slots = static_cast<double>(timed.slots) / static_cast<double>(timed.filled);
  return empty + (taken - empty) * slots;
}

double ProfileCost::mean_ns(const Graph& graph, OpId op,
                            const std::vector<std::pair<double, double>>& weights) const {
  const std::vector<double> fills = fills_of(graph, op);
  std::vector<double> shares(fills.size());
  double all = 0;
  for (const auto& [fill, weight] : weights) {
    all += weight;
    // Beyond the last fill the last segment is extended.
    const auto above = std::lower_bound(fills.begin() + 1, fills.end() - 1, fill);
    const double up = (fill - *(above - 1)) / (*above - *(above - 1));
    shares[index(above - fills.begin())] += weight * up;
    shares[index(above - fills.begin()) - 1] += weight * (1 - up);
  }
  double ns = 0;
  for (size_t i = 0; i < fills.size(); ++i) {
    if (shares[i] != 0) ns += all_filled_ns(graph, op, fills[i]) * shares[i] / all;
  }
  return std::max(ns, 0.0);
}

Nanoseconds ProfileCost::alone_ns(const Graph& graph, OpId id, const RoutedWork& routed) const {
  const Op& op = graph.op(id);
  if (!work_follows_occupancy(graph, id)) return measured_ns(graph, id, slot_occupancy_);
  const double most = most_occupancy(graph, id);
  double fill = routed.work.slot_occupancy;
  MOE_CHECK(fill >= 0 && fill <= most * (1 + 1e-9),
            "op '{}': the slot occupancy is {}, but must be from 0 to {}", op.name, fill, most);
  if (rounded(fill) == slot_occupancy_) fill = slot_occupancy_;
  std::vector<std::pair<double, double>> weights = {{fill, 1.0}};
  if (counts_blocks(graph, op) && routed.blocks != nullptr) {
    weights = weights_of(*routed.blocks, graph.tensor(op.inputs[0]).stored_rows > 0);
  } else if (counts_blocks(graph, op)) {
    // As without copies of experts: the slots of copies are empty.
    const double holds = std::min(1.0, op.rows.occupancy * std::max(1.0, fill));
    weights = {{std::min(1.0, fill), holds}, {0, 1 - holds}};
  }
  return checked_ns(mean_ns(graph, id, weights), [&] {
    return fmt::format("op '{}', as measured, with a slot_occupancy of {:g}", op.name,
                       routed.work.slot_occupancy);
  });
}

void ProfileCost::time_again(const Graph& graph, OpId op) const {
  const Nanoseconds before = measured_ns(graph, op, slot_occupancy_);
  const auto [signature, context] = signature_of(graph, op, slot_occupancy_);
  const Samples samples = measure_(graph, op, context);
  ++num_measured_;
  if (replaces(samples, before, disturbed_.contains(signature))) keep(signature, samples, true);
}

Nanoseconds ProfileCost::handoff_ns() const {
  return measure_handoff_ ? median_of("handoff", 0, measure_handoff_) : 0;
}

Nanoseconds ProfileCost::routed_ns(const Graph& graph, OpId op, const RoutedWork& routed) const {
  if (is_view(graph, graph.op(op))) return 0;
  Nanoseconds ns = alone_ns(graph, op, routed);
  const bool collective = graph.def(op).collective != Collective::kNone;
  const Nanoseconds link = collective && has_link_ ? collective_ns(link_, graph, op, routed) : 0;
  ns = std::max(ns, link);
  if (!in_step_ && collective) return ns;
  if (!in_step_) {
    return checked_ns(static_cast<double>(ns) * slower_,
                      [&] { return fmt::format("op '{}' alone", graph.op(op).name); });
  }
  const std::string group = step_group(graph, op);
  if (!collective) return in_step_->of_compute(group, ns);
  const double bytes = payload_bytes(graph, op, routed.work);
  return std::max(link, in_step_->of_collective(group, bytes, ns));
}

CoreSharing ProfileCost::sharing(const Graph& graph, OpId op) const {
  const bool collective = graph.def(op).collective != Collective::kNone;
  if (!collective) return {};
  CoreSharing sharing;
  if (in_step_ && in_step_->core_ns > 0) {
    sharing.taken = alone_ns(graph, op, {context_}) + in_step_->core_ns;
    sharing.late = in_step_->core_late_ns;
  }
  if (overlap_) sharing.slowdown = overlap_->at(blocks_);
  return sharing;
}

void ProfileCost::set_overlap(OverlapTable table, int32_t blocks) {
  overlap_ = std::move(table);
  blocks_ = blocks;
}

std::optional<NetworkOp> ProfileCost::transfer(const Graph& graph, OpId op) const {
  if (!has_link_) return std::nullopt;
  return transfer_on(link_, graph, op, {context_});
}

std::string ProfileCost::describe() const {
  std::string text = fmt::format(
      "profile of {}; collectives {}{}", key_prefix_,
      has_link_ ? "by closed form on " + link_.name + ", at least as profiled" : "as profiled",
      in_step_ ? "; " + in_step_->describe() : "");
  if (overlap_) {
    text +=
        fmt::format("; compute beside transfers of {} blocks, {}", blocks_, overlap_->describe());
  }
  return text;
}

}  // namespace moe
