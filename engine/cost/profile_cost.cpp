#include <algorithm>
#include <chrono>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/profile_cache.h"

namespace moe {

ProfileCost::ProfileCost(std::shared_ptr<ProfileCache> cache, std::string key_prefix,
                         Measure measure, const Cluster* link, WorkContext context,
                         MeasureHandoff measure_handoff)
    : cache_(std::move(cache)),
      key_prefix_(std::move(key_prefix)),
      measure_(std::move(measure)),
      has_link_(link != nullptr),
      link_(link != nullptr ? *link : Cluster()),
      context_(context),
      rounded_{.fill = std::round(context.fill * 1000) / 1000},
      measure_handoff_(std::move(measure_handoff)) {
  if (has_link_) check(link_);
}

template <class F>
Nanoseconds ProfileCost::median_of(const std::string& signature, const F& measure) const {
  const auto known = seen_.find(signature);
  if (known != seen_.end()) return known->second;
  const std::string key = key_prefix_ + " | " + signature;
  std::optional<std::vector<Nanoseconds>> samples = cache_->find(key);
  if (!samples) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    samples = measure();
    measuring_ns_ += std::chrono::nanoseconds(Clock::now() - begin).count();
    ++num_measured_;
    MOE_CHECK(!samples->empty(), "no samples of '{}'", signature);
    cache_->store(key, *samples);
  }
  return seen_.emplace(signature, median(std::move(*samples))).first->second;
}

std::pair<std::string, WorkContext> ProfileCost::signature_of(const Graph& graph, OpId op) const {
  std::string signature = op_signature(graph, op);
  if (!work_follows_fill(graph, op)) return {std::move(signature), {}};
  return {signature + fmt::format(" fill={:g}", rounded_.fill), rounded_};
}

Nanoseconds ProfileCost::alone_ns(const Graph& graph, OpId op) const {
  const auto [signature, context] = signature_of(graph, op);
  return median_of(signature, [&, &with = context] { return measure_(graph, op, with); });
}

void ProfileCost::time_again(const Graph& graph, OpId op) const {
  const Nanoseconds before = alone_ns(graph, op);
  const auto [signature, context] = signature_of(graph, op);
  const std::vector<Nanoseconds> samples = measure_(graph, op, context);
  ++num_measured_;
  if (median(samples) >= before) return;
  cache_->store(key_prefix_ + " | " + signature, samples);
  seen_[signature] = median(samples);
}

Nanoseconds ProfileCost::handoff_ns() const {
  return measure_handoff_ ? median_of("handoff", measure_handoff_) : 0;
}

Nanoseconds ProfileCost::op_ns(const Graph& graph, OpId op) const {
  if (is_view(graph, graph.op(op))) return 0;
  Nanoseconds ns = alone_ns(graph, op);
  const bool collective = graph.def(op).collective != Collective::kNone;
  if (collective && has_link_) ns = std::max(ns, collective_ns(link_, graph, op, context_));
  if (!in_step_) return ns;
  const std::string group = step_group(graph, op);
  if (!collective) return in_step_->of_compute(group, ns);
  return in_step_->of_collective(group, payload_bytes(graph, op, context_), ns);
}

CoreSharing ProfileCost::sharing(const Graph& graph, OpId op) const {
  const bool collective = graph.def(op).collective != Collective::kNone;
  if (!in_step_ || in_step_->core_ns == 0 || !collective) return {};
  return {alone_ns(graph, op) + in_step_->core_ns, in_step_->core_late_ns};
}

std::optional<NetworkOp> ProfileCost::transfer(const Graph& graph, OpId op) const {
  if (!has_link_) return std::nullopt;
  return transfer_on(link_, graph, op, context_);
}

std::string ProfileCost::describe() const {
  return fmt::format(
      "profile of {}; collectives {}{}", key_prefix_,
      has_link_ ? "by closed form on " + link_.name + ", at least as profiled" : "as profiled",
      in_step_ ? "; " + in_step_->describe() : "");
}

}  // namespace moe
