#include "engine/cost/expert_table.h"

#include <algorithm>
#include <cmath>

#include "engine/base/contains.h"
#include "engine/base/errors.h"

namespace moe {
namespace {

/// Seconds that any layer takes at least. They are added to the time by peak rates, so that the
/// ratio of the measured time to it is near 1 for a small layer too.
constexpr double kFloor = 20e-6;
constexpr size_t kNeighbours = 4;
/// The load that every table has.
constexpr const char* kEvenLoad = "balanced";
/// Added to the squared distance of a neighbour, whose weight is the inverse of the sum.
constexpr double kSoft = 0.05;
/// Relative errors of times of a measured layer, and of any other layer: the 90th percentiles of
/// the errors for single times, and for whole layers, that were held out of the table
/// (tests/cost/op_table_test.cpp).
constexpr double kErrorMeasured = 0.12, kErrorOther = 0.35;

}  // namespace

ExpertTable::ExpertTable(const std::string& name, std::string dtype, PeakRates peak,
                         std::vector<Measured> layers, std::vector<std::string> loads,
                         std::vector<double> tokens, std::span<const uint16_t> cells,
                         bool moves_all, GridSource source)
    : dtype_(std::move(dtype)),
      peak_(peak),
      layers_(std::move(layers)),
      loads_(std::move(loads)),
      tokens_(std::move(tokens)),
      log_tokens_(tokens_),
      cells_(cells),
      moves_all_(moves_all),
      source_(std::move(source)) {
  const auto fail = [&](const std::string& what) {
    throw user_error("{}: table of 'experts': {}", name, what);
  };
  const auto rises = [](double left, double right) { return !(left < right); };
  if (tokens_.empty() || !(tokens_[0] > 0) || !(tokens_.back() < kMostOfSize) ||
      std::adjacent_find(tokens_.begin(), tokens_.end(), rises) != tokens_.end()) {
    fail("the numbers of tokens must be above 0 and ascend");
  }
  if (cells_.size() != layers_.size() * loads_.size() * tokens_.size() || cells_.empty()) {
    fail(fmt::format("it has {} cells; {} layers, {} loads and {} numbers of tokens need {}",
                     cells_.size(), layers_.size(), loads_.size(), tokens_.size(),
                     layers_.size() * loads_.size() * tokens_.size()));
  }
  for (double& t : log_tokens_) t = std::log(t);
  for (const Measured& m : layers_) {
    const ExpertLayer& l = m.layer;
    for (const double size : {l.hidden, l.inner, l.experts, l.k, l.ep, l.gates}) {
      if (!(size >= 1 && size < kMostOfSize)) {
        fail(fmt::format("a size of a layer is {}, allowed: at least 1 and below {:g}", size,
                         kMostOfSize));
      }
    }
    features_.push_back(features(l));
  }
  ratios_.resize(cells_.size());
  const size_t length = tokens_.size();
  for (size_t row = 0; row < cells_.size() / length; ++row) {
    const ExpertLayer& layer = layers_[row / loads_.size()].layer;
    float* const ratio = &ratios_[row * length];
    std::vector<size_t> known;
    for (size_t t = 0; t < length; ++t) {
      const uint16_t cell = cells_[row * length + t];
      if (cell == OpGrid::kMissing) continue;
      known.push_back(t);
      ratio[t] =
          static_cast<float>(cell / OpGrid::kSteps - std::log(1e9 * peak_s(layer, tokens_[t])));
    }
    // A ratio that was not measured is on the line between its neighbours or, outside, equal to the
    // nearest one. A row with fewer than two measured times is not used (NaN).
    for (size_t t = 0; t < length; ++t) {
      const auto above = std::lower_bound(known.begin(), known.end(), t);
      if (known.size() < 2) {
        ratio[t] = NAN;
      } else if (above == known.end() || above == known.begin()) {
        ratio[t] = ratio[above == known.end() ? known.back() : known.front()];
      } else if (*above != t) {
        const size_t low = *(above - 1), high = *above;
        const double share =
            (log_tokens_[t] - log_tokens_[low]) / (log_tokens_[high] - log_tokens_[low]);
        ratio[t] = ratio[low] + static_cast<float>(share) * (ratio[high] - ratio[low]);
      }
    }
  }
  if (!contains(loads_, kEvenLoad)) fail(fmt::format("none of its loads is '{}'", kEvenLoad));
  for (size_t load = 0; load < loads_.size(); ++load) {
    const auto serves_others = [&](const Measured& m) {
      const auto layer = static_cast<size_t>(&m - layers_.data());
      return !m.alone && !std::isnan(*ratios(layer, load));
    };
    if (std::none_of(layers_.begin(), layers_.end(), serves_others)) {
      fail(fmt::format("of load '{}' no layer that others may follow has two measured times",
                       loads_[load]));
    }
  }
}

ExpertTable::Features ExpertTable::features(const ExpertLayer& l) {
  return {std::log2(l.hidden), std::log2(l.inner), std::log2(l.experts / l.ep),
          std::log2(l.ep),     std::log2(l.k),     l.gates};
}

/// Returns the time in seconds of both grouped GEMMs by peak rates, plus that of moving rows and
/// kFloor.
double ExpertTable::peak_s(const ExpertLayer& l, double tokens) const {
  const double rows = std::max(tokens * l.k / l.ep, 1.0);
  const double weights = l.hidden * l.inner * (l.gates + 1);
  const double compute = 2 * rows * weights / peak_.flops_per_s;
  const double fetch =
      peak_.element_bytes * std::min(l.experts / l.ep, rows) * weights / peak_.memory_bytes_per_s;
  const double moved_rows = moves_all_ ? tokens * l.k : rows;
  const double moved =
      2 * moved_rows * (2 * l.hidden + (l.gates + 1) * l.inner) / peak_.memory_bytes_per_s;
  return std::max(compute, fetch) + moved + kFloor;
}

double ExpertTable::along(size_t layer, size_t load, double tokens) const {
  const float* const ratio = ratios(layer, load);
  const auto above = static_cast<size_t>(std::upper_bound(tokens_.begin(), tokens_.end(), tokens) -
                                         tokens_.begin());
  if (above == 0) return ratio[0];
  if (above == tokens_.size()) return ratio[above - 1];
  const double share =
      (std::log(tokens) - log_tokens_[above - 1]) / (log_tokens_[above] - log_tokens_[above - 1]);
  return ratio[above - 1] + share * (ratio[above] - ratio[above - 1]);
}

std::pair<double, bool> ExpertTable::log_ratio(const Features& of, double rows_per_expert,
                                               size_t load) const {
  std::array<std::pair<double, size_t>, kNeighbours> nearest;
  nearest.fill({HUGE_VAL, 0});
  for (size_t i = 0; i < layers_.size(); ++i) {
    double distance = 0;
    for (size_t f = 0; f < of.size(); ++f) {
      const double step = features_[i][f] - of[f];
      distance += step * step;
    }
    if (distance >= nearest.back().first || std::isnan(*ratios(i, load))) continue;
    if (layers_[i].alone && distance > 0) continue;
    nearest.back() = {distance, i};
    for (size_t n = kNeighbours - 1; n > 0 && nearest[n].first < nearest[n - 1].first; --n) {
      std::swap(nearest[n], nearest[n - 1]);
    }
  }
  const auto of_layer = [&](size_t i) {
    return along(i, load, rows_per_expert * layers_[i].layer.experts / layers_[i].layer.k);
  };
  if (nearest[0].first == 0) return {of_layer(nearest[0].second), true};
  double sum = 0, shares = 0;
  for (const auto& [distance, i] : nearest) {
    if (distance == HUGE_VAL) continue;
    const double share = 1 / (distance + kSoft);
    sum += share * of_layer(i);
    shares += share;
  }
  MOE_CHECK(shares > 0, "ExpertTable::log_ratio: no measured layer has the load '{}'",
            loads_[load]);
  return {sum / shares, false};
}

OpTime ExpertTable::at(const ExpertLayer& layer, double tokens, size_t load) const {
  const auto [log_of, measured] =
      log_ratio(features(layer), tokens * layer.k / layer.experts, load);
  const double error = std::max(source_.spread, measured ? kErrorMeasured : kErrorOther);
  OpTime time;
  time.extrapolated = !measured || tokens < tokens_.front() || tokens > tokens_.back();
  time.ns = 1e9 * std::exp(log_of) * peak_s(layer, tokens);
  time.lo_ns = time.ns / (1 + error);
  time.hi_ns = time.ns * (1 + error);
  return time;
}

}  // namespace moe
