// Measured times of fused expert kernels: one call computes the routed experts of one rank, that
// is the choice of the top k, the permutation of rows, both grouped GEMMs with the activation, and
// the weighted sum; not the router's GEMM, not communication. Part of a file of op times
// (op_table.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cost/op_table.h"

namespace moe {

/// The expert layer of one rank of a group of `ep` ranks that together hold all experts.
struct ExpertLayer {
  double hidden = 0;
  double inner = 0;  // width of an expert on this rank
  double experts = 0, k = 0, ep = 1;
  double gates = 2;  // GEMMs from hidden to inner: 2 with a gated activation, else 1
};

/// Thread-safe; immutable.
class ExpertTable {
 public:
  /// A measured layer. alone: it was measured with another kernel, so that times of layers that
  /// were not measured do not follow from it.
  struct Measured {
    ExpertLayer layer;
    bool alone = false;
  };
  /// cells: row-major [layer][load][tokens], OpGrid::kMissing where nothing was measured. loads:
  /// names, "balanced" among them. moves_all: the kernel moves the rows of all ranks of the group.
  /// Throws UserError beginning with `name` unless there is one cell per layer, load and number of
  /// tokens, sizes are at least 1, numbers of tokens ascend, and each load has two measured times
  /// of a layer that is not `alone`.
  ExpertTable(const std::string& name, std::string dtype, PeakRates peak,
              std::vector<Measured> layers, std::vector<std::string> loads,
              std::vector<double> tokens, std::span<const uint16_t> cells, bool moves_all,
              GridSource source);

  const std::string& dtype() const { return dtype_; }
  const PeakRates& peak() const { return peak_; }
  const std::vector<std::string>& loads() const { return loads_; }
  const std::vector<Measured>& layers() const { return layers_; }
  const std::vector<double>& tokens() const { return tokens_; }
  std::span<const uint16_t> cells() const { return cells_; }
  bool moves_all() const { return moves_all_; }
  const GridSource& source() const { return source_; }

  /// Returns the time of a layer for `tokens` tokens of the whole group, each of which chooses
  /// layer.k of all experts. load: an index into loads(); a skewed load means the rank that gets
  /// most rows. A measured layer is interpolated in tokens; for another the ratio to the time by
  /// peak rates is a weighted mean over the four nearest measured layers, at equal rows per expert.
  OpTime at(const ExpertLayer& layer, double tokens, size_t load) const;

  /// Whether the layer itself was measured under the load.
  bool has(const ExpertLayer& layer, size_t load) const {
    return log_ratio(features(layer), 1, load).second;
  }

 private:
  using Features = std::array<double, 6>;
  static Features features(const ExpertLayer& layer);
  double peak_s(const ExpertLayer& layer, double tokens) const;
  double along(size_t layer, size_t load, double tokens) const;
  const float* ratios(size_t layer, size_t load) const {
    return &ratios_[(layer * loads_.size() + load) * tokens_.size()];
  }
  /// Returns the logarithm of the ratio of time to time by peak rates at `rows_per_expert` rows: of
  /// the layer with these features if it was measured under the load (second: true), else a mean
  /// over the nearest layers (second: false). The distance of layers is the sum of the squared
  /// differences of their features.
  std::pair<double, bool> log_ratio(const Features& of, double rows_per_expert, size_t load) const;

  std::string dtype_;
  PeakRates peak_;
  std::vector<Measured> layers_;
  std::vector<std::string> loads_;
  std::vector<double> tokens_, log_tokens_;
  std::span<const uint16_t> cells_;
  bool moves_all_;
  GridSource source_;
  std::vector<Features> features_;
  std::vector<float> ratios_;  // [layer][load][tokens]: logarithms; NaN: the layer lacks the load
};

}  // namespace moe
