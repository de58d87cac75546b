#include "engine/passes/capacity/pipemoe_degree.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/names.h"

namespace moe {

double layer_time(const LayerTimes& t, int64_t degree) {
  const auto r = static_cast<double>(degree);
  const double network = 2 * r * t.alpha_a + 2 * t.wire;
  const double compute = 2 * t.alpha_a + 2 * t.wire / r + r * t.alpha_e + t.work;
  return std::max(network, compute);
}

double layer_time_by_recurrence(const LayerTimes& t, int64_t degree) {
  const auto r = static_cast<double>(degree);
  const double a = t.alpha_a + t.wire / r, e = t.alpha_e + t.work / r;
  double dispatched = 0, computed = 0;
  std::vector<double> ready;  // when the experts of each part end
  for (int64_t i = 0; i < degree; ++i) {
    dispatched += a;
    computed = std::max(computed, dispatched) + e;
    ready.push_back(computed);
  }
  double network = dispatched;
  for (const double begin : ready) network = std::max(begin, network) + a;
  return network;
}

void check(const LayerModel& layer, std::string_view who) {
  const std::pair<const char*, double> fields[] = {{"alpha_a", layer.alpha_a},
                                                   {"beta_a", layer.beta_a},
                                                   {"n_d", layer.n_d},
                                                   {"alpha_e", layer.alpha_e},
                                                   {"beta_e", layer.beta_e},
                                                   {"n_e", layer.n_e},
                                                   {"cut_s", layer.cut_s},
                                                   {"alpha_b", layer.alpha_b.value_or(0)},
                                                   {"beta_b", layer.beta_b.value_or(0)}};
  for (const auto& [name, value] : fields) {
    if (std::isfinite(value) && value >= 0) continue;
    throw user_error("{}.{} = {}: a number of at least 0 is allowed", who, name, value);
  }
}

std::vector<LayerTimes> times_of(const LayerModel& m, DegreeObjective objective) {
  std::vector<LayerTimes> ways{{.alpha_a = m.alpha_a,
                                .wire = m.beta_a * m.n_d,
                                .alpha_e = m.alpha_e,
                                .work = m.beta_e * m.n_e}};
  if (objective == DegreeObjective::kForward) return ways;
  LayerTimes backward = ways[0];
  backward.alpha_e = m.alpha_b.value_or(2 * m.alpha_e);
  backward.work = m.beta_b.value_or(2 * m.beta_e) * m.n_e;
  ways.push_back(backward);
  return ways;
}

void check(const DegreeProblem& problem, std::string_view who) {
  MOE_CHECK(problem.ways.size() == 1 || problem.ways.size() == 2,
            "DegreeProblem::ways has {} entries, allowed: 1 or 2 (forward, backward)",
            problem.ways.size());
  if (problem.max_degree < 1) {
    throw user_error("{}.max_degree = {}: 1 or more is allowed", who, problem.max_degree);
  }
  if (!problem.allowed) return;
  if (problem.allowed->empty()) {
    throw user_error("{}.allowed: the set is empty; give at least one degree", who);
  }
  int64_t before = 0;
  for (const int64_t degree : *problem.allowed) {
    if (degree < 1 || degree > problem.max_degree) {
      throw user_error("{}.allowed contains the degree {}; 1 to {} is allowed", who, degree,
                       problem.max_degree);
    }
    if (degree <= before) {
      throw user_error(
          "{}.allowed: {} comes after {}; each degree must be higher than the one before it", who,
          degree, before);
    }
    before = degree;
  }
}

double time_of(const DegreeProblem& problem, int64_t degree) {
  double time = degree > 1 ? problem.cut_s : 0;
  for (const LayerTimes& way : problem.ways) time += layer_time(way, degree);
  return time;
}

namespace {

/// Keeps the best of the degrees that consider() receives.
class Best {
 public:
  explicit Best(const DegreeProblem& problem) : problem_(problem) {}

  void consider(int64_t degree) {
    const double time = time_of(problem_, degree);
    const bool better =
        time < choice_.time_s || (time == choice_.time_s && degree < choice_.degree);
    if (found_ && !better) return;
    choice_ = {degree, time};
    found_ = true;
  }

  /// Considers the nearest allowed degrees below and above the real number x; none when x is NaN.
  void consider_beside(double x) {
    const auto most = static_cast<double>(problem_.max_degree);
    if (std::isnan(x)) return;
    x = std::clamp(x, 1.0, most);
    if (!problem_.allowed) {
      consider(static_cast<int64_t>(std::floor(x)));
      consider(static_cast<int64_t>(std::ceil(x)));
      return;
    }
    const std::vector<int64_t>& allowed = *problem_.allowed;
    const auto above = std::lower_bound(allowed.begin(), allowed.end(), x);
    if (above != allowed.end()) consider(*above);
    if (above != allowed.begin()) consider(*(above - 1));
  }

  DegreeChoice choice() const { return choice_; }

 private:
  const DegreeProblem& problem_;
  DegreeChoice choice_;
  bool found_ = false;
};

/// The degrees where g = h (pipemoe_degree.h), by a formula that avoids cancellation: the roots of
/// (2 alpha_a - alpha_e) r^2 + (2 wire - work - 2 alpha_a) r - 2 wire. Infinite or NaN where there
/// is no root.
std::array<double, 2> crossings(const LayerTimes& t) {
  const double a = 2 * t.alpha_a - t.alpha_e, b = 2 * t.wire - t.work - 2 * t.alpha_a;
  const double c = -2 * t.wire;
  const double q = -(b + std::copysign(std::sqrt(b * b - 4 * a * c), b)) / 2;
  return {q / a, c / q};
}

/// The degree where the derivative of the summed time of problem.ways (forward and backward) is 0,
/// if the ways in `in_compute` (one bit per way) take the time h, in which experts are the
/// bottleneck, and the others the time g, in which all-to-alls are. Infinite or NaN if there is
/// none.
double flat(const DegreeProblem& problem, unsigned in_compute) {
  double wire = 0, slope = 0;
  for (size_t i = 0; i < problem.ways.size(); ++i) {
    const bool compute = (in_compute >> i & 1) != 0;
    wire += compute ? problem.ways[i].wire : 0;
    slope += compute ? problem.ways[i].alpha_e : 2 * problem.ways[i].alpha_a;
  }
  return std::sqrt(2 * wire / slope);
}

}  // namespace

DegreeChoice exact_degree(const DegreeProblem& problem) {
  Best best(problem);
  // Above degree 1, cut_s is a constant and the sum of T over the ways is convex. So the minimum is
  // at degree 1, at an end of the allowed range, where the derivative is 0, or at a kink (a
  // crossing of g and h).
  best.consider_beside(1.5);
  best.consider_beside(static_cast<double>(problem.max_degree));
  for (const LayerTimes& way : problem.ways) {
    for (const double r : crossings(way)) best.consider_beside(r);
  }
  for (unsigned ways = 1; ways < 1u << problem.ways.size(); ++ways) {
    best.consider_beside(flat(problem, ways));
  }
  return best.choice();
}

DegreeChoice brute_degree(const DegreeProblem& problem) {
  Best best(problem);
  if (problem.allowed) {
    for (const int64_t degree : *problem.allowed) best.consider(degree);
    return best.choice();
  }
  for (int64_t degree = 1; degree <= problem.max_degree; ++degree) best.consider(degree);
  return best.choice();
}

std::vector<std::string> degree_methods() {
  return {"exact", "brute", "paper", "paper_fixed"};
}

DegreeChoice choose_degree(const DegreeProblem& problem, std::string_view method,
                           std::string_view who) {
  check(problem, who);
  if (method == "exact") return exact_degree(problem);
  if (method == "brute") return brute_degree(problem);
  if (method == "paper") return paper_degree(problem, PaperVersion::kPrinted);
  if (method == "paper_fixed") return paper_degree(problem, PaperVersion::kFixed);
  throw UserError(unknown_name(fmt::format("{}.method", who), method, degree_methods()));
}

}  // namespace moe
