#include "engine/routing/token_imbalance.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>

#include "engine/base/errors.h"
#include "engine/base/sha256.h"

namespace moe {
namespace {

using Pool = std::vector<int32_t>;

Pool range(int64_t begin, int64_t end) {
  Pool pool(static_cast<size_t>(end - begin));
  std::iota(pool.begin(), pool.end(), static_cast<int32_t>(begin));
  return pool;
}

/// The experts that tokens choose from: token t from `hot` if is_hot(t), else from all.
struct Law {
  Pool hot;
  int64_t every = 0;  // 0: all tokens; 4: all but every fourth; 2: every second; -1: none
  bool is_hot(int64_t t) const {
    if (every == 0) return true;
    return every == 2 ? t % 2 == 0 : every == 4 && t % 4 != 0;
  }
};

Law law_of(char number, const RoutingQuery& q) {
  const int64_t n = q.experts, width = std::max(q.k, n / 4);
  Pool block = range(0, std::min(width, n));
  switch (number) {
    case '1':
    case '2':
      return {block, 4};
    case '3': {
      Pool spread;
      for (int64_t i = 0; i < std::max(q.k, n / 2); ++i) {
        spread.push_back(static_cast<int32_t>(2 * i % n));
      }
      std::sort(spread.begin(), spread.end());
      spread.erase(std::unique(spread.begin(), spread.end()), spread.end());
      return {static_cast<int64_t>(spread.size()) >= q.k ? spread : range(0, n), 4};
    }
    case '5':
      return {range(n / 2, n), 0};
    case '6':
      for (int32_t& e : block) e = static_cast<int32_t>((e + q.step / 3 * width) % n);
      return {block, 4};
    case '7':
      return {block, q.step % 4 == 3 ? 2 : -1};
    default:
      return {{}, -1};
  }
}

/// Writes the first k of a permutation of `pool`, ascending; the generator goes on as if the whole
/// permutation had been drawn. The pool has its order again afterwards. swaps: [k], is overwritten.
void choose(Pool& pool, std::mt19937& random, std::vector<size_t>& swaps,
            std::span<int32_t> choices) {
  const size_t draws = pool.size() - 1, first = std::min(choices.size(), draws);
  for (size_t i = 0; i < first; ++i) {
    swaps[i] = i + random() % (pool.size() - i);
    std::swap(pool[i], pool[swaps[i]]);
  }
  random.discard(draws - first);
  std::copy_n(pool.begin(), choices.size(), choices.begin());
  std::sort(choices.begin(), choices.end());
  for (size_t i = first; i-- > 0;) std::swap(pool[i], pool[swaps[i]]);
}

void route(const std::string& name, uint64_t seed, const RoutingQuery& q,
           std::span<int32_t> choices) {
  if (q.k < 1 || q.k > q.experts) {
    throw user_error("workload {}: k = {} choices per token, allowed: 1 to experts = {}", name, q.k,
                     q.experts);
  }
  const auto k = static_cast<size_t>(q.k);
  const char number = name[1];
  if (number == '0') {
    for (size_t i = 0; i < choices.size(); ++i) {
      choices[i] = static_cast<int32_t>(static_cast<int64_t>(i) % q.experts);
    }
    return;
  }
  Law law = law_of(number, q);
  Pool all = range(0, q.experts);
  if (law.every >= 0 && law.hot.size() < k) {
    throw user_error("workload {}: k = {} choices per token, allowed: 1 to the {} experts in use",
                     name, q.k, law.hot.size());
  }
  std::mt19937 random(sha256(fmt::format("{}|{}|{}", name, seed, q.step))[0]);
  std::vector<size_t> swaps(k);
  for (int64_t t = 0; t < q.tokens; ++t) {
    choose(law.is_hot(t) ? law.hot : all, random, swaps,
           choices.subspan(static_cast<size_t>(t) * k, k));
  }
}

ExpertCounts loads(const std::string& name, uint64_t seed, const RoutingQuery& q) {
  std::vector<int32_t> choices(static_cast<size_t>(q.tokens * q.k));
  route(name, seed, q, choices);
  ExpertCounts counts(q.ranks, q.experts);
  for (const int32_t e : choices) ++counts.at(0, e);
  for (int64_t r = 1; r < q.ranks; ++r) {
    for (int64_t e = 0; e < q.experts; ++e) counts.at(r, e) = counts.at(0, e);
  }
  return counts;
}

/// The loads of the last query, since all layers of a step have the same.
class LastLoads {
 public:
  ExpertCounts of(const std::string& name, uint64_t seed, const RoutingQuery& q) {
    const std::array<int64_t, 5> sizes = {q.step, q.ranks, q.tokens, q.experts, q.k};
    const std::lock_guard lock(mutex_);
    if (!loads_ || sizes != sizes_) {
      loads_ = loads(name, seed, q);
      sizes_ = sizes;
    }
    return *loads_;
  }

 private:
  std::mutex mutex_;
  std::array<int64_t, 5> sizes_ = {};
  std::optional<ExpertCounts> loads_;
};

}  // namespace

const std::vector<TokenImbalance>& token_imbalances() {
  static const std::vector<TokenImbalance> all = {
      {"W0_balanced", "experts in turn"},
      {"W1_hot_expert_set", "three of four tokens choose from the first quarter of the experts"},
      {"W2_hot_rank", "as W1: the hot experts are those of the first ranks"},
      {"W3_spread_hot_experts", "three of four tokens choose from every second expert"},
      {"W4_source_ragged", "tokens choose from all experts"},
      {"W5_zero_expert_rank", "tokens choose from the second half of the experts"},
      {"W6_rotating_hotspot", "as W1, with the next quarter after every three steps"},
      {"W7_burst", "in every fourth step every second token chooses from the first quarter"}};
  return all;
}

RoutingModel token_imbalance(std::string_view name, uint64_t seed) {
  const std::string text(name);
  RoutingModel model;
  model.name = fmt::format("{}(seed={})", name, seed);
  model.route = [text, seed](const RoutingQuery& q, int64_t, std::span<int32_t> choices) {
    route(text, seed, q, choices);
  };
  model.loads = [text, seed, last = std::make_shared<LastLoads>()](const RoutingQuery& q) {
    return last->of(text, seed, q);
  };
  return model;
}

}  // namespace moe
