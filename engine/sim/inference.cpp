#include "engine/sim/inference.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "engine/base/stop.h"
#include "engine/network/closed_form.h"

namespace moe {
namespace {

struct NamedSystem {
  const char* name;
  InferenceSystem system;
};
constexpr NamedSystem kSystems[] = {{"baseline", InferenceSystem::kBaseline},
                                    {"ideal", InferenceSystem::kIdeal},
                                    {"lina", InferenceSystem::kLina},
                                    {"no_estimation", InferenceSystem::kNoEstimation},
                                    {"no_fine_tuning", InferenceSystem::kNoFineTuning}};

Loads balanced_loads(const RoutingQuery& query) {
  Loads loads(query.ranks, query.experts);
  const int64_t choices = query.tokens * query.k;
  const int64_t each = choices / query.experts, more = choices % query.experts;
  for (int64_t rank = 0; rank < query.ranks; ++rank) {
    for (int64_t e = 0; e < query.experts; ++e) loads.at(rank, e) = each;
    for (int64_t i = 0; i < more; ++i) ++loads.at(rank, (rank * more + i) % query.experts);
  }
  return loads;
}

/// A placement of one layer and when the devices have its weights.
struct Mapping {
  Placement placement;
  std::vector<double> wanted;        // phase 1's n_e; empty: no estimate
  Nanoseconds known = 0;             // on every device
  std::vector<Nanoseconds> weights;  // [devices]
};

class InferenceRun {
 public:
  InferenceRun(const InferenceTrace& trace, const InferenceSpec& spec)
      : trace_(trace),
        spec_(spec),
        query_(trace.spec.first),
        costs_(spec.model, spec.cluster),
        held_(static_cast<size_t>(num_layers()), fixed()) {
    check_sizes();
  }

  InferenceResult run() {
    InferenceResult result;
    result.num_layers = num_layers();
    for (int64_t batch = 0; batch < trace_.spec.batches; ++batch) {
      check_stop();
      result.batch_ns.push_back(run_batch(batch, result.layers));
    }
    return result;
  }

 private:
  int64_t num_layers() const { return static_cast<int64_t>(costs_.layers().size()); }
  Placement fixed() const { return fixed_mapping(query_.experts, query_.ranks, spec_.place); }
  bool estimates() const {
    return spec_.system == InferenceSystem::kLina || spec_.system == InferenceSystem::kNoFineTuning;
  }

  void check_sizes() const {
    const struct {
      const char* name;
      int64_t of_trace, of_model;
    } sizes[] = {{"ranks", query_.ranks, spec_.cluster.num_devices()},
                 {"tokens", query_.tokens, spec_.model.batch_per_device * spec_.model.seq},
                 {"experts", query_.experts, spec_.model.experts},
                 {"k", query_.k, gate_spec(spec_.model).k},
                 {"layers", trace_.spec.layers, num_layers()}};
    for (const auto& size : sizes) {
      if (size.of_trace == size.of_model) continue;
      throw user_error("inference.trace.{} = {}, but the model on this cluster has {}", size.name,
                       size.of_trace, size.of_model);
    }
  }

  Nanoseconds run_batch(int64_t batch, std::vector<InferenceLayer>& layers) {
    Nanoseconds now = 0;
    next_.reset();
    for (int64_t m = 0; m < num_layers(); ++m) {
      at_ = static_cast<size_t>(batch * num_layers() + m);
      now += costs_.layers()[static_cast<size_t>(m)].before;
      layers.push_back(run_layer(m, now));
      now = checked_ns(now + layers.back().layer_ns,
                       [m] { return fmt::format("a batch up to MoE layer {}", m + 1); });
    }
    return checked_ns(now + costs_.after_layers(), [] { return "a batch"; });
  }

  InferenceLayer run_layer(int64_t m, Nanoseconds begin) {
    const InferenceCosts::MoeLayer& cost = costs_.layers()[static_cast<size_t>(m)];
    InferenceLayer layer;
    const Loads loads =
        spec_.system == InferenceSystem::kIdeal ? balanced_loads(query_) : trace_.loads[at_];
    const Nanoseconds gated = begin + cost.gate;
    Mapping mapping = choose(m, gated, loads, layer);
    const PlacementBounds& bounds = mapping.placement.bounds();
    const std::vector<int64_t> rows = rows_by_slot(mapping.placement, loads);
    const InferenceCosts::Exchanges exchange = costs_.exchanges(bounds, rows);
    const Nanoseconds arrived = gated + layer.phase2_ns + cost.dispatch + exchange.dispatch;
    std::vector<Nanoseconds> ready(mapping.weights.size(), arrived);
    const Nanoseconds unhindered = costs_.experts_end_ns(bounds, rows, ready);
    for (size_t d = 0; d < ready.size(); ++d) ready[d] = std::max(arrived, mapping.weights[d]);
    const Nanoseconds computed = costs_.experts_end_ns(bounds, rows, ready);
    const Nanoseconds back = computed + exchange.combine;
    layer.a2a_ns = exchange.dispatch + exchange.combine;
    layer.expert_ns = computed - arrived;
    layer.swap_wait_ns = computed - unhindered;
    layer.layer_ns = back + cost.combine - begin;
    held_[static_cast<size_t>(m)] = std::move(mapping.placement);
    next_.reset();
    if (estimates() && m + 1 < num_layers()) expect(m + 1, arrived, computed, back);
    return layer;
  }

  /// Phase 1 for layer m, from what was chosen so far: on one device from the end of the first
  /// all-to-all, which brings it the estimates. The mapping goes with the second one, or by a
  /// broadcast of its own where it comes too late; then weights follow.
  void expect(int64_t m, Nanoseconds arrived, Nanoseconds computed, Nanoseconds back) {
    const Estimate& estimate = trace_.estimates[at_ + 1];
    if (estimate.mass.empty()) return;
    std::vector<double> wanted = wanted_devices(estimate, query_.ranks, spec_.normalise);
    Placement placement = place_by_popularity(wanted, query_.ranks, spec_.place);
    const Nanoseconds placed = arrived + spec_.times.place_ns;
    Nanoseconds known = back;
    if (placed > computed) {
      const auto bytes = static_cast<double>(placement.codes().size_bytes());
      known = std::max(back, placed) + broadcast_ns(spec_.cluster, bytes);
    }
    std::vector<Nanoseconds> weights(static_cast<size_t>(query_.ranks), known);
    next_ = Mapping{std::move(placement), std::move(wanted), known, std::move(weights)};
    bring(m, nullptr, *next_);
  }

  /// The layer's mapping after phase 2.
  Mapping choose(int64_t m, Nanoseconds gated, const Loads& loads, InferenceLayer& layer) {
    const std::vector<Nanoseconds> at_once(static_cast<size_t>(query_.ranks), 0);
    if (spec_.system == InferenceSystem::kNoEstimation) {
      layer.phase2_ns = spec_.times.rerun_ns;
      layer.rerun = true;
      return place_again(m, gated + layer.phase2_ns, loads, nullptr, layer);
    }
    if (!next_) return {fixed(), {}, 0, at_once};
    Mapping expected = std::move(*next_);
    layer.estimated = true;
    layer.held = estimate_holds(expected.wanted, counts_of(loads), query_.k, spec_.compare);
    layer.mapping_wait_ns = std::max<Nanoseconds>(0, expected.known - gated);
    layer.phase2_ns = layer.mapping_wait_ns;
    if (spec_.system == InferenceSystem::kLina) {
      layer.rerun = !layer.held;
      layer.phase2_ns += layer.held ? spec_.times.resume_ns : spec_.times.rerun_ns;
    }
    layer.swapped = copies(m, nullptr, expected.placement);
    if (!layer.rerun) return expected;
    return place_again(m, gated + layer.phase2_ns, loads, &expected, layer);
  }

  Mapping place_again(int64_t m, Nanoseconds known, const Loads& loads, const Mapping* expected,
                      InferenceLayer& layer) {
    const auto wanted = moe::wanted_devices(counts_of(loads), query_.ranks);
    Mapping mapping{place_by_popularity(wanted, query_.ranks, spec_.place), wanted, known, {}};
    mapping.weights.assign(static_cast<size_t>(query_.ranks), known);
    if (expected != nullptr) {
      for (size_t d = 0; d < mapping.weights.size(); ++d) {
        mapping.weights[d] = std::max(known, expected->weights[d]);
      }
    }
    const Placement* brought = expected == nullptr ? nullptr : &expected->placement;
    layer.swapped += copies(m, brought, mapping.placement);
    bring(m, brought, mapping);
    return mapping;
  }

  std::vector<int64_t> counts_of(const Loads& loads) const {
    std::vector<int64_t> counts;
    for (int64_t e = 0; e < loads.experts; ++e) counts.push_back(loads.of_expert(e));
    return counts;
  }

  /// Experts that a device of `next` has neither from the last batch nor by `brought`.
  int64_t copies_to(int64_t device, int64_t m, const Placement* brought,
                    const Placement& next) const {
    const Placement& held = held_[static_cast<size_t>(m)];
    int64_t count = 0;
    for (int64_t s = 0; s < next.bounds().slots(); ++s) {
      const int64_t e = next.at(device, s);
      const bool here =
          e < 0 || held.holds(device, e) || (brought != nullptr && brought->holds(device, e));
      count += here ? 0 : 1;
    }
    return count;
  }
  int64_t copies(int64_t m, const Placement* brought, const Placement& next) const {
    int64_t count = 0;
    for (int64_t d = 0; d < query_.ranks; ++d) count += copies_to(d, m, brought, next);
    return count;
  }
  /// Adds the time of a device's copies from its host to mapping.weights.
  void bring(int64_t m, const Placement* brought, Mapping& mapping) const {
    const auto bytes = static_cast<double>(costs_.expert_bytes());
    const double each = std::ceil(bytes * kNsPerSecond / spec_.times.host_bytes_per_s);
    for (int64_t d = 0; d < query_.ranks; ++d) {
      const auto count = static_cast<double>(copies_to(d, m, brought, mapping.placement));
      mapping.weights[static_cast<size_t>(d)] += checked_ns(each * count, [&] {
        return fmt::format("copying {} experts of {:g} bytes with host_bytes_per_s = {:g}", count,
                           bytes, spec_.times.host_bytes_per_s);
      });
    }
  }

  const InferenceTrace& trace_;
  const InferenceSpec& spec_;
  RoutingQuery query_;
  InferenceCosts costs_;
  std::vector<Placement> held_;  // [layers], from the last batch
  size_t at_ = 0;                // [batches, layers], the one that runs
  std::optional<Mapping> next_;  // of the layer to come
};

void check(const ScheduleTimes& times) {
  for (const auto& [name, ns] : {std::pair("place", times.place_ns),
                                 {"resume", times.resume_ns},
                                 {"rerun", times.rerun_ns}}) {
    checked_ns(ns, [name] { return fmt::format("inference.{}_ms:", name); });
  }
  if (!(times.host_bytes_per_s >= 1)) {
    throw user_error("inference.host_bytes_per_s = {}, allowed: at least 1",
                     times.host_bytes_per_s);
  }
}

}  // namespace

InferenceSystem inference_system(const std::string& name) {
  std::vector<std::string> names;
  for (const NamedSystem& known : kSystems) {
    if (name == known.name) return known.system;
    names.emplace_back(known.name);
  }
  throw UserError(unknown_name("inference system", name, std::move(names)));
}

ScheduleTimes closed_form_times(const Cluster& cluster, int64_t experts, Nanoseconds place_ns,
                                double host_bytes_per_s, const TwoPhaseOptions& place) {
  const Placement mapping = fixed_mapping(experts, cluster.num_devices(), place);
  const Nanoseconds counts = broadcast_ns(cluster, static_cast<double>(experts) * 4);
  return {.place_ns = place_ns,
          .resume_ns = counts + broadcast_ns(cluster, 8),
          .rerun_ns = counts + place_ns +
                      broadcast_ns(cluster, static_cast<double>(mapping.codes().size_bytes())),
          .host_bytes_per_s = host_bytes_per_s};
}

InferenceResult simulate_inference(const InferenceTrace& trace, const InferenceSpec& spec) {
  check(spec.times);
  return InferenceRun(trace, spec).run();
}

Nanoseconds percentile(std::vector<Nanoseconds> samples, double share) {
  MOE_CHECK(!samples.empty() && share > 0 && share <= 1, "share {} of {}", share, samples.size());
  const double rank = std::ceil(share * static_cast<double>(samples.size()) - 1e-9);
  const auto at = samples.begin() + static_cast<ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

}  // namespace moe
