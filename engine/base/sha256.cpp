#include "engine/base/sha256.h"

#include <algorithm>
#include <bit>

namespace moe {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

void add_block(State& state, const unsigned char* bytes) {
  std::array<uint32_t, 64> w = {};
  for (size_t i = 0; i < 64; ++i) w[i / 4] |= static_cast<uint32_t>(bytes[i]) << (24 - 8 * (i % 4));
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  State h = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t e = h[4], a = h[0];
    const uint32_t one = h[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                         ((e & h[5]) ^ (~e & h[6])) + kRound[i] + w[i];
    const uint32_t two = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                         ((a & h[1]) ^ (a & h[2]) ^ (h[1] & h[2]));
    std::copy_backward(h.begin(), h.end() - 1, h.end());
    h[4] += one;
    h[0] = one + two;
  }
  for (size_t i = 0; i < 8; ++i) state[i] += h[i];
}

}  // namespace

std::array<uint32_t, 8> sha256(std::string_view text) {
  State state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t done = 0;
  for (; text.size() - done >= 64; done += 64) add_block(state, bytes + done);
  // What is left, a bit that ends it, zeros, and the number of bits: one or two blocks.
  std::array<unsigned char, 128> end = {};
  const size_t left = text.size() - done, blocks = left < 56 ? 1 : 2;
  std::copy_n(bytes + done, left, end.begin());
  end[left] = 0x80;
  for (size_t i = 0; i < 8; ++i) {
    end[64 * blocks - 1 - i] = static_cast<unsigned char>(uint64_t{8} * text.size() >> (8 * i));
  }
  for (size_t b = 0; b < blocks; ++b) add_block(state, end.data() + 64 * b);
  return state;
}

}  // namespace moe
