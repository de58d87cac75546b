#include "engine/base/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace moe {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string without_digits(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c < '0' || c > '9') text += c;
  }
  return text;
}

/// Returns whether a user who typed `name` may have meant `candidate`. Two names of up to three
/// letters must begin with the same letter: 'tp' is hardly a typing error for 'ep'. Names that
/// differ only in digits are different things: 'top1', 'top2'.
bool plausible(std::string_view name, std::string_view candidate) {
  if (without_digits(name) == without_digits(candidate)) return false;
  constexpr size_t kShort = 3;
  const bool is_short = name.size() <= kShort && candidate.size() <= kShort;
  return !is_short || name.substr(0, 1) == candidate.substr(0, 1);
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& names) {
  const size_t limit = std::max<size_t>(1, name.size() / 3);
  std::string best;
  size_t best_distance = limit + 1;
  for (const std::string& candidate : names) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance && plausible(name, candidate)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string unknown_name(std::string_view what, std::string_view name,
                         std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text = fmt::format("unknown {} '{}', have: {}", what, name, fmt::join(names, ", "));
  const std::string near = nearest_name(name, names);
  if (!near.empty()) text += fmt::format(". Did you mean '{}'?", near);
  return text;
}

}  // namespace moe
