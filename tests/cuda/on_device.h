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

/// Arrays for a body that runs with activations of T; the reference takes the numbers that S has.
template <class T, class S = T>
struct Arrays {
  using Stored = T;
  using Wide = kernels::Wide<T>;

  static T of(double v) {
    const auto narrow = static_cast<float>(v);
    if constexpr (std::is_same_v<T, kernels::Bf16>) {
      return kernels::to_bf16(narrow);
    } else if constexpr (std::is_same_v<S, kernels::Bf16>) {
      return kernels::to_float(kernels::to_bf16(narrow));
    } else {
      return narrow;
    }
  }
  static std::vector<T> stored(int64_t n, uint64_t stream, double range = 1) {
    std::vector<T> all;
    for (const float v : random_values<float>(n, stream, range)) all.push_back(of(v));
    return all;
  }
  static std::vector<Wide> wide(int64_t n, uint64_t stream, double range = 1) {
    return random_values<Wide>(n, stream, range);
  }
};

/// What a body gives back: activations and the rest.
template <class T>
struct Results {
  std::vector<T> stored;
  std::vector<kernels::Wide<T>> wide;
};

/// The same with activations in bfloat16, the reference from the same rounded numbers: activations
/// are off by one rounding and `tolerance`, all else is as near as with float32.
template <class Body>
void agree_mixed(double tolerance, Body body) {
  const Results<double> want = body(kernels::reference_table(), Arrays<double, kernels::Bf16>());
  Results<kernels::Bf16> first;
  const auto same = [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
  };
  for (uint64_t run = 0; run < kRuns; ++run) {
    INFO("bfloat16, run " << run);
    begin_run(run);
    const Results<kernels::Bf16> got = body(device_mixed(), Arrays<kernels::Bf16>());
    REQUIRE(device_error() == "");
    if (run == 0) {
      first = got;
      std::vector<float> stored;
      for (const kernels::Bf16 v : got.stored) stored.push_back(to_float(v));
      CHECK(worst_error(stored, want.stored, kBf16Rounding) <= tolerance);
      CHECK(relative_l2(stored, want.stored) <= kMaxRelativeL2Bf16);
      CHECK(worst_error(got.wide, want.wide) <= tolerance);
      CHECK(relative_l2(got.wide, want.wide) <= kMaxRelativeL2);
    } else {
      CHECK(same(got.stored, first.stored));
      CHECK(same(got.wide, first.wide));
    }
  }
}

/// body(table, Arrays) -> Results, with activations in float32 and in bfloat16.
template <class Body>
void agree_on_both(double tolerance, Body body) {
  agree_on_device(tolerance, [&](const auto& k, auto zero) {
    const auto all = body(k, Arrays<decltype(zero)>());
    return joined(all.stored, all.wide);
  });
  agree_mixed(tolerance, body);
}

}  // namespace moe::test
