// One side's operands of several products in bfloat16: as they come, or rounded into room. One that
// comes again right after itself is rounded once, and those that lie one behind the other in one
// go.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/cast.h"
#include "kernels/cuda/products/blas.h"

namespace moe::kernels::cuda {

class Operands {
 public:
  /// ld: numbers from row to row, of all as they come.
  explicit Operands(int64_t ld) : ld_(ld) {}
  /// Requires: all of one type.
  void add(EitherIn x, int64_t rows, int64_t cols) {
    wide_ = x.wide;
    const bool again = !all_.empty() && all_.back().from == x.data && all_.back().rows == rows &&
                       all_.back().cols == cols;
    if (!again) {
      all_.push_back({x.data, rows, cols, rows_});
      rows_ += rows;
      widest_ = std::max(widest_, cols);
    }
    place_.push_back(all_.size() - 1);
  }
  /// Numbers from row to row, of all as they are multiplied: at 16 bytes where they are rounded.
  int64_t stride() const { return wide_ ? Bf16Operand(rows_, widest_).stride : ld_; }
  /// Of room, a multiple of 16.
  int64_t bytes() const { return wide_ ? 2 * rows_ * stride() : 0; }
  void round(void* to, Stream stream) {
    to_ = static_cast<uint16_t*>(to);
    for (size_t begin = 0, end = 1; wide_ && begin < all_.size(); begin = end++) {
      const Operand& first = all_[begin];
      const auto* const from = static_cast<const float*>(first.from);
      int64_t rows = first.rows;
      for (;
           end < all_.size() && all_[end].cols == first.cols && all_[end].from == from + rows * ld_;
           ++end)
        rows += all_[end].rows;
      cast_to_bf16(to_ + first.before * stride(), stride(), from, ld_, rows, first.cols, stream);
    }
  }
  /// Of the i-th that was added. Requires: they are rounded.
  const void* at(size_t i) const {
    const Operand& x = all_[place_[i]];
    return wide_ ? to_ + x.before * stride() : x.from;
  }

 private:
  struct Operand {
    const void* from;
    int64_t rows, cols, before;  // rows of those before it
  };
  const int64_t ld_;
  bool wide_ = false;
  std::vector<Operand> all_;
  std::vector<size_t> place_;
  int64_t rows_ = 0, widest_ = 1;
  uint16_t* to_ = nullptr;
};

}  // namespace moe::kernels::cuda
