// Runs one body on the double reference and on every fast table of this machine, from the same
// random floats, and compares what it returns.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "kernels/kernels.h"

namespace moe::test {

/// n numbers in [-range, range), each exactly a float.
template <class T>
std::vector<T> random_values(int64_t n, uint64_t stream, double range = 1) {
  std::vector<T> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(range * (random24(i, stream) * 0x1p-23 - 1));
  return v;
}

inline std::vector<int32_t> random_ints(int64_t n, uint64_t stream, int64_t below) {
  Rng rng(stream);
  std::vector<int32_t> v(static_cast<size_t>(n));
  for (int32_t& x : v) x = static_cast<int32_t>(rng.below(below));
  return v;
}

template <class T>
std::vector<T> joined(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The largest |got - want| / (1 + |want|), or infinity where one of them alone is NaN. An error of
/// `rounding` of a number itself does not count.
inline double worst_error(const std::vector<float>& got, const std::vector<double>& want,
                          double rounding = 0) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    if (static_cast<double>(got[i]) == want[i]) continue;
    const double size = std::abs(want[i]);
    const double error = (std::abs(got[i] - want[i]) - rounding * size) / (1 + size);
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  return worst;
}

/// Rounding to bfloat16 is off by up to 2^-8 of a number, over many numbers by less.
constexpr double kBf16Rounding = 0x1p-8;
constexpr double kMaxRelativeL2Bf16 = 4e-3;
constexpr double kMaxRelativeL2 = 1e-5;

/// ||got - want|| / ||want||; infinity where an element is NaN in one alone, or where they differ
/// from a `want` of 0. Elements that are NaN or the same infinity in both do not count. `least`: of
/// ||want||, where that is smaller.
inline double relative_l2(const std::vector<float>& got, const std::vector<double>& want,
                          double least = 0) {
  REQUIRE(got.size() == want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = got[i], b = want[i];
    if (std::isnan(a) && std::isnan(b)) continue;
    if (std::isnan(a) || std::isnan(b)) return INFINITY;
    if (a == b && std::isinf(a)) continue;
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / std::max(norm, least * least));
}

/// body(table, T{}) -> vector<T>, for the reference and for each fast table.
template <class Body>
void agree(double tolerance, Body body) {
  const std::vector<double> want = body(kernels::reference_table(), double{});
  for (const auto* table : kernels::runnable_tables()) {
    INFO(table->name);
    CHECK(worst_error(body(*table, float{}), want) <= tolerance);
  }
}

/// Work area of a fused attention call.
template <class T>
std::vector<char> work_for(const kernels::KernelTable<T>& k, kernels::AttentionShape shape) {
  return std::vector<char>(static_cast<size_t>(k.attention_work_bytes(shape)));
}

struct Matrix {
  int64_t rows, cols;
};
/// Shapes with whole vectors, ragged ends, single rows and single columns.
inline const std::vector<Matrix> kMatrices = {{1, 1},   {1, 16},   {3, 5},    {7, 128}, {2, 129},
                                              {33, 67}, {17, 256}, {64, 300}, {5, 1031}};

struct GateShape {
  int64_t tokens, experts, hidden;
};
inline const std::vector<GateShape> kGates = {
    {1, 2, 8},    {5, 3, 17},   {4, 4, 128},  {19, 5, 100}, {7, 64, 33}, {33, 16, 64},
    {2, 256, 20}, {66, 70, 40}, {9, 100, 12}, {9, 1000, 5}, {9, 1100, 8}};

}  // namespace moe::test
