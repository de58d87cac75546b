#include "engine/pipeline/layout.h"

#include <algorithm>
#include <charconv>

#include "engine/base/errors.h"

namespace moe::pipeline {
namespace {

constexpr size_t kMostSymbols = 1'000'000;
constexpr int kDeepest = 64;

/// Reads a layout symbol by symbol and writes out its repeats.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::string read() {
    std::string all = sequence(0);
    if (peek() != 0) fail(rest_[0]);
    return all;
  }

 private:
  [[noreturn]] void fail(char symbol) const {
    throw user_error(
        "unknown_symbol: '{}' is not allowed here; a layout has E, t, m and L, | between stages, "
        "and x*n or (...)*n for repeats",
        symbol);
  }

  /// Returns the next symbol, 0 at the end.
  char peek() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(", \t\n"), rest_.size()));
    return rest_.empty() ? '\0' : rest_[0];
  }

  std::string sequence(int depth) {
    std::string all;
    for (char c = peek(); c != 0 && c != ')'; c = peek()) {
      if (std::string_view("EtmL|(").find(c) == std::string_view::npos || depth > kDeepest) fail(c);
      rest_.remove_prefix(1);
      std::string part(1, c);
      if (c == '(') {
        part = sequence(depth + 1);
        if (peek() != ')') fail(c);
        rest_.remove_prefix(1);
      }
      const size_t times = repeats();
      if (times * part.size() + all.size() > kMostSymbols) {
        throw user_error("the layout has more than {} symbols; give fewer repeats", kMostSymbols);
      }
      for (size_t n = 0; n < times; ++n) all += part;
    }
    return all;
  }

  /// Takes "*n" from the front, if it is there; returns n.
  size_t repeats() {
    if (peek() != '*') return 1;
    rest_.remove_prefix(1);
    peek();
    uint32_t times = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), times);
    if (error == std::errc::invalid_argument) fail('*');
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return error == std::errc() ? times : kMostSymbols + 1;
  }

  std::string_view rest_;
};

}  // namespace

std::vector<std::string> parse_layout(std::string_view text, int64_t ranks) {
  const std::string all = Reader(text).read();
  std::vector<std::string> stages(1);
  for (const char c : all) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  if (static_cast<int64_t>(stages.size()) % ranks != 0) {
    throw user_error(
        "stages_not_multiple: {} stages do not go onto {} ranks; give a multiple of the ranks",
        stages.size(), ranks);
  }
  if (std::count(all.begin(), all.end(), 'E') != 1 || !all.starts_with('E')) {
    throw user_error("embedding: E must be there once, as the first symbol of the first stage");
  }
  if (std::count(all.begin(), all.end(), 'L') != 1 || !all.ends_with('L')) {
    throw user_error("loss: L must be there once, as the last symbol of the last stage");
  }
  const size_t mtp = all.find('m');
  if (mtp != std::string::npos && all.find('t', mtp) != std::string::npos) {
    throw user_error("mtp_before_decoder: decoder layers (t) must be before MTP layers (m)");
  }
  return stages;
}

}  // namespace moe::pipeline
