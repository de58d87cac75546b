#include "engine/placement/path_profile.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr int kCodeBits = 63;
constexpr size_t kPending = 1 << 16;

void check_popularity(const char* field, int64_t value, int64_t lo, int64_t hi) {
  if (value < lo || value > hi) {
    throw user_error("popularity.{} = {}, allowed: {} to {}", field, value, lo, hi);
  }
}

/// Returns the number of bits that one layer has in the code of a path; they hold expert + 1, or 0
/// for no choice.
int bits_of(const PathOptions& options) {
  return std::bit_width(static_cast<uint64_t>(options.experts));
}

uint64_t mask_of(const PathOptions& options, int64_t length) {
  return (uint64_t{1} << (bits_of(options) * static_cast<int>(length))) - 1;
}

/// Returns whether each of the last `length` layers has a choice.
bool is_complete(uint64_t code, int bits, int64_t length) {
  const uint64_t place = (uint64_t{1} << bits) - 1;
  for (int64_t i = 0; i < length; ++i, code >>= bits) {
    if ((code & place) == 0) return false;
  }
  return true;
}

void check_choices(std::span<const int32_t> choices, size_t tokens, int64_t k, int64_t experts) {
  if (k < 1 || choices.size() != tokens * static_cast<size_t>(k)) {
    throw user_error(
        "popularity: {} choices, expected {} tokens times k = {}, with k of at least 1",
        choices.size(), tokens, k);
  }
  for (const int32_t expert : choices) {
    if (expert < -1 || expert >= experts) {
      throw user_error(
          "popularity: a choice is expert {}, allowed: 0 to {}, or -1 for a dropped choice", expert,
          experts - 1);
    }
  }
}

/// Sorts ascending by radix sort, lowest digit first: keys are so mixed that a comparison sort
/// would mispredict half of its branches.
void sort_keys(std::vector<uint64_t>& keys, int key_bits) {
  constexpr int kDigit = 11;
  constexpr size_t kDigits = size_t{1} << kDigit;
  std::vector<uint64_t> other(keys.size());
  for (int shift = 0; shift < key_bits; shift += kDigit) {
    const auto digit = [&](uint64_t key) { return (key >> shift) & (kDigits - 1); };
    std::array<size_t, kDigits + 1> begin{};
    for (const uint64_t key : keys) ++begin[digit(key) + 1];
    for (size_t d = 0; d < kDigits; ++d) begin[d + 1] += begin[d];
    for (const uint64_t key : keys) other[begin[digit(key)]++] = key;
    keys.swap(other);
  }
}

uint64_t hash(uint64_t path) {
  return path * 0x9E3779B97F4A7C15u;  // the upper bits are well mixed (Fibonacci hashing)
}

size_t first_slot(uint64_t path, size_t slots) {
  return static_cast<size_t>(hash(path) >> (64 - std::countr_zero(slots)));
}

}  // namespace

void check(const PathOptions& options) {
  check_popularity("layers", options.layers, 1, 1 << 16);
  check_popularity("experts", options.experts, 1, 1 << 20);
  check_popularity("path", options.path, 1, kCodeBits / bits_of(options) - 1);
  check_popularity("keep", options.keep, 1, options.experts);
}

TokenPaths::TokenPaths(const PathOptions& options, int64_t tokens) : options_(options) {
  check(options);
  check_popularity("tokens", tokens, 0, int64_t{1} << 40);
  bits_ = bits_of(options);
  mask_ = mask_of(options, options.path);
  codes_.resize(static_cast<size_t>(tokens));
}

void TokenPaths::clear() {
  std::fill(codes_.begin(), codes_.end(), 0);
}

void TokenPaths::add(std::span<const int32_t> choices, int64_t k) {
  check_choices(choices, codes_.size(), k, options_.experts);
  const auto step = static_cast<size_t>(k);
  for (size_t t = 0; t < codes_.size(); ++t) {
    const auto place = static_cast<uint64_t>(choices[t * step] + 1);
    codes_[t] = ((codes_[t] << bits_) | place) & mask_;
  }
}

void Estimate::add(const Estimate& other) {
  MOE_CHECK(mass.size() == other.mass.size(),
            "popularity: cannot add estimates of {} and {} experts; the numbers must be equal",
            mass.size(), other.mass.size());
  for (size_t e = 0; e < mass.size(); ++e) mass[e] += other.mass[e];
  tokens += other.tokens;
  known += other.known;
}

std::vector<double> wanted_devices(const Estimate& estimate, int64_t devices, bool normalise) {
  std::vector<double> wanted(estimate.mass.size());
  double all = static_cast<double>(estimate.tokens) * static_cast<double>(kMassOne);
  if (normalise) {
    int64_t sum = 0;
    for (const int64_t mass : estimate.mass) sum += mass;
    all = static_cast<double>(sum);
  }
  if (all == 0) return wanted;
  for (size_t e = 0; e < wanted.size(); ++e) {
    wanted[e] = static_cast<double>(devices) * static_cast<double>(estimate.mass[e]) / all;
  }
  return wanted;
}

void PathProfile::Table::index(int64_t keep) {
  if (paths.empty()) return;
  // At most half full: each search that goes on to the next slot costs a mispredicted branch, but a
  // table of long paths is large.
  slots.assign(std::bit_ceil(2 * paths.size()), {});
  for (size_t row = 0; row < paths.size(); ++row) {
    size_t i = first_slot(paths[row], slots.size());
    while (slots[i].path != 0) i = (i + 1) & (slots.size() - 1);
    slots[i] = {paths[row], kept[row * static_cast<size_t>(keep)], static_cast<uint32_t>(row)};
  }
}

inline const PathProfile::Slot* PathProfile::Table::find(uint64_t path) const {
  if (slots.empty()) return nullptr;
  const size_t mask = slots.size() - 1;
  size_t i = first_slot(path, slots.size());
  while (slots[i].path != path && slots[i].path != 0) i = (i + 1) & mask;
  return path != 0 && slots[i].path == path ? &slots[i] : nullptr;
}

PathProfile::PathProfile(const PathOptions& options) : options_(options) {
  check(options);
  tables_.resize(static_cast<size_t>(options.layers * options.path));
}

PathProfile::Table& PathProfile::table(int64_t layer, int64_t length) {
  return tables_[static_cast<size_t>(layer * options_.path + length - 1)];
}

const PathProfile::Table& PathProfile::table(int64_t layer, int64_t length) const {
  check_popularity("layer", layer, 0, options_.layers - 1);
  return tables_[static_cast<size_t>(layer * options_.path + length - 1)];
}

bool PathProfile::covers(int64_t layer) const {
  return num_paths(layer) > 0;
}

int64_t PathProfile::num_paths(int64_t layer) const {
  size_t paths = 0;
  for (int64_t n = shortest(); n <= options_.path; ++n) paths += table(layer, n).paths.size();
  return static_cast<int64_t>(paths);
}

std::vector<PathProfile::Kept> PathProfile::at(int64_t layer, std::span<const int32_t> path) const {
  const auto length = static_cast<int64_t>(path.size());
  check_popularity("path", length, shortest(), options_.path);
  check_choices(path, path.size(), 1, options_.experts);
  uint64_t code = 0;
  for (const int32_t expert : path) {
    code = (code << bits_of(options_)) | static_cast<uint64_t>(expert + 1);
  }
  const Table& of_length = table(layer, length);
  const Slot* found = of_length.find(code);
  std::vector<Kept> out;
  for (int64_t i = 0; found != nullptr && i < options_.keep; ++i) {
    const Kept kept = of_length.kept[static_cast<size_t>(found->row * options_.keep + i)];
    if (kept.mass > 0) out.push_back(kept);
  }
  return out;
}

Estimate PathProfile::estimate(int64_t layer, const TokenPaths& paths) const {
  Estimate result;
  result.mass.resize(static_cast<size_t>(options_.experts));
  result.tokens = static_cast<int64_t>(paths.codes().size());
  const auto keep = static_cast<size_t>(options_.keep);
  int64_t* mass = result.mass.data();
  const auto take = [&](const Table& of_length, const Slot& found) {
    ++result.known;
    mass[found.first.expert] += found.first.mass;
    for (size_t i = 1; i < keep; ++i) {
      const Kept& kept = of_length.kept[found.row * keep + i];
      if (kept.mass > 0) mass[kept.expert] += kept.mass;
    }
  };
  const Table& longest = table(layer, options_.path);
  for (const uint64_t code : paths.codes()) {
    const Slot* found = longest.find(code);
    if (found != nullptr) {
      take(longest, *found);
      continue;
    }
    for (int64_t n = options_.path - 1; n >= shortest() && found == nullptr; --n) {
      const Table& shorter = table(layer, n);
      found = shorter.find(code & mask_of(options_, n));
      if (found != nullptr) take(shorter, *found);
    }
  }
  return result;
}

bool PathProfile::operator==(const PathProfile& other) const {
  if (!(options_ == other.options_)) return false;
  return std::equal(
      tables_.begin(), tables_.end(), other.tables_.begin(),
      [](const Table& a, const Table& b) { return a.paths == b.paths && a.kept == b.kept; });
}

PathCounts::PathCounts(const PathOptions& options) : options_(options) {
  check(options);
  counts_.resize(static_cast<size_t>(options.layers * options.path));
}

bool PathCounts::Counts::is_full() const {
  return pending.size() >= std::max(kPending, counted.size());
}

void PathCounts::Counts::flush(int key_bits) {
  sort_keys(pending, key_bits);
  std::vector<std::pair<uint64_t, int64_t>> merged;
  merged.reserve(counted.size() + pending.size() / 4);
  auto old = counted.begin();
  for (auto it = pending.begin(); it != pending.end();) {
    auto end = it;
    while (end != pending.end() && *end == *it) ++end;
    for (; old != counted.end() && old->first < *it; ++old) merged.push_back(*old);
    int64_t count = end - it;
    if (old != counted.end() && old->first == *it) count += (old++)->second;
    merged.emplace_back(*it, count);
    it = end;
  }
  merged.insert(merged.end(), old, counted.end());
  counted = std::move(merged);
  pending.clear();
}

void PathCounts::add(int64_t layer, const TokenPaths& before, std::span<const int32_t> choices,
                     int64_t k) {
  check_popularity("layer", layer, 0, options_.layers - 1);
  check_choices(choices, before.codes().size(), k, options_.experts);
  const int bits = bits_of(options_);
  const int64_t shortest = options_.shorter ? 1 : options_.path;
  for (int64_t length = shortest; length <= std::min(options_.path, layer); ++length) {
    Counts& counts = counts_[static_cast<size_t>(layer * options_.path + length - 1)];
    const uint64_t mask = mask_of(options_, length);
    for (size_t i = 0; i < choices.size(); ++i) {
      const uint64_t path = before.codes()[i / static_cast<size_t>(k)] & mask;
      if (choices[i] < 0 || !is_complete(path, bits, length)) continue;
      counts.pending.push_back((path << bits) | static_cast<uint64_t>(choices[i]));
      if (counts.is_full()) counts.flush(bits * static_cast<int>(length + 1));
    }
  }
}

void PathCounts::keep_most_probable(const Counts& counts, PathProfile::Table& table) const {
  const int bits = bits_of(options_);
  const uint64_t place = (uint64_t{1} << bits) - 1;
  const auto keep = static_cast<size_t>(options_.keep);
  for (size_t i = 0; i < counts.counted.size();) {
    const uint64_t path = counts.counted[i].first >> bits;
    // (-count, expert), so that sorting puts the most frequent first.
    std::vector<std::pair<int64_t, int32_t>> next;
    int64_t all = 0;
    for (; i < counts.counted.size() && counts.counted[i].first >> bits == path; ++i) {
      const auto [key, count] = counts.counted[i];
      next.emplace_back(-count, static_cast<int32_t>(key & place));
      all += count;
    }
    std::sort(next.begin(), next.end());
    table.paths.push_back(path);
    for (size_t j = 0; j < keep; ++j) {
      PathProfile::Kept kept;
      if (j < next.size()) {
        const double share = static_cast<double>(-next[j].first) / static_cast<double>(all);
        kept = {next[j].second, static_cast<uint32_t>(share * static_cast<double>(kMassOne))};
      }
      table.kept.push_back(kept);
    }
  }
  table.index(options_.keep);
}

PathProfile PathCounts::profile() const {
  PathProfile profile(options_);
  for (size_t i = 0; i < counts_.size(); ++i) {
    Counts counts = counts_[i];
    const auto length = static_cast<int>(i % static_cast<size_t>(options_.path)) + 1;
    counts.flush(bits_of(options_) * (length + 1));
    keep_most_probable(counts, profile.tables_[i]);
  }
  return profile;
}

}  // namespace moe
