#include "engine/routing/workload.h"

#include <algorithm>
#include <memory>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/routing/popularity.h"
#include "engine/routing/sampler.h"
#include "engine/routing/token_classes.h"
#include "engine/routing/token_imbalance.h"

namespace moe {
namespace {

size_t row_of(std::string_view name) {
  std::vector<std::string> names;
  for (const WorkloadDef& def : workloads()) {
    if (def.name == name) return names.size();
    names.push_back(def.name);
  }
  throw UserError(unknown_name("workload", name, std::move(names)));
}

WorkloadSetting setting_of(std::string_view name, const WorkloadOptions& options, uint64_t seed) {
  WorkloadSetting setting;
  setting.row = row_of(name);
  setting.seed = seed;
  const WorkloadDef& def = workloads()[setting.row];
  const auto values = resolve_numbers("workload " + def.name, def.options, options);
  for (const OptionSpec& option : def.options) setting.values.push_back(values.at(option.name));
  return setting;
}

/// Returns the name with the first option, all options that are not defaults, and the seed.
std::string full_name(const WorkloadSetting& setting) {
  const WorkloadDef& def = workloads()[setting.row];
  std::string text = def.name + "(";
  for (size_t i = 0; i < def.options.size(); ++i) {
    if (OptionValue(setting.values[i]) == def.options[i].default_value && i > 0) continue;
    text += fmt::format("{}={}, ", def.options[i].name, setting.values[i]);
  }
  return text + fmt::format("seed={})", setting.seed);
}

void check_query(const std::string& name, const RoutingQuery& q) {
  MOE_CHECK(q.ranks >= 1 && q.tokens >= 0 && q.experts >= 1 && q.step >= 0 && q.layer >= 0,
            "workload {}: ranks = {} and experts = {} must be at least 1, tokens = {}, step = {} "
            "and layer = {} at least 0",
            name, q.ranks, q.experts, q.tokens, q.step, q.layer);
  if (q.k < 1 || q.k > q.experts) {
    throw user_error("workload {}: k = {} choices per token, allowed: 1 to experts = {}", name, q.k,
                     q.experts);
  }
  if (q.ranks == 1 && name.starts_with("zero_token_rank")) {
    throw user_error("workload {}: with one rank no token would be left; give 2 ranks or more",
                     name);
  }
}

/// Choice j of token t of rank r is the expert at position (r tokens + t) k + j of an endless
/// sequence that repeats all experts, so all runs of positions are balanced. The k experts of a
/// token are rotated once per repetition, so that each is equally often its first choice.
class Balanced {
 public:
  Balanced(uint64_t seed, const RoutingQuery& q)
      : q_(q),
        round_(permutation(q.experts, stream_key(seed, RandomStream::kOrder, {q.step, q.layer}))) {}
  void choose(int64_t rank, std::span<int32_t> choices) const {
    for (int64_t t = 0; t < q_.tokens; ++t) {
      const int64_t place = (rank * q_.tokens + t) * q_.k;
      for (int64_t j = 0; j < q_.k; ++j) {
        const int64_t turned = (j + place / q_.experts) % q_.k;
        choices[static_cast<size_t>(t * q_.k + j)] = at(place + turned);
      }
    }
  }
  void count(int64_t rank, std::span<int64_t> counts) const {
    const int64_t places = q_.tokens * q_.k;
    std::fill(counts.begin(), counts.end(), places / q_.experts);
    for (int64_t i = 0; i < places % q_.experts; ++i) {
      ++counts[static_cast<size_t>(at(rank * places + i))];
    }
  }

 private:
  int32_t at(int64_t place) const { return round_[static_cast<size_t>(place % q_.experts)]; }
  RoutingQuery q_;
  std::vector<int32_t> round_;
};

std::span<int64_t> row(ExpertCounts& loads, int64_t rank) {
  return std::span(loads.rows)
      .subspan(static_cast<size_t>(rank * loads.experts), static_cast<size_t>(loads.experts));
}

void route(const std::string& name, const WorkloadSetting& setting, const RoutingQuery& q,
           int64_t rank, std::span<int32_t> choices) {
  check_query(name, q);
  MOE_CHECK(rank >= 0 && rank < q.ranks, "workload {}: rank = {} must be between 0 and {}", name,
            rank, q.ranks - 1);
  MOE_CHECK(choices.size() == static_cast<size_t>(q.tokens * q.k),
            "workload {}: there is room for {} choices, expected tokens = {} times k = {}", name,
            choices.size(), q.tokens, q.k);
  if (setting.values.empty()) return Balanced(setting.seed, q).choose(rank, choices);
  const int64_t active = active_tokens(setting, q, rank);
  const Sampler sampler(setting, q, popularity(setting, q, rank));
  const auto chosen = choices.first(static_cast<size_t>(active * q.k));
  sampler.choose(rank, chosen);
  std::fill(choices.begin() + static_cast<std::ptrdiff_t>(chosen.size()), choices.end(), -1);
}

ExpertCounts loads(const std::string& name, const WorkloadSetting& setting, const RoutingQuery& q) {
  check_query(name, q);
  ExpertCounts loads(q.ranks, q.experts);
  if (setting.values.empty()) {
    const Balanced balanced(setting.seed, q);
    for (int64_t r = 0; r < q.ranks; ++r) balanced.count(r, row(loads, r));
    return loads;
  }
  std::unique_ptr<const Sampler> sampler;
  for (int64_t r = 0; r < q.ranks; ++r) {
    if (sampler == nullptr || differs_by_source(setting)) {
      sampler = std::make_unique<Sampler>(setting, q, popularity(setting, q, r));
    }
    sampler->count(r, active_tokens(setting, q, r), row(loads, r));
  }
  return loads;
}

ScoreLaw scores(const std::string& name, const WorkloadSetting& setting, const RoutingQuery& q,
                int64_t rank) {
  check_query(name, q);
  const Popularity chosen = popularity(setting, q, rank);
  ScoreLaw law = {std::vector<float>(chosen.share.size()), active_tokens(setting, q, rank),
                  stream_key(setting.seed, RandomStream::kScores, {q.step, q.layer, rank})};
  for (size_t c = 0; c < chosen.share.size(); ++c) {
    law.popularity[static_cast<size_t>(chosen.expert_of[c])] = static_cast<float>(chosen.share[c]);
  }
  return law;
}

}  // namespace

RoutingModel workload(std::string_view name, const WorkloadOptions& options, uint64_t seed) {
  const auto setting = std::make_shared<const WorkloadSetting>(setting_of(name, options, seed));
  for (const TokenImbalance& one : token_imbalances()) {
    if (one.name == name) return token_imbalance(name, seed);
  }
  const std::string full = full_name(*setting);
  if (name == kTokenClasses) {
    const auto value = [&](std::string_view option) { return setting->value(option); };
    RoutingModel model = token_classes({.classes = static_cast<int64_t>(value("classes")),
                                        .skew = value("skew"),
                                        .ratio = value("ratio"),
                                        .stray = value("stray"),
                                        .drift = value("drift"),
                                        .seed = seed});
    model.name = full;
    return model;
  }
  RoutingModel model;
  model.name = full;
  model.route = [setting, full](const RoutingQuery& q, int64_t rank, std::span<int32_t> choices) {
    route(full, *setting, q, rank, choices);
  };
  model.loads = [setting, full](const RoutingQuery& q) { return loads(full, *setting, q); };
  if (workloads()[setting->row].has_popularity) {
    model.scores = [setting, full](const RoutingQuery& q, int64_t rank) {
      return scores(full, *setting, q, rank);
    };
  }
  return model;
}

}  // namespace moe
