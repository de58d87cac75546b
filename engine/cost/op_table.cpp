#include "engine/cost/op_table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/errors.h"

namespace moe {
namespace {

/// The least relative error that is stated for an extrapolated time; an assumption.
constexpr double kLeastErrorOutside = 0.25;

double by_rates(double flops, double elements, const PeakRates& peak) {
  return std::max(flops / peak.flops_per_s,
                  elements * peak.element_bytes / peak.memory_bytes_per_s) +
         peak.shortest_s;
}

double gemm_s(std::span<const double> p, const PeakRates& peak) {
  const double m = p[0], n = p[1], k = p[2];
  return by_rates(2 * m * n * k, m * n + m * k + n * k, peak);
}

/// The gradient of weights is added to the sum of earlier ones: read and written.
double gemm_dw_s(std::span<const double> p, const PeakRates& peak) {
  const double m = p[0], n = p[1], k = p[2], grads = p[3] / peak.element_bytes;
  return by_rates(2 * m * n * k, 2 * grads * m * n + m * k + n * k, peak);
}

double grouped_s(std::span<const double> p, const PeakRates& peak) {
  const double experts = p[0], rows = p[1], n = p[2], k = p[3];
  return by_rates(experts * 2 * rows * n * k, experts * (rows * n + rows * k + n * k), peak);
}

double grouped_dw_s(std::span<const double> p, const PeakRates& peak) {
  const double experts = p[0], rows = p[1], n = p[2], k = p[3], grads = p[4] / peak.element_bytes;
  return by_rates(experts * 2 * rows * n * k, experts * (2 * grads * n * k + rows * n + rows * k),
                  peak);
}

double attention_s(std::span<const double> p, const PeakRates& peak) {
  const double batch = p[0], seq = p[1], heads = p[2], kv_heads = p[3], dim = p[4];
  return by_rates(2 * batch * heads * seq * seq * dim, 2 * batch * seq * dim * (heads + kv_heads),
                  peak);
}

/// Scores of 192 numbers per query and key and values of 128 numbers, as in DeepSeek-V2 and V3.
double latent_attention_s(std::span<const double> p, const PeakRates& peak) {
  const double batch = p[0], seq = p[1], heads = p[2];
  return by_rates(batch * heads * seq * seq * (192 + 128), batch * seq * heads * 640, peak);
}

/// The backward has 2.5 times the flops: five products for two, of which scores are computed again.
constexpr double kBackwardFlops = 2.5;

double attention_dx_s(std::span<const double> p, const PeakRates& peak) {
  return kBackwardFlops * attention_s(p, peak);
}

double latent_attention_dx_s(std::span<const double> p, const PeakRates& peak) {
  return kBackwardFlops * latent_attention_s(p, peak);
}

/// What a rank sends over its link, times `trips`, plus the start of a collective.
double exchange_s(std::span<const double> p, const PeakRates& peak, double trips) {
  const double ranks = p[0], bytes = p[1];
  return trips * (ranks - 1) / ranks * bytes / peak.link_bytes_per_s + 5e-6;
}

double one_way_s(std::span<const double> p, const PeakRates& peak) {
  return exchange_s(p, peak, 1);
}

double both_ways_s(std::span<const double> p, const PeakRates& peak) {
  return exchange_s(p, peak, 2);
}

/// NVLink's rate over that of a GPU's NIC: 450 GB/s and 400 Gb/s (NVIDIA's data sheet of DGX H100).
constexpr double kLinkOverNic = 9;

/// Nodes on which a token's experts are at most (DeepSeek-V3's gate and DeepEP's tests).
constexpr double kMostNodes = 4;

/// The mean number of others of `n` ranks or nodes to which a token goes with `topk` even choices
/// among `most` of them.
double others_reached(double n, double most, double topk) {
  return most * (1 - std::pow(1 - 1 / most, topk)) * (n - 1) / n;
}

/// A token goes once to each node by NIC, and once to each rank by the link inside the node; plus
/// the start of the kernel. Scales of fp8, 4 bytes per 128 numbers, are left to the ratio.
double rows_s(std::span<const double> p, const PeakRates& peak) {
  const double nodes = p[0], tokens = p[2], hidden = p[3], topk = p[4];
  const double most = std::min(nodes, kMostNodes), ranks = peak.node_ranks;
  const double copies = std::max(others_reached(nodes * ranks, most * ranks, topk),
                                 kLinkOverNic * others_reached(nodes, most, topk));
  return tokens * copies * hidden * peak.element_bytes / peak.link_bytes_per_s + 25e-6;
}

/// A missing cell of a line: the nearest known cells on both sides, -1 where there is none.
struct Gap {
  int64_t below = -1, above = -1;
};

/// Calls `visit(a, index, gap)` for each axis `a` and each cell `index` that is not known.
template <class Known, class F>
void for_each_gap(std::span<const size_t> strides, std::span<const std::vector<double>> logs,
                  size_t size, const Known& known, const F& visit) {
  for (size_t a = 0; a < strides.size(); ++a) {
    const auto length = static_cast<int64_t>(logs[a].size());
    const auto stride = static_cast<int64_t>(strides[a]);
    for (size_t begin = 0; begin < size; ++begin) {
      if (begin / strides[a] % logs[a].size() != 0) continue;
      const auto cell = [&](int64_t i) { return begin + static_cast<size_t>(i * stride); };
      Gap gap;
      for (int64_t i = 0; i < length; ++i) {
        if (known(cell(i))) {
          gap.below = i;
          continue;
        }
        if (gap.above < i) {
          for (gap.above = i + 1; gap.above < length && !known(cell(gap.above));) ++gap.above;
        }
        const Gap here{gap.below, gap.above < length ? gap.above : -1};
        if (here.below >= 0 || here.above >= 0) visit(a, cell(i), cell(0), i, here);
      }
    }
  }
}

}  // namespace

double element_bytes_of(std::string_view dtype) {
  if (dtype == "fp8" || dtype == "fp8_block") return 1;
  if (dtype == "bf16") return 2;
  return dtype == "f32" || dtype == "tf32" ? 4 : 0;
}

std::span<const MeasuredOp> measured_ops() {
  static const std::array<MeasuredOp, 16> ops{{
      {measured::kGemm, "y [m,n] = x [m,k] times w [n,k] transposed", {"m", "n", "k"}, gemm_s},
      {measured::kGemmDx,
       "the product that is the gradient of a GEMM's input",
       {"m", "n", "k"},
       gemm_s},
      {measured::kGemmDw,
       "the product that is the gradient of a GEMM's weights, added to a sum",
       {"m", "n", "k", "grad_bytes"},
       gemm_dw_s},
      {measured::kGrouped,
       "for each of a rank's experts a GEMM of its rows",
       {"experts", "rows", "n", "k"},
       grouped_s},
      {measured::kGroupedDx,
       "the gradient of the rows of a grouped_gemm",
       {"experts", "rows", "n", "k"},
       grouped_s},
      {measured::kGroupedDw,
       "the gradient of the weights of a grouped_gemm, [n,rows] times [rows,k], added to a sum",
       {"experts", "rows", "n", "k", "grad_bytes"},
       grouped_dw_s},
      {measured::kAttention,
       "forward of causal attention",
       {"batch", "seq", "heads", "kv_heads", "head_dim"},
       attention_s},
      {measured::kAttentionDx,
       "backward of causal attention",
       {"batch", "seq", "heads", "kv_heads", "head_dim"},
       attention_dx_s},
      {measured::kLatentAttention,
       "forward of causal latent attention with DeepSeek-V3's head sizes",
       {"batch", "seq", "heads"},
       latent_attention_s},
      {measured::kLatentAttentionDx,
       "its backward",
       {"batch", "seq", "heads"},
       latent_attention_dx_s},
      {measured::kAllToAll,
       "inside a node; bytes: a rank's send buffer for all peers",
       {"ranks", "bytes"},
       one_way_s},
      {measured::kAllReduce,
       "inside a node; bytes: a rank's buffer",
       {"ranks", "bytes"},
       both_ways_s},
      {measured::kAllGather,
       "inside a node; bytes: what a rank holds after it",
       {"ranks", "bytes"},
       one_way_s},
      {measured::kReduceScatter,
       "inside a node; bytes: what a rank holds before it",
       {"ranks", "bytes"},
       one_way_s},
      {measured::kDispatch,
       "each rank of whole nodes sends its tokens' rows to the ranks of their experts",
       {"nodes", "sms", "tokens", "hidden", "topk"},
       rows_s},
      {measured::kCombine,
       "the rows of a dispatch come back and are added",
       {"nodes", "sms", "tokens", "hidden", "topk"},
       rows_s},
  }};
  return ops;
}

uint16_t OpGrid::cell_of(double ns) {
  const double cell = std::round(kSteps * std::log(ns));
  MOE_CHECK(cell >= 0 && cell < kMissing, "OpGrid: {} ns is outside 1 to 7e13 ns", ns);
  return static_cast<uint16_t>(cell);
}

OpGrid::OpGrid(const std::string& name, const MeasuredOp& op, std::string dtype, PeakRates peak,
               std::vector<GridAxis> axes, std::span<const uint16_t> cells, GridSource source)
    : op_(&op),
      dtype_(std::move(dtype)),
      peak_(peak),
      axes_(std::move(axes)),
      strides_(axes_.size()),
      cells_(cells),
      source_(std::move(source)) {
  const auto fail = [&](const std::string& what) {
    throw user_error("{}: table of '{}': {}", name, op.name, what);
  };
  static_assert(kMostAxes >= 6);
  if (axes_.size() != op.axes.size()) {
    fail(fmt::format("it has {} axes; the op has {}", axes_.size(), op.axes.size()));
  }
  size_t size = 1;
  for (size_t a = axes_.size(); a-- > 0;) {
    const GridAxis& axis = axes_[a];
    if (axis.name != op.axes[a]) {
      fail(fmt::format("axis {} is '{}'; it must be '{}'", a + 1, axis.name, op.axes[a]));
    }
    const auto rises = [](double left, double right) { return !(left < right); };
    if (axis.values.empty() || !(axis.values[0] >= 1) || !(axis.values.back() < kMostOfSize) ||
        std::adjacent_find(axis.values.begin(), axis.values.end(), rises) != axis.values.end()) {
      fail(fmt::format("the values of axis '{}' must be at least 1 and ascend", axis.name));
    }
    if (!(axis.weight > 0)) fail(fmt::format("the weight of axis '{}' must be above 0", axis.name));
    strides_[a] = size;
    size *= axis.values.size();
  }
  if (size != cells_.size()) {
    fail(fmt::format("it has {} cells; its axes have {}", cells_.size(), size));
  }
  for (const GridAxis& axis : axes_) {
    std::vector<double>& logs = logs_.emplace_back(axis.values);
    for (double& value : logs) value = std::log(value);
  }
  num_measured_ =
      std::count_if(cells_.begin(), cells_.end(), [](uint16_t cell) { return cell != kMissing; });
  if (num_measured_ == 0) fail("it has no measured cell");
}

double OpGrid::log_peak(std::span<const double> point) const {
  return std::log(1e9 * op_->peak_s(point, peak_));
}

const OpGrid::Ratios& OpGrid::ratios() const {
  std::call_once(once_, [this] {
    fill(ratios_);
    find_errors(ratios_);
  });
  return ratios_;
}

void OpGrid::fill(Ratios& ratios) const {
  const size_t size = cells_.size();
  ratios.log.resize(size);
  ratios.beyond.assign(size, false);
  std::vector<bool> known(size);
  std::array<double, kMostAxes> values{};
  for (size_t index = 0; index < size; ++index) {
    known[index] = cells_[index] != kMissing;
    if (!known[index]) continue;
    for (size_t a = 0; a < axes_.size(); ++a) {
      values[a] = axes_[a].values[index / strides_[a] % logs_[a].size()];
    }
    ratios.log[index] =
        static_cast<float>(cells_[index] / kSteps - log_peak({values.data(), axes_.size()}));
  }
  std::vector<float> sum(size), weight(size);
  for (const bool outside : {false, true}) {
    for (bool filled = true; filled;) {
      std::fill(weight.begin(), weight.end(), 0.f);
      for_each_gap(
          strides_, logs_, size, [&](size_t i) { return known[i]; },
          [&](size_t a, size_t index, size_t first, int64_t i, const Gap& gap) {
            const bool both = gap.below >= 0 && gap.above >= 0;
            if (!both && !outside) return;
            const auto at = [&](int64_t j) {
              return ratios.log[first + static_cast<size_t>(j) * strides_[a]];
            };
            const auto log_of = [&](int64_t j) { return logs_[a][static_cast<size_t>(j)]; };
            float value = at(gap.below >= 0 ? gap.below : gap.above);
            if (both) {
              const double share =
                  (log_of(i) - log_of(gap.below)) / (log_of(gap.above) - log_of(gap.below));
              value += static_cast<float>(share) * (at(gap.above) - value);
            }
            const auto w = static_cast<float>(axes_[a].weight);
            sum[index] = (weight[index] == 0 ? 0 : sum[index]) + w * value;
            weight[index] += w;
          });
      filled = false;
      for (size_t index = 0; index < size; ++index) {
        if (known[index] || weight[index] == 0) continue;
        filled = known[index] = true;
        ratios.log[index] = sum[index] / weight[index];
        ratios.beyond[index] = outside;
      }
    }
  }
}

/// Compares measured cells with the lines between their neighbours, and keeps the 90th percentile
/// of the relative error around each value of the first axis.
void OpGrid::find_errors(Ratios& ratios) const {
  const size_t num_first = logs_[0].size();
  std::vector<std::vector<float>> errors(num_first);
  for (size_t index = 0; index < cells_.size(); ++index) {
    if (cells_[index] == kMissing) continue;
    double sum = 0, weights = 0;
    for (size_t a = 0; a < axes_.size(); ++a) {
      const size_t i = index / strides_[a] % logs_[a].size();
      if (i == 0 || i + 1 == logs_[a].size()) continue;
      const double low = ratios.log[index - strides_[a]], high = ratios.log[index + strides_[a]];
      const double share = (logs_[a][i] - logs_[a][i - 1]) / (logs_[a][i + 1] - logs_[a][i - 1]);
      sum += axes_[a].weight * (low + share * (high - low));
      weights += axes_[a].weight;
    }
    if (weights == 0) continue;
    errors[index / strides_[0]].push_back(
        static_cast<float>(std::abs(std::expm1(sum / weights - ratios.log[index]))));
  }
  ratios.error.resize(num_first);
  for (size_t i = 0; i < num_first; ++i) {
    // Neighbours on the first axis count too, until there are enough cells for a percentile.
    std::vector<float> around;
    for (size_t width = 0; width < num_first && around.size() < 100; ++width) {
      around.clear();
      for (size_t j = i > width ? i - width : 0; j < std::min(num_first, i + width + 1); ++j) {
        around.insert(around.end(), errors[j].begin(), errors[j].end());
      }
    }
    if (around.empty()) around.push_back(0.25f);  // nothing to compare
    const auto place = around.begin() + static_cast<int64_t>(around.size() * 9 / 10);
    std::nth_element(around.begin(), place, around.end());
    ratios.error[i] = *place;
  }
}

OpTime OpGrid::at(std::span<const double> point) const {
  const size_t num_axes = axes_.size();
  MOE_CHECK(point.size() == num_axes, "OpGrid::at: a point of '{}' has {} numbers; it must have {}",
            op_->name, point.size(), num_axes);
  const Ratios& filled = ratios();
  std::array<double, kMostAxes> share{};
  size_t lowest = 0, first = 0;
  OpTime time;
  bool exact = true;
  for (size_t a = 0; a < num_axes; ++a) {
    MOE_CHECK(point[a] > 0, "OpGrid::at: {} of '{}' is {}; it must be above 0", axes_[a].name,
              op_->name, point[a]);
    const std::vector<double>&logs = logs_[a], &values = axes_[a].values;
    const auto above = static_cast<size_t>(
        std::upper_bound(values.begin(), values.end(), point[a]) - values.begin());
    const size_t below = above == 0 ? 0 : above - 1;
    lowest += below * strides_[a];
    if (a == 0) first = below;
    time.extrapolated |= point[a] < values.front() || point[a] > values.back();
    exact &= point[a] == values[below];
    if (above == 0 || above == values.size()) continue;
    share[a] = (std::log(point[a]) - logs[below]) / (logs[above] - logs[below]);
  }
  double log_ratio = 0;
  for (size_t bits = 0; bits < size_t{1} << num_axes; ++bits) {
    double weight = 1;
    size_t index = lowest;
    for (size_t a = 0; a < num_axes && weight > 0; ++a) {
      const bool up = (bits >> a & 1) != 0;
      weight *= up ? share[a] : 1 - share[a];
      index += up ? strides_[a] : 0;
    }
    if (!(weight > 0)) continue;
    log_ratio += weight * filled.log[index];
    time.extrapolated |= filled.beyond[index];
  }
  time.ns = std::exp(log_ratio + log_peak(point));
  double error = source_.spread;
  if (!exact) error = std::max<double>(error, filled.error[first]);
  if (time.extrapolated) error = std::max(2 * error, kLeastErrorOutside);
  time.lo_ns = time.ns / (1 + error);
  time.hi_ns = time.ns * (1 + error);
  return time;
}

}  // namespace moe
