// Measured times of matrix products as a training step has them: from tables of one GPU, measured
// inside a step or alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/cluster/cluster.h"
#include "engine/cost/op_table.h"
#include "engine/graph/op_def.h"

namespace moe {

struct ProductTime {
  OpTime time;
  std::string op;                    // of the table
  const OpGrid* grid = nullptr;      // whose time it is
  const OpTables* tables = nullptr;  // in which the grid is
  double factor = 1;                 // by which times of the grid were multiplied
};

/// The tables that a device names. A product takes, in this order:
///   its time in Device::step_times;
///   its time in Device::op_times, of a kernel that ran alone, times Device::step_ratio: the
///     gradients of a GEMM that have no table there are GEMMs of their sizes; products of experts
///     take the sum of the times of one GEMM each with the rows of one expert, rounded up;
///     attention, which runs as fast inside a step as alone, is not multiplied by step_ratio, and
///     its backward takes Device::attention_backward times as long as its forward.
class ProductTimes {
 public:
  ProductTimes() = default;
  /// Throws UserError naming a file that cannot be read or is no file of op times.
  explicit ProductTimes(const Device& device);

  /// dtype: "bf16" or another type of tables. Returns nullopt for no product, for a product of no
  /// rows, and where no table has it.
  std::optional<ProductTime> at(const MatrixWork& work, const std::string& dtype) const;

  const OpTables* alone() const { return alone_.get(); }
  const OpTables* in_step() const { return step_.get(); }

 private:
  std::optional<ProductTime> alone_at(const MatrixWork& work, const std::string& dtype) const;

  std::shared_ptr<const OpTables> alone_, step_;  // null: none
  double step_ratio_ = 1, attention_backward_ = 1;
};

/// An op of tables and a point of it.
struct ProductPoint {
  const char* op = "";
  std::vector<double> sizes;
};
/// Returns where tables of a training step have the product; a product of one expert is a GEMM.
ProductPoint product_point(const MatrixWork& work);
/// Returns the product that a point of an op of tables stands for; kind kNone for an op that is no
/// product.
MatrixWork product_of(std::string_view op, std::span<const double> sizes);

}  // namespace moe
