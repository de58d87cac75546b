#include "engine/sim/routed_batch.h"

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

}  // namespace

RoutedBatch routed_batch(const RoutingModel& routing, const RoutingQuery& query,
                         const PathProfile& profile) {
  RoutedBatch batch;
  Tokens tokens(routing, query, profile.options());
  for (int64_t m = 0; m < profile.options().layers; ++m) {
    batch.estimates.push_back(profile.covers(m) ? tokens.estimate(profile, m) : Estimate{});
    batch.loads.push_back(tokens.route(m));
    tokens.go_on();
  }
  return batch;
}

PathProfile profile_paths(const RoutingModel& routing, const ProfileSpec& spec) {
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

}  // namespace moe
