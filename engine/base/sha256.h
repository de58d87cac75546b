// SHA-256 (FIPS 180-4), for formats of others that state it. Our own hashes are in fnv.h.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace moe {

/// Returns the hash as eight words, the first four bytes of the hash in word 0.
std::array<uint32_t, 8> sha256(std::string_view text);

}  // namespace moe
