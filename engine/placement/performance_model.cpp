#include "engine/placement/performance_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/errors.h"

namespace moe {
namespace {

void check_rate(const char* who, const char* field, double value, bool above_zero) {
  const bool fits = std::isfinite(value) && (above_zero ? value > 0 : value >= 0);
  if (!fits) {
    throw user_error("{}.{} = {}, allowed: a number {} 0", who, field, value,
                     above_zero ? "above" : "of at least");
  }
}

double most(std::span<const int64_t> values) {
  return static_cast<double>(*std::max_element(values.begin(), values.end()));
}

double copies_s(double copies, int64_t devices, const PlacementRates& rates) {
  return copies * rates.expert_bytes / (static_cast<double>(devices) * copy_rate(rates));
}

double resident_sum_s(const Placement& placement, const PlacementRates& rates) {
  const PlacementBounds& b = placement.bounds();
  std::vector<double> residents(static_cast<size_t>(b.experts));
  const auto each = [&](const auto& body) {
    for (int64_t d = 0; d < b.devices; ++d) {
      for (int64_t s = 0; s < b.residents; ++s) {
        if (placement.at(d, s) >= 0) body(d, static_cast<size_t>(placement.at(d, s)));
      }
    }
  };
  each([&](int64_t, size_t expert) { residents[expert] += 1; });
  std::vector<double> bytes(static_cast<size_t>(b.devices));
  each([&](int64_t device, size_t expert) {
    const double r = residents[expert];
    bytes[static_cast<size_t>(device)] += 2 * (r - 1) / r * rates.expert_bytes;
  });
  return *std::max_element(bytes.begin(), bytes.end()) / copy_rate(rates);
}

}  // namespace

void check(const PlacementRates& rates, const char* who) {
  check_rate(who, "input_bytes", rates.input_bytes, false);
  check_rate(who, "expert_bytes", rates.expert_bytes, false);
  check_rate(who, "state_bytes", rates.state_bytes, false);
  check_rate(who, "a2a_bytes_per_s", rates.a2a_bytes_per_s, true);
  check_rate(who, "copy_bytes_per_s", rates.copy_bytes_per_s, false);
  check_rate(who, "inputs_per_s", rates.inputs_per_s, true);
  check_rate(who, "fnec_s", rates.forward_other_s, false);
  check_rate(who, "bnec_s", rates.backward_other_s, false);
  check_fields(rates, who);
}

double copy_rate(const PlacementRates& rates) {
  return rates.copy_bytes_per_s > 0 ? rates.copy_bytes_per_s : rates.a2a_bytes_per_s;
}

void CopyCount::add(int64_t owner, int64_t copies) {
  double& of_group = of_group_[static_cast<size_t>(owner / group_)];
  of_group += static_cast<double>(copies);
  all_ += static_cast<double>(copies);
  busiest_ = std::max(busiest_, of_group);
}

double shadow_copies(const Placement& placement, const PlacementRates& rates) {
  const PlacementBounds& b = placement.bounds();
  std::vector<bool> owner_counted(static_cast<size_t>(b.experts));
  CopyCount count(b.devices, rates);
  for (const Move& move : shadow_moves(placement)) {
    count.add(move.from, owner_counted[static_cast<size_t>(move.expert)] ? 1 : 2);
    owner_counted[static_cast<size_t>(move.expert)] = true;
  }
  return count.weighted();
}

double a2a_s(const DeviceLoads& loads, const PlacementRates& rates) {
  return most(loads.received) * rates.input_bytes / rates.a2a_bytes_per_s;
}

double fec_s(const DeviceLoads& loads, const PlacementRates& rates) {
  return most(loads.computed) / rates.inputs_per_s;
}

double bec_s(const DeviceLoads& loads, const PlacementRates& rates) {
  return 2 * fec_s(loads, rates);
}

double trans_s(double copies, int64_t devices, const PlacementRates& rates) {
  return copies_s(copies, devices, rates);
}

double agg_s(double copies, int64_t devices, const PlacementRates& rates) {
  return copies_s(copies, devices, rates);  // gradients have the size of the parameters
}

double layer_s(TimeEquation equation, const DeviceLoads& loads, double copies,
               const PlacementRates& rates, std::optional<double> experts_before_s) {
  const auto devices = static_cast<int64_t>(loads.computed.size());
  double trans = trans_s(copies, devices, rates), agg = agg_s(copies, devices, rates);
  if (equation == TimeEquation::kHidden) {
    const double beside = experts_before_s.value_or(fec_s(loads, rates));
    trans = std::max(0.0, trans - beside - rates.forward_other_s);   // T_PTrans
    agg = std::max(0.0, agg - 2 * beside - rates.backward_other_s);  // T_PAgg; 2 as in (3)
  }
  return 4 * a2a_s(loads, rates) + 3 * fec_s(loads, rates) + trans + agg;
}

bool is_balanced(std::span<const int64_t> computed, double alpha) {
  const auto [least, greatest] = std::minmax_element(computed.begin(), computed.end());
  double inputs = 0;
  for (const int64_t h : computed) inputs += static_cast<double>(h);
  const double mean = inputs / static_cast<double>(computed.size());
  return inputs == 0 || static_cast<double>(*greatest - *least) < alpha * mean;
}

double balance_degree(std::span<const int64_t> computed) {
  const auto n = static_cast<double>(computed.size());
  double sum = 0, squares = 0;
  for (const int64_t h : computed) sum += static_cast<double>(h);
  for (const int64_t h : computed) {
    const double off = static_cast<double>(h) - sum / n;
    squares += off * off;
  }
  return std::sqrt(squares / n);
}

double balance_ratio(std::span<const int64_t> before, std::span<const int64_t> after) {
  const double was = balance_degree(before), is = balance_degree(after);
  if (is > 0) return was / is;
  return was > 0 ? std::numeric_limits<double>::infinity() : 1;
}

double placement_s(TimeEquation equation, const Placement& placement, const ExpertCounts& loads,
                   const PlacementRates& rates, std::optional<double> experts_before_s) {
  return layer_s(equation, device_loads(placement, loads), shadow_copies(placement, rates), rates,
                 experts_before_s) +
         resident_sum_s(placement, rates);
}

double move_s(const Placement& now, const Placement& next, const PlacementRates& rates) {
  const auto devices = static_cast<size_t>(now.bounds().devices);
  std::vector<int64_t> sent(devices), received(devices);
  for (const Move& move : resident_moves(now, next)) {
    if (move.from == move.to) continue;
    ++sent[static_cast<size_t>(move.from)];
    ++received[static_cast<size_t>(move.to)];
  }
  const double experts = std::max(most(sent), most(received));
  return experts * (rates.expert_bytes + rates.state_bytes) / copy_rate(rates);
}

double break_even_steps(double move_seconds, double gain_seconds_per_step) {
  if (move_seconds <= 0 && gain_seconds_per_step >= 0) return 0;
  if (gain_seconds_per_step <= 0) return std::numeric_limits<double>::infinity();
  return move_seconds / gain_seconds_per_step;
}

}  // namespace moe
