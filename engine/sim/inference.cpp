#include "engine/sim/inference.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/base/errors.h"
#include "engine/base/names.h"
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

/// All ranks' tokens in one step of a law, layer after layer.
class Tokens {
 public:
  Tokens(const RoutingLaw& law, const RoutingQuery& query, const PathOptions& options)
      : law_(law),
        query_(query),
        paths_(static_cast<size_t>(query.ranks), TokenPaths(options, query.tokens)),
        choices_(static_cast<size_t>(query.ranks)) {
    for (auto& of_rank : choices_) of_rank.resize(static_cast<size_t>(query.tokens * query.k));
  }

  void begin(int64_t step) {
    query_.step = step;
    for (TokenPaths& of_rank : paths_) of_rank.clear();
  }
  /// Choices of the layer; how often each rank chooses each expert.
  Loads route(int64_t layer) {
    query_.layer = layer;
    Loads loads(query_.ranks, query_.experts);
    for (int64_t rank = 0; rank < query_.ranks; ++rank) {
      law_.route(query_, rank, choices_[static_cast<size_t>(rank)]);
      for (const int32_t e : choices_[static_cast<size_t>(rank)]) {
        if (e >= 0) ++loads.at(rank, e);
      }
    }
    return loads;
  }
  /// The layer's choices become part of the paths.
  void go_on() {
    for (size_t rank = 0; rank < paths_.size(); ++rank) paths_[rank].add(choices_[rank], query_.k);
  }
  void count(PathCounts& counts) const {
    for (size_t rank = 0; rank < paths_.size(); ++rank) {
      counts.add(query_.layer, paths_[rank], choices_[rank], query_.k);
    }
  }
  /// Of `layer`, by what was chosen before; every rank's own part, added up.
  Estimate estimate(const PathProfile& profile, int64_t layer) const {
    Estimate sum = profile.estimate(layer, paths_[0]);
    for (size_t rank = 1; rank < paths_.size(); ++rank) {
      sum.add(profile.estimate(layer, paths_[rank]));
    }
    return sum;
  }

 private:
  const RoutingLaw& law_;
  RoutingQuery query_;
  std::vector<TokenPaths> paths_;              // [ranks]
  std::vector<std::vector<int32_t>> choices_;  // [ranks][tokens, k]
};

/// A placement of one layer and when the devices have its weights.
struct Mapping {
  Placement placement;
  std::vector<double> wanted;        // phase 1's n_e; empty: no estimate
  Nanoseconds known = 0;             // on every device
  std::vector<Nanoseconds> weights;  // [devices]
};

class InferenceRun {
 public:
  explicit InferenceRun(const InferenceSpec& spec)
      : spec_(spec),
        costs_(spec.model, spec.cluster),
        query_({.ranks = spec.cluster.num_devices(),
                .tokens = spec.model.batch_per_device * spec.model.seq,
                .experts = spec.model.experts,
                .k = gate_spec(spec.model).k}),
        options_({.layers = num_layers(),
                  .experts = query_.experts,
                  .path = spec.path,
                  .keep = spec.keep > 0 ? spec.keep : query_.k,
                  .shorter = spec.shorter}),
        tokens_(spec.law, query_, options_),
        held_(static_cast<size_t>(num_layers()), fixed()),
        counts_(options_),
        profile_(counts_.profile()) {}

  InferenceResult run() {
    InferenceResult result;
    result.num_layers = num_layers();
    if (estimates()) learn();
    for (int64_t m = 0; m < num_layers(); ++m) result.paths += profile_.num_paths(m);
    const int64_t first = spec_.first_step + spec_.profile_batches;
    for (int64_t batch = 0; batch < spec_.batches; ++batch) {
      result.batch_ns.push_back(run_batch(first + batch, result.layers));
    }
    return result;
  }

 private:
  int64_t num_layers() const { return static_cast<int64_t>(costs_.layers().size()); }
  Placement fixed() const { return fixed_mapping(query_.experts, query_.ranks, spec_.place); }
  bool estimates() const {
    return spec_.system == InferenceSystem::kLina || spec_.system == InferenceSystem::kNoFineTuning;
  }

  void learn() {
    for (int64_t batch = 0; batch < spec_.profile_batches; ++batch) {
      tokens_.begin(spec_.first_step + batch);
      for (int64_t m = 0; m < num_layers(); ++m) {
        tokens_.route(m);
        tokens_.count(counts_);
        tokens_.go_on();
      }
    }
    profile_ = counts_.profile();
  }

  Nanoseconds run_batch(int64_t step, std::vector<InferenceLayer>& layers) {
    Nanoseconds now = 0;
    next_.reset();
    tokens_.begin(step);
    query_.step = step;
    for (int64_t m = 0; m < num_layers(); ++m) {
      now += costs_.layers()[static_cast<size_t>(m)].before;
      layers.push_back(run_layer(m, now));
      now += layers.back().layer_ns;
    }
    return now + costs_.after_layers();
  }

  Loads loads_of(int64_t m) {
    query_.layer = m;
    if (spec_.system == InferenceSystem::kIdeal) return balanced_loads(query_);
    return estimates() ? tokens_.route(m) : spec_.law.loads(query_);
  }

  InferenceLayer run_layer(int64_t m, Nanoseconds begin) {
    const InferenceCosts::MoeLayer& cost = costs_.layers()[static_cast<size_t>(m)];
    InferenceLayer layer;
    const Loads loads = loads_of(m);
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
    if (estimates()) expect(m + 1, arrived, computed, back);
    return layer;
  }

  /// Phase 1 for layer m, from what was chosen so far: on one device from the end of the first
  /// all-to-all, which brings it the estimates. The mapping goes with the second one, or by a
  /// broadcast of its own where it comes too late; then weights follow.
  void expect(int64_t m, Nanoseconds arrived, Nanoseconds computed, Nanoseconds back) {
    next_.reset();
    tokens_.go_on();
    if (m >= num_layers() || !profile_.covers(m)) return;
    const Estimate estimate = tokens_.estimate(profile_, m);
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
    const Nanoseconds each =
        duration_ns(static_cast<double>(costs_.expert_bytes()), spec_.times.host_bytes_per_s);
    for (int64_t d = 0; d < query_.ranks; ++d) {
      mapping.weights[static_cast<size_t>(d)] += each * copies_to(d, m, brought, mapping.placement);
    }
  }

  const InferenceSpec& spec_;
  InferenceCosts costs_;
  RoutingQuery query_;
  PathOptions options_;
  Tokens tokens_;
  std::vector<Placement> held_;  // [layers], from the last batch
  PathCounts counts_;
  PathProfile profile_;
  std::optional<Mapping> next_;  // of the layer to come
};

void check_field(const char* field, double value, double least) {
  if (!(value >= least)) {
    throw user_error("inference.{} = {}, allowed: at least {}", field, value, least);
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

InferenceResult simulate_inference(const InferenceSpec& spec) {
  check_field("batches", static_cast<double>(spec.batches), 1);
  check_field("profile_batches", static_cast<double>(spec.profile_batches), 0);
  check_field("keep", static_cast<double>(spec.keep), 0);
  for (const Nanoseconds ns : {spec.times.place_ns, spec.times.resume_ns, spec.times.rerun_ns}) {
    check_field("times", static_cast<double>(ns), 0);
  }
  check_field("host_bytes_per_s", spec.times.host_bytes_per_s, 1);
  return InferenceRun(spec).run();
}

Nanoseconds percentile(std::vector<Nanoseconds> samples, double share) {
  MOE_CHECK(!samples.empty() && share > 0 && share <= 1, "share {} of {}", share, samples.size());
  const double rank = std::ceil(share * static_cast<double>(samples.size()) - 1e-9);
  const auto at = samples.begin() + static_cast<ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(samples.begin(), at, samples.end());
  return *at;
}

std::vector<Loads> transitions(const RoutingLaw& law, const RoutingQuery& first, int64_t batches,
                               int64_t layers) {
  std::vector<Loads> all(static_cast<size_t>(std::max<int64_t>(0, layers - 1)),
                         Loads(first.experts, first.experts));
  const auto size = static_cast<size_t>(first.tokens * first.k), k = static_cast<size_t>(first.k);
  std::vector<int32_t> choices(size), before, after(static_cast<size_t>(first.tokens));
  RoutingQuery query = first;
  for (int64_t batch = 0; batch < batches; ++batch) {
    query.step = first.step + batch;
    for (int64_t rank = 0; rank < first.ranks; ++rank) {
      for (query.layer = 0; query.layer < layers; ++query.layer) {
        law.route(query, rank, choices);
        before = after;
        for (size_t t = 0; t < after.size(); ++t) after[t] = choices[t * k];
        if (query.layer == 0) continue;
        add_transitions(before, after, all[static_cast<size_t>(query.layer - 1)]);
      }
    }
  }
  return all;
}

}  // namespace moe
