#include "engine/base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace moe {
namespace {

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

// Returns the number of bytes of the UTF-8 sequence at the start of `text`; 0 if it is not valid.
size_t sequence_length(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2   ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || text.size() < length) return 0;
  const uint8_t lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte_at(text, 1) < lowest || byte_at(text, 1) > highest) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte_at(text, i) < 0x80 || byte_at(text, i) > 0xBF) return 0;
  }
  return length;
}

uint32_t code_point(std::string_view sequence) {
  if (sequence.size() == 1) return byte_at(sequence, 0);
  uint32_t code = byte_at(sequence, 0) & (0x7Fu >> sequence.size());
  for (size_t i = 1; i < sequence.size(); ++i) code = code << 6 | (byte_at(sequence, i) & 0x3Fu);
  return code;
}

bool acts_on_terminal(uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
  const bool direction = code == 0x061C || code == 0x200E || code == 0x200F ||
                         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  const bool ends_line = code == 0x2028 || code == 0x2029;
  return control || direction || ends_line;
}

}  // namespace

std::optional<size_t> first_invalid_byte(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = sequence_length(text.substr(at));
    const std::string_view sequence = text.substr(at, length);
    if (length == 0) {
      out += fmt::format("\\x{:02x}", byte_at(text, at));
    } else if (const uint32_t code = code_point(sequence); !acts_on_terminal(code)) {
      out += sequence;
    } else {
      out += code < 0x100 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    }
    at += std::max<size_t>(length, 1);
  }
  return out;
}

std::string shortened(std::string text) {
  constexpr size_t kMost = 8000, kEnd = 1000;
  if (text.size() <= kMost) return text;
  const std::string note = fmt::format(" [{} bytes are left out] ", text.size() - kMost);
  return text.replace(kMost - kEnd, text.size() - kMost, note);
}

}  // namespace moe
