#include "engine/sim/inference_trace.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {
namespace {

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

PathOptions path_options(const TraceSpec& spec) {
  return {.layers = spec.layers,
          .experts = spec.first.experts,
          .path = spec.path,
          .keep = spec.keep > 0 ? spec.keep : spec.first.k,
          .shorter = spec.shorter};
}

PathProfile learn(Tokens& tokens, const TraceSpec& spec) {
  PathCounts counts(path_options(spec));
  for (int64_t batch = 0; batch < spec.profile_batches; ++batch) {
    tokens.begin(spec.first.step + batch);
    for (int64_t m = 0; m < spec.layers; ++m) {
      tokens.route(m);
      tokens.count(counts);
      tokens.go_on();
    }
  }
  return counts.profile();
}

void check_field(const char* field, int64_t value, int64_t least) {
  if (value < least)
    throw user_error("inference.{} = {}, allowed: at least {}", field, value, least);
}

void check_sizes(const TraceSpec& spec) {
  check_field("layers", spec.layers, 1);
  check_field("profile_batches", spec.profile_batches, 0);
  check_field("keep", spec.keep, 0);
  check_field("ranks", spec.first.ranks, 1);
}

}  // namespace

PathProfile profile_paths(const RoutingLaw& law, const TraceSpec& spec) {
  check_sizes(spec);
  Tokens tokens(law, spec.first, path_options(spec));
  return learn(tokens, spec);
}

InferenceTrace trace_inference(const RoutingLaw& law, const TraceSpec& spec) {
  check_sizes(spec);
  check_field("batches", spec.batches, 1);
  Tokens tokens(law, spec.first, path_options(spec));
  const PathProfile profile = learn(tokens, spec);
  InferenceTrace trace{.spec = spec};
  for (int64_t m = 0; m < spec.layers; ++m) trace.paths += profile.num_paths(m);
  for (int64_t batch = 0; batch < spec.batches; ++batch) {
    tokens.begin(spec.first.step + spec.profile_batches + batch);
    for (int64_t m = 0; m < spec.layers; ++m) {
      trace.estimates.push_back(profile.covers(m) ? tokens.estimate(profile, m) : Estimate{});
      trace.loads.push_back(tokens.route(m));
      tokens.go_on();
    }
  }
  return trace;
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
