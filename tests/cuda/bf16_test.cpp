// Rounding to bfloat16 and products of rounded matrices, emulated on the host, never run on a GPU.
// What is rounded is compared with a rounding that measures the distances to both neighbours.
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cast.h"
#include "kernels/device.h"
#include "tests/cuda/emulation/emulated.h"

using namespace moe;
using namespace moe::test;

extern "C" const kernels::DeviceTable* moe_cuda_device();

namespace {

const kernels::DeviceTable& device() {
  return *moe_cuda_device();
}

float float_of(uint32_t bits) {
  return emulation::from_bits<float>(bits);
}

/// What a bfloat16 counts for as a neighbour: past the largest comes 2^128.
double place_of(uint32_t bf16) {
  const float v = float_of(bf16 << 16);
  return std::isinf(v) ? std::copysign(0x1p128, v) : v;
}

uint16_t nearest(float v) {
  const auto bits = static_cast<uint32_t>(emulation::to_bits(v));
  const uint32_t down = bits >> 16, up = down + 1;  // towards zero and away from it
  if (std::isinf(v)) return static_cast<uint16_t>(down);
  const double to_down = std::abs(v - place_of(down)), to_up = std::abs(place_of(up) - v);
  if (to_down == to_up) return static_cast<uint16_t>(down % 2 == 0 ? down : up);
  return static_cast<uint16_t>(to_down < to_up ? down : up);
}

bool is_rounded(uint16_t got, float v) {
  const float back = float_of(uint32_t{got} << 16);
  if (!std::isnan(v)) return got == nearest(v);
  return std::isnan(back) && std::signbit(back) == std::signbit(v);
}

}  // namespace

TEST_CASE("emulated on the host: every upper half of a float is rounded to the nearest bfloat16") {
  // With it the ends of the lower half, ties and their neighbours; so also all infinities, the
  // largest numbers, denormals, and NaNs whose bits are in the lower half alone.
  std::vector<float> in;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      in.push_back(float_of(upper << 16 | lower));
  const auto n = static_cast<int64_t>(in.size());
  std::vector<uint64_t> out(in.size() / 4 + 1);
  auto* const got = reinterpret_cast<uint16_t*>(out.data());
  kernels::cuda::cast_to_bf16(got, n, in.data(), n, 1, n, nullptr);
  REQUIRE(kernels::cuda::take_error() == "");
  int64_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) wrong += is_rounded(got[i], in[i]) ? 0 : 1;
  CHECK(wrong == 0);
}

TEST_CASE("emulated on the host: a tensor is rounded at any place, and nothing beside it") {
  for (const int64_t n : {0, 1, 7, 64, 4096, 5003})
    for (int64_t shift = 0; shift < 4; ++shift) {
      INFO(n << " at " << shift);
      const auto all = random_values<float>(shift + n, static_cast<uint64_t>(n));
      std::vector<kernels::Bf16> out(static_cast<size_t>(shift + n + 1), {0xffff});
      device().mixed->round(out.data() + shift, all.data() + shift, n, nullptr);
      REQUIRE(kernels::cuda::take_error() == "");
      int64_t wrong = 0;
      for (int64_t i = shift; i < shift + n; ++i) {
        const auto at = static_cast<size_t>(i);
        wrong += is_rounded(out[at].bits, all[at]) ? 0 : 1;
      }
      CHECK(wrong == 0);
      CHECK(out.back().bits == 0xffff);
      std::vector<float> same(static_cast<size_t>(n));
      device().kernels->round(same.data(), all.data() + shift, n, nullptr);
      CHECK(std::equal(same.begin(), same.end(), all.begin() + shift));
    }
}

TEST_CASE("emulated on the host: rows of any length, distance and place are rounded, gaps stay") {
  Rng rng(1);
  for (int64_t round = 0; round < 100; ++round) {
    emulation::set_order(static_cast<uint64_t>(round));
    const int64_t rows = rng.below(5), cols = rng.below(round % 10 == 0 ? 2000 : 70);
    const int64_t in_stride = cols + rng.below(9), out_stride = (cols + 4 + rng.below(9)) / 4 * 4;
    const int64_t shift = round % 2 == 0 ? 0 : rng.below(4);
    INFO(rows << " x " << cols << " at " << in_stride << " and " << out_stride << " + " << shift);
    const auto all = random_values<float>(shift + rows * in_stride, static_cast<uint64_t>(round));
    const float* const in = all.data() + shift;
    std::vector<uint64_t> out(static_cast<size_t>(rows * out_stride / 4 + 1), ~uint64_t{0});
    auto* const got = reinterpret_cast<uint16_t*>(out.data());
    kernels::cuda::cast_to_bf16(got, out_stride, in, in_stride, rows, cols, nullptr);
    REQUIRE(kernels::cuda::take_error() == "");
    bool right = got[rows * out_stride] == 0xffff;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < out_stride; ++c) {
        const uint16_t here = got[r * out_stride + c];
        right = right && (c < cols ? is_rounded(here, in[r * in_stride + c]) : here == 0xffff);
      }
    REQUIRE(right);
  }
}

TEST_CASE("both GEMMs of a stream have a handle of their own, which go with the stream") {
  const int before = emulation::cublas_handles;
  const size_t alive = emulation::things_alive();
  const kernels::Stream stream = device().make_stream(false);
  const float a = 3, b = 5;
  float c = 0;
  for (int round = 0; round < 2; ++round) {
    device().mixed->gemm(false, false, 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1, stream);
    CHECK(c == 15);
    CHECK(emulation::cublas_used.stream == stream);
    CHECK(emulation::cublas_used.math == CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    CHECK(emulation::cublas_rows_at_16_bytes);
    device().kernels->gemm(false, false, 1, 1, 1, 1, &a, 1, &b, 1, 0, &c, 1, stream);
    CHECK(emulation::cublas_used.math == CUBLAS_PEDANTIC_MATH);
  }
  CHECK(emulation::cublas_handles == before + 2);
  CHECK(emulation::things_alive() == alive + 3);  // the stream, a workspace, room for a and b
  device().end_stream(stream);
  CHECK(emulation::cublas_handles == before);
  CHECK(emulation::things_alive() == alive);
  CHECK(kernels::cuda::take_error() == "");
}

TEST_CASE("a recording's room for rounded operands outlives a larger GEMM, until the stream ends") {
  const size_t alive = emulation::things_alive();
  const kernels::Stream stream = device().make_stream(false);
  const auto multiply = [&](const std::vector<float>& x, std::vector<float>& y, int64_t n) {
    device().mixed->gemm(false, false, n, n, n, 1, x.data(), n, x.data(), n, 0, y.data(), n,
                         stream);
  };
  std::vector<float> small(4 * 4, 2), large(64 * 64, 1), small_out(small.size()),
      large_out(large.size());
  device().begin_recording(stream);
  multiply(small, small_out, 4);
  const kernels::Recording recording = device().end_recording(stream);
  REQUIRE(recording);
  const size_t recorded = emulation::things_alive();
  multiply(large, large_out, 64);
  multiply(small, small_out, 4);
  CHECK(emulation::things_alive() == recorded + 1);  // one block more, none less
  std::fill(small.begin(), small.end(), 3.0f);
  device().replay(recording, stream);
  CHECK(small_out == std::vector<float>(small.size(), 36));
  CHECK(large_out == std::vector<float>(large.size(), 64));
  device().release_recording(recording);
  device().end_stream(stream);
  CHECK(emulation::things_alive() == alive);
  CHECK(kernels::cuda::take_error() == "");
}

TEST_CASE("a GEMM without room for its rounded operands says so and touches nothing") {
  const kernels::Stream stream = device().make_stream(false);
  const float a = 3;
  float c = 7;
  const int64_t n = int64_t{1} << 20;
  device().mixed->gemm(false, false, n, n, n, 1, &a, n, &a, n, 0, &c, n, stream);
  CHECK(kernels::cuda::take_error() == "cuda: gemm: allocate 4398046511104 bytes: out of memory");
  CHECK(c == 7);
  device().end_stream(stream);
  CHECK(kernels::cuda::take_error() == "");
}
