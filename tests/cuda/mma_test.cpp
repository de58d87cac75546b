// The emulated instructions of tensor cores: every number is another one, so that each element that
// lies in the wrong lane or register changes a result. The places are those of the PTX ISA.
#include "kernels/cuda/attention/mma.h"

#include <array>
#include <set>

#include "kernels/cuda/device.h"
#include "tests/cuda/emulation/emulated.h"

using Catch::Matchers::Contains;
using namespace moe;
using namespace moe::kernels::cuda;
using kernels::Bf16;
using kernels::to_bf16;
using kernels::to_float;

namespace {

constexpr int kTestThreads = 2 * kWarp;
using Registers = std::array<unsigned, 4>;

unsigned pair(Bf16 low, Bf16 high) {
  return unsigned{high.bits} << 16 | low.bits;
}

/// Four matrices of 8 x 8 a warp, one below the other, element (row, column) of matrix i of warp w
/// a number of its own.
Bf16 number(int w, int i, int row, int column) {
  return {static_cast<uint16_t>(w * 256 + i * 64 + row * 8 + column)};
}

__global__ void load_numbers(Registers* out, bool transposed, int row_stride) {
  Bf16* mine = dynamic_shared() + warp() * kWarp * row_stride;
  for (int column = 0; column < 8; ++column)
    mine[lane() * row_stride + column] = number(warp(), lane() / 8, lane() % 8, column);
  __syncwarp();
  unsigned to[4];
  if (transposed)
    load_transposed(to, mine + lane() * row_stride);
  else
    load_matrices(to, mine + lane() * row_stride);
  for (size_t i = 0; i < 4; ++i) out[threadIdx.x][i] = to[i];
}

std::vector<Registers> loaded(bool transposed, int row_stride) {
  std::vector<Registers> out(kTestThreads);
  launch_with_shared(int64_t{kTestThreads} * row_stride * 2, load_numbers, 1, kTestThreads, nullptr,
                     out.data(), transposed, row_stride);
  return out;
}

/// a [16,16], b [16,8] and c [16,8] by the formulas of the ISA, warp w with numbers of its own.
__global__ void multiply(float* c, const float* a, const float* b) {
  a += warp() * 256, b += warp() * 128, c += warp() * 128;
  const int group = lane() / 4, in_group = lane() % 4;
  unsigned a_registers[4], b_registers[2];
  Bf16 as[8], bs[4];
  for (int i = 0; i < 8; ++i) {
    const int row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
    const int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
    as[i] = to_bf16(a[row * 16 + column]);
  }
  for (int i = 0; i < 4; ++i)
    bs[i] = to_bf16(b[(in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + group]);
  for (int i = 0; i < 4; ++i) a_registers[i] = pair(as[2 * i], as[2 * i + 1]);
  for (int i = 0; i < 2; ++i) b_registers[i] = pair(bs[2 * i], bs[2 * i + 1]);
  float sums[4];
  float* at[4];
  for (int i = 0; i < 4; ++i) {
    at[i] = c + (i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1);
    sums[i] = *at[i];
  }
  multiply_add(sums, a_registers, b_registers[0], b_registers[1]);
  for (int i = 0; i < 4; ++i) *at[i] = sums[i];
}

/// Each thread copies a vector to its place and reads its neighbour's.
__global__ void copy_and_read(unsigned* out, const uint4* in, bool wait, int real) {
  auto* all = reinterpret_cast<uint4*>(dynamic_shared());
  start_copy<16>(all + threadIdx.x, in + threadIdx.x, static_cast<int>(threadIdx.x) < real);
  if (wait) finish_copies();
  __syncthreads();
  out[threadIdx.x] = all[(threadIdx.x + 1) % kTestThreads].y;
  __syncthreads();
  finish_copies();
}

__global__ void copy_crooked() {
  start_copy<16>(dynamic_shared() + 4, nullptr, false);
  finish_copies();
}
__global__ void copy_and_leave(const uint4* in) {
  start_copy<16>(dynamic_shared() + 8 * threadIdx.x, in, true);
}

std::vector<unsigned> copied(bool wait, int real) {
  std::vector<uint4> in;
  for (unsigned i = 0; i < kTestThreads; ++i) in.push_back({0, i + 1, 0, 0});
  std::vector<unsigned> out(kTestThreads);
  launch_with_shared(kTestThreads * 16, copy_and_read, 1, kTestThreads, nullptr, out.data(),
                     in.data(), wait, real);
  return out;
}

}  // namespace

TEST_CASE("emulated: four lanes hold a row of a loaded matrix, the lower element first") {
  emulation::set_order(2);
  for (const bool transposed : {false, true}) {
    const std::vector<Registers> got = loaded(transposed, 8);
    for (int t = 0; t < kTestThreads; ++t)
      for (int i = 0; i < 4; ++i) {
        const int w = t / 32, major = t % 32 / 4, minor = 2 * (t % 4);
        const unsigned want =
            transposed ? pair(number(w, i, minor, major), number(w, i, minor + 1, major))
                       : pair(number(w, i, major, minor), number(w, i, major, minor + 1));
        CHECK(got[static_cast<size_t>(t)][static_cast<size_t>(i)] == want);
      }
  }
}

TEST_CASE("emulated: rows of a matrix that share banks are counted") {
  emulation::take_bank_conflicts();
  for (const int row_stride : {8, 24, 72}) loaded(false, row_stride);
  CHECK(emulation::take_bank_conflicts() == 0);
  for (const int row_stride : {16, 32, 64}) loaded(true, row_stride);
  CHECK(emulation::take_bank_conflicts() == 3 * 2 * 4);  // each matrix of both warps
}

TEST_CASE("emulated: attention of bfloat16 loads its fragments without bank conflicts") {
  for (const int64_t head_dim : {32, 64, 96, 128}) {
    const kernels::AttentionShape s = {1, 40, 1, head_dim};
    const auto n = static_cast<size_t>(s.seq * head_dim);
    std::vector<Bf16> qkv(3 * n), ctx(n), dqkv(3 * n);
    std::vector<float> lse(static_cast<size_t>(s.seq)), work(lse.size());
    emulation::take_bank_conflicts();
    test::device_mixed().attention(ctx.data(), lse.data(), qkv.data(), s, work.data(), nullptr);
    test::device_mixed().attention_dx(dqkv.data(), ctx.data(), ctx.data(), qkv.data(), lse.data(),
                                      s, work.data(), nullptr);
    CHECK(emulation::take_bank_conflicts() == 0);
  }
}

TEST_CASE("emulated: fragments multiply as their matrices do, and are added to the sums") {
  emulation::set_order(2);
  std::vector<float> a, b, c;
  for (int i = 0; i < 512; ++i) a.push_back(static_cast<float>((i * 37 + 11) % 257 - 128));
  for (int i = 0; i < 256; ++i) b.push_back(static_cast<float>((i * 101 + 5) % 257 - 128));
  for (int i = 0; i < 256; ++i) c.push_back(static_cast<float>(1000 * i));
  std::vector<float> want = c;
  for (size_t w = 0; w < 2; ++w)
    for (size_t row = 0; row < 16; ++row)
      for (size_t column = 0; column < 8; ++column)
        for (size_t k = 0; k < 16; ++k)
          want[w * 128 + row * 8 + column] +=
              a[w * 256 + row * 16 + k] * b[w * 128 + k * 8 + column];
  launch(multiply, 1, kTestThreads, nullptr, c.data(), a.data(), b.data());
  CHECK(c == want);
}

TEST_CASE("emulated: pairs are rounded to the nearest, the first in the lower half") {
  CHECK(rounded_two(1.0f, -2.0f) == 0xc0003f80u);
  CHECK(rounded_two(1.00390625f, 1.01171875f) == 0x3f823f80u);  // ties go to the even one
  CHECK(std::isnan(widened({static_cast<uint16_t>(rounded_two(NAN, INFINITY))})));
  CHECK(rounded_two(NAN, INFINITY) >> 16 == 0x7f80u);
  CHECK(fast_exp2(-INFINITY) == 0);
  CHECK(fast_exp2(-127) == 0);
  CHECK(std::isnan(fast_exp2(NAN)));
}

TEST_CASE("emulated: a copy that nobody waits for lands in some orders only") {
  const auto results = [](bool wait) {
    std::set<std::vector<unsigned>> all;
    for (uint64_t order = 0; order < 4; ++order) {
      emulation::set_order(order);
      all.insert(copied(wait, kTestThreads));
    }
    return all.size();
  };
  CHECK(results(true) == 1);
  CHECK(results(false) > 1);
  CHECK(copied(true, 3) == [] {
    std::vector<unsigned> want(kTestThreads, 0);
    want[0] = 2, want[1] = 3, want[kTestThreads - 1] = 1;
    return want;
  }());
}

TEST_CASE("emulated: copies want aligned places and an end") {
  emulation::set_order(0);
  const uint4 in = {};
  CHECK_THROWS_WITH(launch_with_shared(1024, copy_crooked, 1, kTestThreads, nullptr),
                    Contains("multiples of 16"));
  CHECK_THROWS_WITH(launch_with_shared(1024, copy_and_leave, 1, kTestThreads, nullptr, &in),
                    Contains("copies under way"));
}
