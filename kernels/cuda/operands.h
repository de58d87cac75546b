// The left or right operands of several products in bfloat16. Operands in bfloat16 are used as they
// are; operands in float32 are rounded into a buffer. An operand that is added twice in succession
// is rounded once, and operands that are adjacent in memory are rounded by one launch.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/cast.h"
#include "kernels/cuda/products/blas.h"

namespace moe::kernels::cuda {

class Operands {
 public:
  /// ld: elements from row to row of all operands that are passed to add().
  explicit Operands(int64_t ld) : ld_(ld) {}
  /// Adds the operand of the next product. Requires: all operands have one type.
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
  /// Elements from row to row of the operands that at() returns; rounded rows are 16-byte aligned.
  int64_t stride() const { return wide_ ? Bf16Operand(rows_, widest_).stride : ld_; }
  /// Bytes of the buffer for rounded operands, a multiple of 16.
  int64_t bytes() const { return wide_ ? 2 * rows_ * stride() : 0; }
  /// Rounds the operands into the buffer `to` of bytes() bytes.
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
  /// Returns the i-th operand that was added. Requires: round() was called.
  const void* at(size_t i) const {
    const Operand& x = all_[place_[i]];
    return wide_ ? to_ + x.before * stride() : x.from;
  }

 private:
  struct Operand {
    const void* from;
    int64_t rows, cols, before;  // total rows of the operands before this one
  };
  const int64_t ld_;
  bool wide_ = false;
  std::vector<Operand> all_;
  std::vector<size_t> place_;
  int64_t rows_ = 0, widest_ = 1;
  uint16_t* to_ = nullptr;
};

}  // namespace moe::kernels::cuda
