// Runs one body on the double reference and on the CUDA kernels, which see the host's arrays. The
// same cases are compiled twice: with emulated.cpp they run on the host's emulation of CUDA, with
// tests/gpu on a GPU.
#pragma once

#include <cstring>

#include "tests/kernels/compare.h"

namespace moe::test {

/// The kernels under test. Takes pointers to host memory, ignores the stream, is synchronous.
const kernels::KernelTable<float>& device_table();
const kernels::KernelTable<kernels::Bf16>& device_mixed();
/// The first failure of this thread since the last call, or "".
std::string device_error();
/// What runs from now on is run number `run`: the emulation takes threads and blocks ascending,
/// descending, then shuffled by the number. A GPU takes them as it likes.
void begin_run(uint64_t run);
constexpr uint64_t kRuns = 3;

constexpr double kMaxRelativeL2 = 1e-5;

/// ||got - want|| / ||want||; infinity where an element is NaN in one alone, or where they differ
/// from a `want` of 0. Elements that are NaN or the same infinity in both do not count.
inline double relative_l2(const std::vector<float>& got, const std::vector<double>& want) {
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
  return std::sqrt(difference / norm);
}

/// body(table, T{}) -> vector<T>. Each element of the kernels' result is within `tolerance` of the
/// reference's, all of them together within kMaxRelativeL2, and every run gives the same bits.
template <class Body>
void agree_on_device(double tolerance, Body body) {
  const std::vector<double> want = body(kernels::reference_table(), double{});
  std::vector<float> first;
  for (uint64_t run = 0; run < kRuns; ++run) {
    INFO("run " << run);
    begin_run(run);
    const std::vector<float> got = body(device_table(), float{});
    REQUIRE(device_error() == "");
    if (run == 0) {
      first = got;
      CHECK(worst_error(got, want) <= tolerance);
      CHECK(relative_l2(got, want) <= kMaxRelativeL2);
    } else {
      CHECK(std::memcmp(got.data(), first.data(), got.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace moe::test
