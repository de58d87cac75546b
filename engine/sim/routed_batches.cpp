#include "engine/sim/routed_batches.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {
namespace {

/// The choices and paths of all ranks' tokens in one step of a routing model. To be used layer by
/// layer, in order: route() the layer, then go_on().
class Tokens {
 public:
  Tokens(const RoutingModel& routing, const RoutingQuery& query, const PathOptions& options)
      : routing_(routing),
        query_(query),
        paths_(static_cast<size_t>(query.ranks), TokenPaths(options, query.tokens)),
        choices_(static_cast<size_t>(query.ranks)) {
    for (auto& of_rank : choices_) of_rank.resize(static_cast<size_t>(query.tokens * query.k));
  }

  void begin(int64_t step) {
    query_.step = step;
    for (TokenPaths& of_rank : paths_) of_rank.clear();
  }
  /// Requests the choices of all tokens in `layer`. Returns how often the tokens of each rank
  /// choose each expert.
  ExpertCounts route(int64_t layer) {
    query_.layer = layer;
    ExpertCounts loads(query_.ranks, query_.experts);
    for (int64_t rank = 0; rank < query_.ranks; ++rank) {
      routing_.route(query_, rank, choices_[static_cast<size_t>(rank)]);
      for (const int32_t e : choices_[static_cast<size_t>(rank)]) {
        if (e >= 0) ++loads.at(rank, e);
      }
    }
    return loads;
  }
  /// Appends the choices of the layer routed last to the paths of the tokens.
  void go_on() {
    for (size_t rank = 0; rank < paths_.size(); ++rank) paths_[rank].add(choices_[rank], query_.k);
  }
  void count(PathCounts& counts) const {
    for (size_t rank = 0; rank < paths_.size(); ++rank) {
      counts.add(query_.layer, paths_[rank], choices_[rank], query_.k);
    }
  }
  /// Estimates the popularity of the experts of `layer` from the choices in earlier layers: the sum
  /// of the estimates of all ranks.
  Estimate estimate(const PathProfile& profile, int64_t layer) const {
    Estimate sum = profile.estimate(layer, paths_[0]);
    for (size_t rank = 1; rank < paths_.size(); ++rank) {
      sum.add(profile.estimate(layer, paths_[rank]));
    }
    return sum;
  }

 private:
  const RoutingModel& routing_;
  RoutingQuery query_;
  std::vector<TokenPaths> paths_;              // [ranks]
  std::vector<std::vector<int32_t>> choices_;  // [ranks][tokens, k]
};

void check_field(const char* field, int64_t value, int64_t least) {
  if (value < least)
    throw user_error("inference.{} = {}: must be at least {}", field, value, least);
}

void check_same(const char* field, int64_t profile, int64_t batches) {
  if (profile == batches) return;
  throw user_error(
      "popularity.{}: the popularity profile has {}, but the routed batches have {}; the numbers "
      "must be equal",
      field, profile, batches);
}

}  // namespace

RoutedBatches::RoutedBatches(std::shared_ptr<const RoutingModel> routing, const RoutingQuery& sizes,
                             int64_t layers, std::shared_ptr<const PathProfile> profile)
    : routing_(std::move(routing)), sizes_(sizes), layers_(layers), profile_(std::move(profile)) {
  check_field("layers", layers, 1);
  check_field("ranks", sizes.ranks, 1);
  if (profile_ == nullptr) return;
  path_ = profile_->options().path;
  check_same("layers", profile_->options().layers, layers);
  check_same("experts", profile_->options().experts, sizes.experts);
}

const RoutedBatch& RoutedBatches::at(int64_t step) {
  const auto known = batches_.find(step);
  return known != batches_.end() ? known->second
                                 : batches_.emplace(step, routed(step)).first->second;
}

void RoutedBatches::take(int64_t first, int64_t num) {
  for (int64_t step = first; step < first + num; ++step) at(step);
  routing_ = nullptr;
  profile_ = nullptr;
}

RoutedBatch RoutedBatches::routed(int64_t step) const {
  MOE_CHECK(routing_ != nullptr,
            "RoutedBatches: step {} must be one that take() routed, since no others can be routed "
            "after take()",
            step);
  RoutedBatch batch;
  RoutingQuery query = sizes_;
  query.step = step;
  if (profile_ == nullptr) {
    for (query.layer = 0; query.layer < layers_; ++query.layer) {
      batch.loads.push_back(routing_->loads(query));
    }
    batch.estimates.resize(batch.loads.size());
    return batch;
  }
  Tokens tokens(*routing_, query, profile_->options());
  tokens.begin(step);
  for (int64_t m = 0; m < layers_; ++m) {
    batch.estimates.push_back(profile_->covers(m) ? tokens.estimate(*profile_, m) : Estimate{});
    batch.loads.push_back(tokens.route(m));
    tokens.go_on();
  }
  return batch;
}

PathProfile profile_paths(const RoutingModel& routing, const ProfileSpec& spec) {
  check_field("layers", spec.layers, 1);
  check_field("profile_batches", spec.batches, 0);
  check_field("keep", spec.keep, 0);
  check_field("ranks", spec.first.ranks, 1);
  const PathOptions options = {.layers = spec.layers,
                               .experts = spec.first.experts,
                               .path = spec.path,
                               .keep = spec.keep > 0 ? spec.keep : spec.first.k,
                               .shorter = spec.shorter};
  Tokens tokens(routing, spec.first, options);
  PathCounts counts(options);
  for (int64_t batch = 0; batch < spec.batches; ++batch) {
    tokens.begin(spec.first.step + batch);
    for (int64_t m = 0; m < spec.layers; ++m) {
      tokens.route(m);
      tokens.count(counts);
      tokens.go_on();
    }
  }
  return counts.profile();
}

std::vector<ExpertCounts> transitions(const RoutingModel& routing, const RoutingQuery& first,
                                      int64_t batches, int64_t layers) {
  std::vector<ExpertCounts> all(static_cast<size_t>(std::max<int64_t>(0, layers - 1)),
                                ExpertCounts(first.experts, first.experts));
  const auto size = static_cast<size_t>(first.tokens * first.k), k = static_cast<size_t>(first.k);
  std::vector<int32_t> choices(size), before, after(static_cast<size_t>(first.tokens));
  RoutingQuery query = first;
  for (int64_t batch = 0; batch < batches; ++batch) {
    query.step = first.step + batch;
    for (int64_t rank = 0; rank < first.ranks; ++rank) {
      for (query.layer = 0; query.layer < layers; ++query.layer) {
        routing.route(query, rank, choices);
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
