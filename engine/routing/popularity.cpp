#include "engine/routing/popularity.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <span>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/routing/routing_model.h"
#include "engine/routing/token_classes.h"
#include "engine/routing/token_imbalance.h"

namespace moe {
namespace {

constexpr double kMostExponent = 20;

/// Returns the number of ranks of a group with experts: all, or one per expert if there are fewer
/// experts.
int64_t num_holders(const RoutingQuery& query) {
  return std::min(query.group(), query.experts);
}

/// Returns the experts of the rank at this place in its group, ascending: expert e is on rank e * D
/// / experts, D = num_holders().
std::vector<int32_t> experts_on(const RoutingQuery& query, int64_t rank) {
  const int64_t n = num_holders(query);
  const auto first = [&](int64_t r) { return (r * query.experts + n - 1) / n; };
  std::vector<int32_t> experts(static_cast<size_t>(first(rank + 1) - first(rank)));
  std::iota(experts.begin(), experts.end(), static_cast<int32_t>(first(rank)));
  return experts;
}

/// Returns how often a token chooses each class, on average: of k choices without taking a class
/// twice, as exponential clocks give them, 1 - exp(-x share) with x so that they add up to k. The
/// shares add up to 1.
std::vector<double> chosen(std::vector<double> share, int64_t k) {
  if (k == 1) return share;
  const auto wanted = static_cast<double>(k);
  std::vector<double> often(share.size());
  double x = wanted;
  for (int i = 0; i < 1000; ++i) {  // Newton's steps, all from below since the sum is concave in x
    double sum = 0, slope = 0;
    for (size_t c = 0; c < share.size(); ++c) {
      const double left = std::exp(-x * share[c]);
      often[c] = 1 - left;
      sum += often[c];
      slope += share[c] * left;
    }
    if (wanted - sum < 1e-9 * wanted) break;
    x += (wanted - sum) / slope;
  }
  return often;
}

/// Returns the expected choices of the rank with most, divided by the mean.
double max_over_mean(const RoutingQuery& q, std::span<const int32_t> expert_of, double s) {
  std::vector<double> share(expert_of.size()), of_expert(expert_of.size());
  for (size_t c = 0; c < share.size(); ++c) share[c] = std::pow(static_cast<double>(c + 1), -s);
  const double all = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& one : share) one /= all;
  share = chosen(std::move(share), q.k);
  for (size_t c = 0; c < share.size(); ++c) of_expert[static_cast<size_t>(expert_of[c])] = share[c];
  double most = 0;
  for (int64_t rank = 0; rank < num_holders(q); ++rank) {
    double sum = 0;
    for (const int32_t e : experts_on(q, rank)) sum += of_expert[static_cast<size_t>(e)];
    most = std::max(most, sum);
  }
  return most * static_cast<double>(q.group()) / static_cast<double>(q.k);
}

/// Returns the exponent s, by bisection, with which the rank with the most choices is expected to
/// get `wanted` times the mean of the ranks of its group, if a token chooses expert_of[c], c = 0,
/// 1, ..., in proportion to (c + 1)^-s, k times without choosing one twice (whose mean is
/// approximated within about a percent). Throws UserError for a value that no exponent up to 20
/// reaches.
double zipf_exponent(const RoutingQuery& query, std::span<const int32_t> expert_of, double wanted) {
  double lo = 0, hi = kMostExponent;
  const double most = max_over_mean(query, expert_of, hi),
               least = max_over_mean(query, expert_of, 0);
  if (wanted < least - 1e-9 || wanted > most) {
    throw user_error(
        "workload zipf: max_over_mean = {} is not reached with {} experts on {} ranks of a group "
        "and k = {}; allowed: {:.4g} to {:.4g}",
        wanted, query.experts, query.group(), query.k, least, most);
  }
  while (hi - lo > 1e-7) {
    const double s = (lo + hi) / 2;
    (max_over_mean(query, expert_of, s) < wanted ? lo : hi) = s;
  }
  return hi;
}

/// One query for one rank, under one setting of a workload.
struct SeededQuery {
  const WorkloadSetting& setting;
  const RoutingQuery& query;
  int64_t rank;

  double operator[](std::string_view option) const { return setting.value(option); }
  int64_t integer(std::string_view option) const {
    return static_cast<int64_t>(setting.value(option));
  }
  uint32_t key(RandomStream stream, std::initializer_list<int64_t> on) const {
    return stream_key(setting.seed, stream, on);
  }
  /// The layer in the random keys of a class's properties: always 0 when layers are chained,
  /// because classes are then the same in all layers.
  int64_t class_layer() const { return setting.chained() ? 0 : query.layer; }
};

/// Weights of classes before drift. If num_hot > 0, the first num_hot classes get the fraction
/// `share` of the first choices.
struct ClassShape {
  std::vector<double> weight;
  std::vector<int32_t> expert_of;
  int64_t num_hot = 0;
  double share = 0;
};

double uniform(uint64_t index, uint64_t stream) {
  return (random24(index, stream) + 0.5) * 0x1p-24;
}

double normal(uint64_t index, uint64_t stream) {  // Box-Muller
  return std::sqrt(-2 * std::log(uniform(2 * index, stream))) *
         std::cos(2 * std::numbers::pi * uniform(2 * index + 1, stream));
}

ClassShape even_shape(const SeededQuery& seeded) {
  return {
      std::vector<double>(static_cast<size_t>(seeded.query.experts), 1.0),
      permutation(seeded.query.experts, seeded.key(RandomStream::kOrder, {seeded.query.layer}))};
}

ClassShape zipf_shape(const SeededQuery& seeded, double s) {
  ClassShape shape = even_shape(seeded);
  for (size_t c = 0; c < shape.weight.size(); ++c) {
    shape.weight[c] = std::pow(static_cast<double>(c + 1), -s);
  }
  return shape;
}

ClassShape markov(const SeededQuery& seeded) {
  const auto n = static_cast<double>(seeded.query.experts);
  return zipf_shape(seeded, n > 1 ? std::log(seeded["ratio"]) / std::log(n) : 0);
}

ClassShape log_normal_shape(const SeededQuery& seeded, uint32_t key) {
  ClassShape shape = even_shape(seeded);
  for (size_t c = 0; c < shape.weight.size(); ++c) {
    shape.weight[c] = std::exp(seeded["sigma"] * normal(c, key));
  }
  return shape;
}

ClassShape log_normal(const SeededQuery& seeded) {
  return log_normal_shape(seeded, seeded.key(RandomStream::kShape, {seeded.class_layer()}));
}

ClassShape source_ragged(const SeededQuery& seeded) {
  return log_normal_shape(
      seeded, seeded.key(RandomStream::kShape, {seeded.class_layer(), seeded.rank + 1}));
}

/// Assigns the experts in `hot` to the first classes, which together get the option `share` of all
/// first choices.
ClassShape with_hot(const SeededQuery& seeded, const std::vector<int32_t>& hot) {
  ClassShape shape = even_shape(seeded);
  for (size_t i = 0; i < hot.size(); ++i) {
    const auto at = std::find(shape.expert_of.begin(), shape.expert_of.end(), hot[i]);
    std::iter_swap(shape.expert_of.begin() + static_cast<std::ptrdiff_t>(i), at);
  }
  shape.num_hot = static_cast<int64_t>(hot.size());
  shape.share = seeded["share"];
  return shape;
}

int64_t drawn_below(int64_t n, uint32_t key) {
  return static_cast<int64_t>(uniform(0, key) * static_cast<double>(n));
}

ClassShape hot_expert(const SeededQuery& seeded) {
  const uint32_t key = seeded.key(RandomStream::kHot, {seeded.query.layer});
  return with_hot(seeded, {static_cast<int32_t>(drawn_below(seeded.query.experts, key))});
}

ClassShape zipf_of_s(const SeededQuery& seeded) {
  return zipf_shape(seeded, seeded["s"]);
}

ClassShape zipf(const SeededQuery& seeded) {
  const double wanted = seeded["max_over_mean"];
  if (wanted == 0) return zipf_of_s(seeded);
  return zipf_shape(seeded, zipf_exponent(seeded.query, even_shape(seeded).expert_of, wanted));
}

ClassShape hot_rank(const SeededQuery& seeded) {
  const uint32_t key = seeded.key(RandomStream::kHot, {seeded.query.layer});
  return with_hot(seeded, experts_on(seeded.query, drawn_below(num_holders(seeded.query), key)));
}

ClassShape spread_hot(const SeededQuery& seeded) {
  const RoutingQuery& q = seeded.query;
  // For each holder, in random order, its experts in random order.
  std::vector<std::vector<int32_t>> on;
  for (const int32_t d : permutation(num_holders(q), seeded.key(RandomStream::kHot, {q.layer}))) {
    const std::vector<int32_t> held = experts_on(q, d);
    on.emplace_back();
    for (const int32_t i : permutation(static_cast<int64_t>(held.size()),
                                       seeded.key(RandomStream::kHot, {q.layer, d}))) {
      on.back().push_back(held[static_cast<size_t>(i)]);
    }
  }
  const auto wanted = static_cast<size_t>(std::min(seeded.integer("hot"), q.experts));
  std::vector<int32_t> hot;
  for (size_t turn = 0; hot.size() < wanted; ++turn) {
    for (const std::vector<int32_t>& held : on) {
      if (turn < held.size() && hot.size() < wanted) hot.push_back(held[turn]);
    }
  }
  return with_hot(seeded, hot);
}

ClassShape rotating_hotspot(const SeededQuery& seeded) {
  const RoutingQuery& q = seeded.query;
  const std::vector<int32_t> turns =
      permutation(q.experts, seeded.key(RandomStream::kHot, {q.layer}));
  return with_hot(seeded,
                  {turns[static_cast<size_t>(q.step / seeded.integer("period") % q.experts)]});
}

ClassShape burst(const SeededQuery& seeded) {
  const RoutingQuery& q = seeded.query;
  const int64_t stretch = q.step / seeded.integer("length");
  if (uniform(0, seeded.key(RandomStream::kHot, {stretch})) >= seeded["chance"])
    return even_shape(seeded);
  const uint32_t key = seeded.key(RandomStream::kHot, {stretch, q.layer});
  return with_hot(seeded, {static_cast<int32_t>(drawn_below(q.experts, key))});
}

/// Multiplies each weight by exp(drift * x), where x is an AR(1) process over steps: the sum of the
/// last 4 * memory innovations, which are uniform with variance 1 and shrink by phi per step.
void add_drift(const SeededQuery& seeded, std::vector<double>& weight) {
  const double drift = seeded["drift"], memory = seeded["memory"];
  if (drift == 0) return;
  const double phi = std::exp(-1 / memory);
  const auto window = static_cast<int64_t>(std::ceil(4 * memory));
  for (size_t c = 0; c < weight.size(); ++c) {
    const uint32_t key =
        seeded.key(RandomStream::kDrift, {seeded.class_layer(), static_cast<int64_t>(c)});
    double x = 0;
    for (int64_t i = window; i >= 0; --i) {
      x = phi * x + uniform(static_cast<uint64_t>(seeded.query.step - i), key) - 0.5;
    }
    weight[c] *= std::exp(drift * std::sqrt(12.0) * x);
  }
}

/// Scales weights [begin, end) to the sum `sum`; makes them equal when they are all 0.
void scale(std::vector<double>& weight, size_t begin, size_t end, double sum) {
  double now = 0;
  for (size_t c = begin; c < end; ++c) now += weight[c];
  for (size_t c = begin; c < end; ++c) {
    weight[c] = now > 0 ? weight[c] / now * sum : sum / static_cast<double>(end - begin);
  }
}

using ShapeOf = ClassShape (*)(const SeededQuery&);
constexpr ShapeOf kShapes[] = {nullptr,          zipf,       log_normal,    hot_rank,
                               hot_expert,       spread_hot, source_ragged, zipf_of_s,
                               rotating_hotspot, burst,      markov};

bool is(const WorkloadSetting& setting, std::string_view name) {
  return workloads()[setting.row].name == name;
}

OptionSpec share_option(const char* doc) {
  return number_option("share", 0.5, 0, 1, doc);
}

/// Returns the options of a workload, followed by those that all workloads but balanced share.
std::vector<OptionSpec> with_common(std::vector<OptionSpec> own, double top1 = 0, double top2 = 0) {
  own.push_back(number_option(
      "drift", 0, 0, 10, "standard deviation of the change of log popularity per step; 0: none"));
  own.push_back(number_option("memory", 50, 0.1, 1000, "steps over which drift is forgotten"));
  own.push_back(number_option(
      "top1", top1, 0, 1,
      "share of tokens that go on to the likeliest next expert; 0: layers are independent"));
  own.push_back(number_option("top2", top2, 0, 1,
                              "share that goes on to one of the two likeliest; at least top1"));
  own.push_back(number_option("rise", 0, 0, 1,
                              "fraction of the share missing to 1 that each further layer adds"));
  return own;
}

std::vector<WorkloadDef> make_rows() {
  const OptionSpec sigma = number_option("sigma", 1, 0, 10, "standard deviation of log popularity");
  OptionSpec max_over_mean = number_option(
      "max_over_mean", 0, 0, 1e6,
      "expected choices of the rank with most, divided by the mean of the ranks of its group (ep), "
      "for which the exponent is found; 0: it is s");
  max_over_mean.replaces = {"s"};
  return {
      {"balanced",
       "counts of experts differ by at most one, for each rank and for all together",
       {}},
      {"zipf", "the i-th expert is chosen in proportion to i^-s",
       with_common({number_option("s", 1.2, 0, 20, "exponent; 0: even"), max_over_mean})},
      {"log_normal", "each expert's popularity is log-normal", with_common({sigma})},
      {"hot_rank", "one rank's experts get a share of the first choices",
       with_common({share_option("share of first choices that go to the rank")})},
      {"hot_expert", "one expert gets a share of the first choices",
       with_common({share_option("share of first choices that go to the expert")})},
      {"spread_hot", "hot experts on different ranks",
       with_common({integer_option("hot", 4, 1, 65535, "number of hot experts"),
                    share_option("share of first choices that go to the hot experts")})},
      {"source_ragged", "ranks differ in what they choose and in how many tokens they have",
       with_common({sigma, number_option("least", 0.25, 0, 1,
                                         "fewest tokens, as a fraction of the tokens per rank")})},
      {"zero_token_rank", "one rank has no tokens, the others choose by zipf",
       with_common({number_option("s", 0, 0, 20, "exponent; 0: even")})},
      {"rotating_hotspot", "one hot expert, a different one after each period",
       with_common({integer_option("period", 10, 1, 1e9, "steps for which an expert stays hot"),
                    share_option("share of first choices that go to the expert")})},
      {"burst", "one hot expert in some stretches of steps",
       with_common({number_option("chance", 0.2, 0, 1, "probability that a stretch is a burst"),
                    integer_option("length", 5, 1, 1e9, "steps per stretch"),
                    share_option("share of first choices that go to the expert in a burst")})},
      {"markov", "the expert in a layer depends on the expert in the layer before",
       with_common(
           {number_option("ratio", 5.56, 1, 1e6,
                          "popularity of the most divided by that of the least popular expert")},
           0.4194, 0.5459)},
  };
}

}  // namespace

const std::vector<WorkloadDef>& workloads() {
  static const std::vector<WorkloadDef> rows = [] {
    std::vector<WorkloadDef> all = make_rows();
    for (WorkloadDef& def : all) def.has_popularity = !def.options.empty();
    all.push_back({kTokenClasses,
                   "tokens keep a class through all layers, which decides their experts",
                   token_class_options()});
    for (const TokenImbalance& one : token_imbalances()) {
      all.push_back({one.name, one.doc + std::string(" (Megatron-LM's benchmark)"), {}});
    }
    check_rows("workloads", all);
    return all;
  }();
  return rows;
}

double WorkloadSetting::value(std::string_view option) const {
  const std::vector<OptionSpec>& options = workloads()[row].options;
  size_t i = 0;
  while (i < options.size() && options[i].name != option) ++i;
  MOE_CHECK(i < options.size(),
            "workload {}: its definition has no option '{}', although the code reads it",
            workloads()[row].name, option);
  return values[i];
}

double risen(double mass, double rise, int64_t layer) {
  return 1 - (1 - mass) * std::pow(1 - rise, static_cast<double>(layer - 1));
}

std::vector<int32_t> permutation(int64_t n, uint32_t key) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[(hash32(i, key) * uint64_t{i}) >> 32]);
  }
  return order;
}

Popularity popularity(const WorkloadSetting& setting, const RoutingQuery& query, int64_t rank) {
  static_assert(std::size(kShapes) == 11);
  const SeededQuery seeded = {setting, query, rank};
  ClassShape shape = kShapes[setting.row](seeded);
  add_drift(seeded, shape.weight);
  const auto hot = static_cast<size_t>(shape.num_hot);
  const size_t all = shape.weight.size();
  if (hot > 0 && hot < all) {
    scale(shape.weight, 0, hot, shape.share);
    scale(shape.weight, hot, all, 1 - shape.share);
  } else {
    scale(shape.weight, 0, all, 1);
  }
  return {std::move(shape.weight), std::move(shape.expert_of)};
}

bool differs_by_source(const WorkloadSetting& setting) {
  return is(setting, "source_ragged");
}

int64_t active_tokens(const WorkloadSetting& setting, const RoutingQuery& query, int64_t rank) {
  if (is(setting, "zero_token_rank")) {
    const uint32_t key = stream_key(setting.seed, RandomStream::kActive, {});
    return rank == drawn_below(query.ranks, key) ? 0 : query.tokens;
  }
  if (!is(setting, "source_ragged")) return query.tokens;
  const double least = setting.value("least");
  const uint32_t key = stream_key(setting.seed, RandomStream::kActive, {query.step});
  const double part = least + (1 - least) * uniform(static_cast<uint64_t>(rank), key);
  return std::llround(part * static_cast<double>(query.tokens));
}

}  // namespace moe
