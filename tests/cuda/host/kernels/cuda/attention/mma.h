// Stands in for the kernels' header of this name: the same functions on the host, written after the
// PTX ISA's text on mma.m16n8k16, ldmatrix and cp.async, not after the kernels. A lane is a thread
// of the emulation; what a warp does together is a meeting of its lanes. Beyond the instructions it
// is strict and counts: an address that is not aligned is a fault, and so is a thread that ends
// with copies under way; rows of one matrix that share banks are counted.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/bf16.h"
#include "tests/cuda/emulation/shared_calls.h"

namespace moe::kernels::cuda {

#define MOE_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline Bf16* dynamic_shared() {
  return reinterpret_cast<Bf16*>(emulation::dynamic_shared());
}

/// The element (row, column) of the matrix of which lane first + i handed in row i.
inline unsigned element(const emulation::Words* rows, unsigned first, unsigned row,
                        unsigned column) {
  return static_cast<unsigned>(rows[first + row][column / 4] >> 16 * (column % 4)) & 0xffffu;
}

/// ldmatrix.sync.aligned.m8n8.x4.b16: threads 0-7, 8-15, 16-23 and 24-31 give the rows of the four
/// matrices. Four threads in turn hold a row, two elements each, the first in the lower half; with
/// .trans matrices are taken as stored by columns.
inline void load_four(unsigned (&to)[4], const Bf16* row, bool transposed, const char* file,
                      int line) {
  const auto address = reinterpret_cast<uintptr_t>(row);
  if (address % 16 != 0) emulation::fault("ldmatrix wants rows that begin at multiples of 16");
  emulation::Words mine = {0, 0, address};
  std::memcpy(mine.data(), row, 16);
  const emulation::Words* rows = emulation::meet_warp(mine, file, line);
  const unsigned lane = threadIdx.x % 32, group = lane / 4, pair = 2 * (lane % 4);
  for (unsigned i = 0; i < 4; ++i) {
    to[i] = transposed
                ? element(rows, 8 * i, pair, group) | element(rows, 8 * i, pair + 1, group) << 16
                : element(rows, 8 * i, group, pair) | element(rows, 8 * i, group, pair + 1) << 16;
    // 32 banks of 4 bytes: a row fills 4 of them, so 8 rows are to begin at 8 different places.
    unsigned banks = 0;
    for (unsigned r = 0; r < 8; ++r) banks |= 1u << (rows[8 * i + r][2] / 16 % 8);
    if (lane == 0 && banks != 0xffu) emulation::note_bank_conflict();
  }
}
inline void load_matrices(unsigned (&to)[4], const Bf16* row, MOE_HERE) {
  load_four(to, row, false, file, line);
}
inline void load_transposed(unsigned (&to)[4], const Bf16* row, MOE_HERE) {
  load_four(to, row, true, file, line);
}

/// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32. With groupID = laneid >> 2 and
/// threadID_in_group = laneid % 4, elements a0..a7 of the four registers of A are
///   row = groupID for a_i with i in {0, 1, 4, 5}, else groupID + 8
///   col = threadID_in_group * 2 + (i & 1), + 8 for i >= 4
/// b0..b3 of the two registers of B: row = threadID_in_group * 2 + (i & 1), + 8 for i >= 2;
/// col = groupID; c0..c3: row = groupID, + 8 for i >= 2; col = threadID_in_group * 2 + (i & 1).
inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                         MOE_HERE) {
  const auto joined = [](unsigned low, unsigned high) { return uint64_t{high} << 32 | low; };
  const emulation::Words* lanes =
      emulation::meet_warp({joined(a[0], a[1]), joined(a[2], a[3]), joined(b0, b1)}, file, line);
  const auto half = [](uint64_t word, unsigned index) {
    return to_float(Bf16{static_cast<uint16_t>(word >> 16 * index)});
  };
  const auto a_at = [&](unsigned row, unsigned col) {
    const unsigned i = col / 8 * 4 + row / 8 * 2 + col % 2;  // of a0..a7, four a word
    return half(lanes[row % 8 * 4 + col % 8 / 2][i / 4], i % 4);
  };
  const auto b_at = [&](unsigned row, unsigned col) {
    return half(lanes[col * 4 + row % 8 / 2][2], row / 8 * 2 + row % 2);
  };
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) sums[i] += a_at(row, k) * b_at(k, col);
  }
}

/// cvt.rn.bf16x2.f32 d, a, b: a goes to the upper half of d, b to the lower.
inline unsigned rounded_two(float low, float high) {
  return unsigned{to_bf16(high).bits} << 16 | to_bf16(low).bits;
}
inline float widened(Bf16 v) {
  return to_float(v);
}

/// ex2.approx.ftz.f32: results below the least normal number are 0.
inline float fast_exp2(float v) {
  const float power = std::exp2(v);
  return power < 0x1p-126f ? 0.0f : power;
}

template <int kBytes>
void start_copy(void* to_shared, const void* from, bool there) {
  if (reinterpret_cast<uintptr_t>(to_shared) % kBytes != 0 ||
      (there && reinterpret_cast<uintptr_t>(from) % kBytes != 0))
    emulation::fault("cp.async wants addresses at multiples of " + std::to_string(kBytes));
  emulation::start_copy(to_shared, there ? from : nullptr, kBytes);
}
inline void finish_copies() {
  emulation::finish_copies();
}
#undef MOE_HERE

}  // namespace moe::kernels::cuda
