#include "engine/routing/gate_sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/routing/popularity.h"

namespace moe {
namespace {

// The most tokens of a source, and scores of all sources, under even scores.
constexpr int64_t kEvenTokens = kMostSources * kMostTokens, kEvenScores = int64_t{1} << 22;
// The scores of all sources under a law, unless these are too few sources.
constexpr int64_t kLawScores = int64_t{1} << 23, kFewestSources = 4;
// The fewest tokens of a source where all ranks are sources.
constexpr int64_t kFewestTokens = 256;
// The scores of one call of a gate, few enough for the processor's cache.
constexpr int64_t kPartScores = int64_t{1} << 18;
constexpr int64_t kFewExperts = 64;
// The scores of a source if the gate needs the whole batch. Where experts choose, all slots are in
// use in any sample.
constexpr int64_t kWholeScores = int64_t{1} << 25, kExpertScores = int64_t{1} << 19;
// The scores of any source. The columns of all its choices that RoutingBuilder searches, as many as
// each choice of a token has; with more columns than kMostColumns not even one token is routed.
constexpr int64_t kSourceScores = int64_t{1} << 26, kSearches = int64_t{1} << 28;
constexpr int64_t kMostColumns = 8192;
constexpr uint64_t kSeed = 1;  // of even scores and of token ids

/// The choices of one source rank in one layer.
struct Tally {
  int64_t block = 0;
  std::vector<int64_t> choices;          // [experts], with dropped ones
  std::vector<int32_t> used;             // [experts], those that got a slot
  std::vector<int32_t>* kept = nullptr;  // gets [tokens, columns]: experts, -1 without a slot
};

/// The first `tokens` tokens of a source rank, for all of which `capacity` slots per expert are
/// there.
struct Source {
  int64_t rank = 0, step = 0;
  int64_t tokens = 0, capacity = 0;
};

/// Whether the counts are the same if the gate gets a batch in parts. The built-in gates with batch
/// scope in which tokens choose only give out slots in another order.
bool may_be_cut(const Gate& gate) {
  return gate.scope == GateScope::kToken ||
         (gate.token_scope_without_capacity && gate.chooser == Chooser::kToken);
}

/// Whether the gate gets the best experts of each token (ScoreLaw::best()) instead of scores. For
/// few experts it costs no less.
bool needs_best(const GateUse& use) {
  return !use.groups.limits() && use.gate.fills_best &&
         use.gate.scores == kernels::ScoreRule::kSoftmax && use.experts > kFewExperts;
}

/// `best`: [tokens, columns] if needs_best(), otherwise empty.
void route_part(const GateUse& use, const Source& source, const GateInput& part,
                const std::vector<int32_t>& best, Tally& tally) {
  std::vector<int32_t> expert(index(part.tokens * use.columns)), slot(expert.size());
  std::vector<int32_t> counts(index(use.experts));
  const RoutingMaps maps = {.tokens = part.tokens,
                            .experts = use.experts,
                            .columns = use.columns,
                            .capacity = source.capacity,
                            .expert = expert.data(),
                            .choice_slot = slot.data(),
                            .counts = counts.data(),
                            .part = true};
  RoutingBuilder builder(maps, tally.used);
  if (needs_best(use)) {
    builder.fill(best, use.columns);
  } else {
    if (use.groups.limits()) builder.limit(part.scores);
    use.gate.route(part, builder);
  }
  for (size_t i = 0; i < expert.size(); ++i) {
    if (expert[i] >= 0) ++tally.choices[index(expert[i])];
    if (tally.kept != nullptr) tally.kept->push_back(slot[i] < 0 ? -1 : expert[i]);
  }
  tally.used = std::move(counts);
}

/// Routes the tokens of a source, with the same scores in all layers. Returns whether the gate read
/// whose tokens they are.
bool route_source(const GateUse& use, const Source& source, const ScoreLaw& law,
                  std::vector<Tally>& layers) {
  bool reads_source = false;
  const bool by_best = needs_best(use);
  const bool scored = use.gate.chooser != Chooser::kRule && !by_best;
  const int64_t part = scored && may_be_cut(use.gate)
                           ? std::clamp<int64_t>(kPartScores / use.experts, 1, source.tokens)
                           : source.tokens;
  std::vector<float> scores(scored ? index(part * use.experts) : 0);
  std::vector<int32_t> ids(index(part)), best;
  const uint32_t key = stream_key(kSeed, RandomStream::kIds, {source.step, source.rank});
  for (int64_t first = 0; first < source.tokens; first += part) {
    GateInput in = {.tokens = std::min(part, source.tokens - first),
                    .experts = use.experts,
                    .k = use.k,
                    .capacity = source.capacity,
                    .scores = scored ? scores.data() : nullptr,
                    .ids = ids.data(),
                    .first_token = source.rank % use.ranks * use.tokens + first,
                    .step = source.step,
                    .groups = use.groups,
                    .reads_source = &reads_source};
    if (scored) {
      law.write(use.gate.scores, first, in.tokens, scores.data());
      limit_to_groups(use.groups, std::span(scores).first(index(in.tokens * use.experts)),
                      use.experts);
    }
    if (by_best) best = law.best(use.columns, first, in.tokens);
    for (int64_t t = 0; t < in.tokens; ++t) {
      const uint64_t drawn = hash32(static_cast<uint64_t>(first + t), key);
      ids[index(t)] = static_cast<int32_t>(drawn * static_cast<uint64_t>(use.vocab) >> 32);
    }
    for (Tally& layer : layers) {
      in.layer = layer.block;
      route_part(use, source, in, best, layer);
    }
  }
  return reads_source;
}

int64_t square(int64_t n) {
  return n * n;
}

/// Returns a source with up to `most` of a rank's `tokens` tokens.
Source source_of(const GateUse& use, int64_t rank, int64_t step, int64_t tokens, int64_t most) {
  most = std::clamp<int64_t>(std::min(kSourceScores / use.experts, kSearches / square(use.columns)),
                             1, most);
  if (!may_be_cut(use.gate)) {
    const bool experts = use.gate.chooser == Chooser::kExpert;
    most = std::clamp<int64_t>((experts ? kExpertScores : kWholeScores) / use.experts, 1, most);
  }
  constexpr int64_t kMostSlots = std::numeric_limits<int32_t>::max();
  Source source = {rank, step, std::min(tokens, most),
                   std::min(use.capacity, kMostSlots / use.experts)};
  if (source.tokens < tokens) {
    source.capacity = (use.capacity * source.tokens + tokens - 1) / tokens;
  }
  return source;
}

/// Returns the number of source ranks of a sample under a law.
int64_t law_sources(const RoutingQuery& query) {
  const int64_t scores = std::clamp<int64_t>(query.tokens, 1, kMostTokens) * query.experts;
  return std::min(std::clamp(kLawScores / scores, kFewestSources, kMostSources), query.ranks);
}

Tally tally_of(const GateUse& use, int64_t layer) {
  return {use.block(layer), std::vector<int64_t>(index(use.experts)),
          std::vector<int32_t>(index(use.experts))};
}

/// Whether more than a quarter of the choices fall on different experts.
bool differ(const std::vector<Tally>& a, const std::vector<Tally>& b) {
  int64_t apart = 0, all = 0;
  for (size_t l = 0; l < a.size(); ++l) {
    for (size_t e = 0; e < a[l].choices.size(); ++e) {
      apart += std::abs(a[l].choices[e] - b[l].choices[e]);
      all += a[l].choices[e] + b[l].choices[e];
    }
  }
  return 4 * apart > all;
}

/// The counts of a sample of source ranks in one step and layer.
struct Sample {
  ExpertCounts choices, kept;
  std::vector<std::vector<int32_t>> experts;  // by source, as Tally::kept
};

class GatedRouting {
 public:
  GatedRouting(GateUse use, std::shared_ptr<const RoutingModel> law)
      : use_(std::move(use)), law_(std::move(law)) {}

  ExpertCounts counts(const RoutingQuery& query, ExpertCounts Sample::*which) {
    MOE_CHECK(
        query.ranks == use_.ranks && query.tokens == use_.tokens && query.experts == use_.experts,
        "the routing of gate {} is for {} ranks of {} tokens and {} experts, not for {} of {} and "
        "{}",
        use_.gate.name, use_.ranks, use_.tokens, use_.experts, query.ranks, query.tokens,
        query.experts);
    const std::pair at(query.step, query.layer);
    auto known = samples_.find(at);
    if (known == samples_.end()) {
      last_ = {at, run(query)};
      known = samples_.emplace(at, Sample{last_.second.choices, last_.second.kept, {}}).first;
    }
    const ExpertCounts& from = known->second.*which;
    ExpertCounts all(query.ranks, query.experts);
    for (int64_t r = 0; r < query.ranks; ++r) {
      const int64_t s = source(query, r, from.sources);
      for (int64_t e = 0; e < query.experts; ++e) all.at(r, e) = from.at(s, e);
    }
    return all;
  }

  /// Writes the choices of a rank that got a slot. Those of the layer asked for last are kept.
  void kept_choices(const RoutingQuery& query, int64_t rank, std::span<int32_t> choices) {
    const std::pair at(query.step, query.layer);
    if (last_.first != at) last_ = {at, run(query)};
    const Sample& sample = last_.second;
    const auto& of = sample.experts[index(source(query, rank, sample.kept.sources))];
    for (size_t i = 0; i < choices.size(); ++i) choices[i] = of.empty() ? -1 : of[i % of.size()];
  }

 private:
  /// Returns the source that a rank is like.
  static int64_t source(const RoutingQuery& query, int64_t rank, int64_t sources) {
    if (rank < sources) return rank;
    const uint32_t key = stream_key(kSeed, RandomStream::kSources, {query.step, query.layer});
    const uint64_t drawn = hash32(static_cast<uint64_t>(rank), key);
    return static_cast<int64_t>(drawn * static_cast<uint64_t>(sources) >> 32);
  }

  Sample run(const RoutingQuery& query) const {
    if (use_.columns > kMostColumns) {
      throw user_error(
          "gate {}: {} choices per token are too many for a simulation by scores; at most {} are "
          "allowed",
          use_.gate.name, use_.columns, kMostColumns);
    }
    bool reads_source = false;
    Sample sample = run(query, law_sources(query), kMostTokens, reads_source);
    if (!reads_source || sample.choices.sources == query.ranks) return sample;
    const int64_t tokens =
        std::clamp(kMostSources * kMostTokens / query.ranks, kFewestTokens, kMostTokens);
    return run(query, query.ranks, tokens, reads_source);
  }

  /// Runs the gate for the first `tokens` tokens of the first `sources` ranks. Sets `reads_source`
  /// where it asks whose they are.
  Sample run(const RoutingQuery& query, int64_t sources, int64_t tokens, bool& reads_source) const {
    Sample sample = {ExpertCounts(sources, use_.experts), ExpertCounts(sources, use_.experts),
                     std::vector<std::vector<int32_t>>(index(sources))};
    for (int64_t r = 0; r < sources; ++r) {
      const ScoreLaw law = law_->scores(query, r);
      if (law.tokens == 0) continue;
      const Source source = source_of(use_, r, query.step, law.tokens, tokens);
      std::vector<Tally> layer = {tally_of(use_, query.layer)};
      layer[0].kept = &sample.experts[index(r)];
      reads_source |= route_source(use_, source, law, layer);
      const double scale = static_cast<double>(law.tokens) / static_cast<double>(source.tokens);
      const auto scaled = [&](auto n) { return std::llround(scale * static_cast<double>(n)); };
      for (int64_t e = 0; e < use_.experts; ++e) {
        const int64_t choices = layer[0].choices[index(e)], used = layer[0].used[index(e)];
        int64_t& kept = sample.kept.at(r, e) = std::min<int64_t>(use_.capacity, scaled(used));
        sample.choices.at(r, e) = used == choices ? kept : scaled(choices);
      }
    }
    return sample;
  }

  GateUse use_;
  std::shared_ptr<const RoutingModel> law_;
  std::map<std::pair<int64_t, int64_t>, Sample> samples_;  // by step and layer, without experts
  std::pair<std::pair<int64_t, int64_t>, Sample> last_{{-1, -1}, {}};  // with experts
};

}  // namespace

MeanRouting even_routing(const GateUse& use, int64_t layers) {
  MeanRouting mean;
  if (use.tokens == 0 || layers == 0 || use.columns > kMostColumns) return mean;
  const Source one = source_of(use, 0, 0, use.tokens, kEvenTokens);
  mean.tokens = one.tokens;
  mean.sources = std::clamp<int64_t>(kEvenScores / (one.tokens * use.experts), 1, kMostSources);
  int64_t choices = 0, kept = 0;
  bool reads_source = false;
  const auto tallies_of = [&](const Source& source) {
    std::vector<Tally> tallies;
    for (int64_t l = 0; l < layers; ++l) tallies.push_back(tally_of(use, l));
    const uint32_t key = stream_key(kSeed, RandomStream::kScores, {source.rank});
    reads_source |=
        route_source(use, source, even_scores(use.experts, source.tokens, key), tallies);
    return tallies;
  };
  std::vector<Tally> first;
  for (Source source = one; source.rank < mean.sources; ++source.rank) {
    std::vector<Tally> tallies = tallies_of(source);
    for (const Tally& tally : tallies) {
      choices += std::accumulate(tally.choices.begin(), tally.choices.end(), int64_t{0});
      kept += std::accumulate(tally.used.begin(), tally.used.end(), int64_t{0});
    }
    if (source.rank == 0) first = std::move(tallies);
  }
  if (reads_source) {
    Source last = one;
    last.rank = use.ranks - 1;
    mean.by_source = differ(first, tallies_of(last));
  }
  const int64_t batches = mean.sources * layers, tokens = batches * one.tokens;
  const int64_t slots = batches * use.experts * one.capacity;
  const int64_t wanted = tokens * (use.gate.chooser == Chooser::kExpert ? use.columns : use.k);
  mean.choices = static_cast<double>(choices) / static_cast<double>(tokens);
  mean.kept = static_cast<double>(kept) / static_cast<double>(tokens);
  mean.slot_occupancy =
      static_cast<double>(kept) / static_cast<double>(slots) *
      (use.slots > 0 ? static_cast<double>(use.capacity) / static_cast<double>(use.slots) : 1.0);
  mean.of_balanced = static_cast<double>(kept) / static_cast<double>(std::min(wanted, slots));
  return mean;
}

RoutingModel gated_routing(GateUse use, std::shared_ptr<const RoutingModel> law) {
  MOE_CHECK(law != nullptr && law->scores, "gated_routing: `law` must have scores");
  RoutingModel model;
  model.name = fmt::format("gate {} on {}", use.gate.name, law->name);
  model.scores = law->scores;
  const bool of_tokens = use.columns == use.k;
  const auto routing = std::make_shared<GatedRouting>(std::move(use), std::move(law));
  if (of_tokens) {
    model.route = [routing](const RoutingQuery& q, int64_t rank, std::span<int32_t> choices) {
      routing->kept_choices(q, rank, choices);
    };
  }
  model.loads = [routing](const RoutingQuery& q) { return routing->counts(q, &Sample::choices); };
  model.kept = [routing](const RoutingQuery& q) { return routing->counts(q, &Sample::kept); };
  return model;
}

MeanRouting mean_routing(const RoutingModel& gated, const RoutingQuery& query) {
  const double tokens = static_cast<double>(query.ranks * query.tokens);
  return {.sources = law_sources(query),
          .tokens = std::min(kMostTokens, query.tokens),
          .choices = static_cast<double>(gated.loads(query).total()) / tokens,
          .kept = static_cast<double>(gated.kept(query).total()) / tokens};
}

}  // namespace moe
