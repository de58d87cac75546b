#include "engine/routing/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/contains.h"
#include "engine/base/rng.h"

namespace moe {
namespace {

// The most draws of a choice that repeats one of its token; then left_class() chooses.
constexpr uint64_t kMostTries = 16;

uint64_t of_2_32(double part) {
  return static_cast<uint64_t>(std::llround(std::clamp(part, 0.0, 1.0) * 0x1p32));
}

}  // namespace

AliasTable::AliasTable(std::span<const double> share) : cells_(share.size()) {
  const auto n = static_cast<double>(share.size());
  std::vector<double> left(share.begin(), share.end());
  std::vector<size_t> small, large;
  for (size_t c = 0; c < left.size(); ++c) {
    left[c] *= n;
    (left[c] < 1 ? small : large).push_back(c);
  }
  while (!small.empty() && !large.empty()) {
    const size_t c = small.back(), from = large.back();
    small.pop_back();
    cells_[c] = {of_2_32(left[c]), static_cast<int32_t>(from)};
    left[from] -= 1 - left[c];
    if (left[from] >= 1) continue;
    large.pop_back();
    small.push_back(from);
  }
  // The remaining probabilities are 1 apart from rounding.
  for (const auto* rest : {&small, &large}) {
    for (const size_t c : *rest) cells_[c] = {uint64_t{1} << 32, static_cast<int32_t>(c)};
  }
}

/// Counts the two sides of each cell, which all have similar probabilities. Counting by class would
/// make a popular class wait for its own previous increment.
std::vector<int64_t> AliasTable::count(int64_t tokens, uint32_t key) const {
  std::vector<int64_t> sides(2 * cells_.size());
  for (int64_t t = 0; t < tokens; ++t) {
    const uint64_t at = uint64_t{hash32(static_cast<uint64_t>(t), key)} * cells_.size();
    const size_t own = at >> 32;
    ++sides[2 * own + ((at & 0xFFFFFFFF) >= cells_[own].below ? 1 : 0)];
  }
  std::vector<int64_t> counts(cells_.size());
  for (size_t c = 0; c < cells_.size(); ++c) {
    counts[c] += sides[2 * c];
    counts[static_cast<size_t>(cells_[c].otherwise)] += sides[2 * c + 1];
  }
  return counts;
}

/// With A the sum of share^2 and B the sum of share * share of the neighbour, `fresh` implies
///   top1        = A + same (1 - A) - beside B
///   top2 - top1 = B - same B + beside (1 - A)
/// These two equations are solved for same and beside.
ChainStep chain_step(const std::vector<double>& share, double top1, double top2) {
  const auto n = static_cast<int64_t>(share.size());
  const auto beside_of = [&](size_t c) {
    return share[static_cast<size_t>(neighbour(static_cast<int64_t>(c), n))];
  };
  double a = 0, b = 0, most_ratio = 0;
  for (size_t c = 0; c < share.size(); ++c) {
    a += share[c] * share[c];
    b += share[c] * beside_of(c);
    if (share[c] > 0) most_ratio = std::max(most_ratio, beside_of(c) / share[c]);
    if (share[c] == 0 && beside_of(c) > 0) most_ratio = HUGE_VAL;
  }
  ChainStep step;
  const double p = top1 - a, q = top2 - top1 - b, det = (1 - a) * (1 - a) - b * b;
  if (det > 1e-12) {
    step.same = (p * (1 - a) + q * b) / det;
    step.beside = (q * (1 - a) + p * b) / det;
  }
  if (step.beside < 0) step.beside = 0, step.same = a < 1 ? p / (1 - a) : 0;
  if (step.same < 0) step.same = 0, step.beside = a < 1 ? std::max(0.0, q / (1 - a)) : 0;
  step.same = std::clamp(step.same, 0.0, 1.0);
  // A class must not get more from its neighbour than its share.
  step.beside = std::clamp(step.beside, 0.0, (1 - step.same) / std::max(1.0, most_ratio));
  const double rest = 1 - step.same - step.beside;
  for (size_t c = 0; c < share.size(); ++c) {
    const double fresh = (1 - step.same) * share[c] - step.beside * beside_of(c);
    step.fresh.push_back(rest > 1e-12 ? std::max(0.0, fresh) / rest : share[c]);
  }
  return step;
}

Sampler::Sampler(const WorkloadSetting& setting, const RoutingQuery& query, Popularity popularity)
    : setting_(setting),
      query_(query),
      popularity_(std::move(popularity)),
      table_(popularity_.share) {
  if (!setting.chained()) return;
  const double rise = setting.value("rise");
  for (int64_t layer = 1; layer <= (rise > 0 ? query.layer : std::min<int64_t>(1, query.layer));
       ++layer) {
    const double top1 = risen(setting.value("top1"), rise, layer);
    const double top2 = std::max(top1, risen(setting.value("top2"), rise, layer));
    const ChainStep step = chain_step(popularity_.share, top1, top2);
    const uint64_t limit = of_2_32(step.same + step.beside);
    const uint64_t rest = std::max<uint64_t>(1, (uint64_t{1} << 32) - limit);
    transitions_.push_back(
        {of_2_32(step.same), limit, (uint64_t{1} << 56) / rest, AliasTable(step.fresh)});
  }
}

Sampler::Keys Sampler::keys_of(int64_t rank) const {
  Keys keys;
  const auto key = [&](RandomStream stream, int64_t number) {
    return stream_key(setting_.seed, stream, {query_.step, number, rank});
  };
  for (int64_t l = setting_.chained() ? 0 : query_.layer; l <= query_.layer; ++l) {
    keys.first.push_back(key(RandomStream::kTokens, l));
  }
  for (int64_t j = 1; j < query_.k; ++j) {
    keys.more.push_back(hash32(static_cast<uint64_t>(j), key(RandomStream::kMore, query_.layer)));
  }
  return keys;
}

/// For each token, goes back to the last layer whose class did not follow from the layer before it
/// and draws the class of that layer. From there to the query's layer the class changes to the
/// neighbour and back with each step to the neighbour.
void Sampler::draw_first(const Keys& keys, std::span<int32_t> classes) const {
  const auto k = static_cast<size_t>(query_.k);
  const size_t tokens = classes.size() / k;
  size_t layer = keys.first.size() - 1;
  if (layer == 0) {
    for (size_t t = 0; t < tokens; ++t) classes[t * k] = table_.draw(hash32(t, keys.first[0]));
    return;
  }
  // Tokens whose class followed the layer before in all layers visited so far (the last first).
  std::vector<uint32_t> open(tokens);
  // Indexed by token: 1 if the number of steps to the neighbour so far is odd.
  std::vector<int32_t> beside(tokens, 0);
  std::iota(open.begin(), open.end(), 0u);
  const auto n = static_cast<int32_t>(query_.experts);
  const auto settle = [&](uint32_t t, int32_t c) {
    const int32_t other = c ^ beside[t];
    classes[t * k] = other < n ? other : c;
  };
  for (; layer > 0; --layer) {
    const Transition& transition = transitions_[std::min(layer, transitions_.size()) - 1];
    size_t left = 0;
    for (const uint32_t t : open) {
      const uint64_t bits = hash32(t, keys.first[layer]);
      const bool follows = bits < transition.same_or_neighbour;
      // If the token does not follow, the part of `bits` above the limit gives 32 new random bits.
      settle(t, transition.fresh.draw(static_cast<uint32_t>(
                    ((bits - transition.same_or_neighbour) * transition.stretch) >> 24)));
      open[left] = t;
      left += follows ? 1 : 0;
      beside[t] ^= bits >= transition.same ? 1 : 0;
    }
    open.resize(left);
  }
  for (const uint32_t t : open) settle(t, table_.draw(hash32(t, keys.first[0])));
}

/// Returns one of the classes that are not in `taken`, chosen in proportion to their shares by the
/// uniform number u in [0, 1); all count equally when none of them has a share.
int32_t Sampler::left_class(double u, std::span<const int32_t> taken) const {
  const std::vector<double>& share = popularity_.share;
  double left = 0;
  for (size_t c = 0; c < share.size(); ++c) {
    if (!contains(taken, static_cast<int32_t>(c))) left += share[c];
  }
  const bool even = left <= 0;
  if (even) left = static_cast<double>(share.size() - taken.size());
  double at = u * left;
  int32_t last = -1;
  for (size_t c = 0; c < share.size(); ++c) {
    const double width = even ? 1 : share[c];
    if (width <= 0 || contains(taken, static_cast<int32_t>(c))) continue;
    last = static_cast<int32_t>(c);
    if (at < width) break;
    at -= width;
  }
  return last;
}

/// Draws choice `column` of all tokens, again where it repeats a choice of the token; after
/// kMostTries draws left_class() chooses.
void Sampler::draw_more(size_t column, uint32_t key, std::span<int32_t> classes) const {
  const auto k = static_cast<size_t>(query_.k);
  std::vector<uint32_t> open(classes.size() / k);
  std::iota(open.begin(), open.end(), 0u);
  const auto bits = [&](uint64_t t, uint64_t i) { return hash32(t * (kMostTries + 1) + i, key); };
  for (uint64_t i = 0; i < kMostTries && !open.empty(); ++i) {
    size_t left = 0;
    for (const uint32_t t : open) {
      int32_t* chosen = &classes[t * k];
      const int32_t c = table_.draw(bits(t, i));
      bool taken = false;
      for (size_t j = 0; j < column; ++j) taken |= chosen[j] == c;
      chosen[column] = c;
      open[left] = t;
      left += taken ? 1 : 0;
    }
    open.resize(left);
  }
  for (const uint32_t t : open) {
    classes[t * k + column] =
        left_class(bits(t, kMostTries) * 0x1p-32, classes.subspan(t * k, column));
  }
}

void Sampler::draw(int64_t rank, std::span<int32_t> classes) const {
  const Keys keys = keys_of(rank);
  draw_first(keys, classes);
  for (size_t j = 1; j < static_cast<size_t>(query_.k); ++j) {
    draw_more(j, keys.more[j - 1], classes);
  }
}

void Sampler::count(int64_t rank, int64_t tokens, std::span<int64_t> counts) const {
  if (query_.k == 1 && !setting_.chained()) {
    const std::vector<int64_t> by_class = table_.count(tokens, keys_of(rank).first[0]);
    for (size_t c = 0; c < by_class.size(); ++c) {
      counts[static_cast<size_t>(popularity_.expert_of[c])] = by_class[c];
    }
    return;
  }
  std::vector<int32_t> classes(static_cast<size_t>(tokens * query_.k));
  draw(rank, classes);
  // Two counters in turn, so that a popular class does not wait for its own previous increment.
  const size_t n = counts.size();
  std::vector<int64_t> by_class(2 * n);
  for (size_t i = 0; i < classes.size(); ++i)
    ++by_class[(i & 1) * n + static_cast<size_t>(classes[i])];
  for (size_t c = 0; c < n; ++c) {
    counts[static_cast<size_t>(popularity_.expert_of[c])] = by_class[c] + by_class[n + c];
  }
}

void Sampler::choose(int64_t rank, std::span<int32_t> choices) const {
  draw(rank, choices);
  for (int32_t& c : choices) c = popularity_.expert_of[static_cast<size_t>(c)];
}

}  // namespace moe
