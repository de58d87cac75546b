#include "engine/cost/profile_cache.h"

#include <fmt/ranges.h>
#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/fnv.h"
#include "engine/cost/cache_file.h"

namespace moe {
namespace {

constexpr CacheFile::Layout kLayout = {
    .what = "profile cache",
    .application_id = 0x6d6f6562,  // "moeb" in ASCII
    .schema = 3,
    .table =
        "CREATE TABLE samples(key TEXT PRIMARY KEY NOT NULL, ns TEXT NOT NULL, lost REAL NOT NULL, "
        "disturbed INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    .small = true,
};

/// Returns the samples in the text; nullopt unless all are numbers from `least` to kLongestSample.
std::optional<std::vector<Nanoseconds>> from_text(std::string_view text, Nanoseconds least) {
  std::vector<Nanoseconds> samples;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    Nanoseconds sample = 0;
    const auto [next, error] = std::from_chars(at, end, sample);
    if (error != std::errc() || sample < least || sample > kLongestSample) return std::nullopt;
    samples.push_back(sample);
    if (next == end) return samples;
    if (*next != ',') return std::nullopt;
    at = next;
  }
}

/// Returns the checksum of a row as a signed integer, which SQLite stores. ns: the samples as text.
int64_t checksum(const std::string& key, std::string_view ns, double lost, bool disturbed) {
  const std::string quality = fmt::format(";{};{}", lost, disturbed);
  uint64_t sum = fnv1a(kFnvStart, key.c_str(), key.size() + 1);
  sum = fnv1a(sum, ns.data(), ns.size());
  return static_cast<int64_t>(fnv1a(sum, quality.data(), quality.size()));
}

/// Returns the samples of the current row of "SELECT ns, lost, disturbed, checksum"; nullopt unless
/// its checksum is that of `key` and the rest, and all values are in range.
std::optional<Samples> samples_of(sqlite3_stmt* row, const std::string& key, Nanoseconds least) {
  constexpr std::array kTypes = {SQLITE_TEXT, SQLITE_FLOAT, SQLITE_INTEGER, SQLITE_INTEGER};
  for (int column = 0; column < static_cast<int>(kTypes.size()); ++column) {
    if (sqlite3_column_type(row, column) != kTypes[static_cast<size_t>(column)]) return {};
  }
  const auto* const text = reinterpret_cast<const char*>(sqlite3_column_text(row, 0));
  const std::string_view ns(text, static_cast<size_t>(sqlite3_column_bytes(row, 0)));
  const double lost = sqlite3_column_double(row, 1);
  const int64_t disturbed = sqlite3_column_int64(row, 2);
  if (!(lost >= 0 && lost <= 1) || (disturbed != 0 && disturbed != 1)) return {};
  if (sqlite3_column_int64(row, 3) != checksum(key, ns, lost, disturbed == 1)) return {};
  std::optional<std::vector<Nanoseconds>> samples = from_text(ns, least);
  if (!samples) return {};
  return Samples{std::move(*samples), lost, disturbed == 1};
}

}  // namespace

struct ProfileCache::Impl {
  explicit Impl(const std::string& path)
      : file(path, kLayout),
        find(file.prepare("SELECT ns, lost, disturbed, checksum FROM samples WHERE key = ?")),
        store(file.prepare("INSERT OR REPLACE INTO samples(key, ns, lost, disturbed, checksum) "
                           "VALUES(?, ?, ?, ?, ?)")) {}
  CacheFile file;
  CacheFile::Statement find, store;
};

ProfileCache::ProfileCache(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}

ProfileCache::~ProfileCache() = default;

std::optional<Samples> ProfileCache::find(const std::string& key, Nanoseconds least) {
  std::optional<Samples> samples;
  impl_->file.execute(impl_->find, {key},
                      [&](sqlite3_stmt* row) { samples = samples_of(row, key, least); });
  return samples;
}

void ProfileCache::store(const std::string& key, const Samples& samples) {
  MOE_CHECK(!samples.ns.empty(),
            "ProfileCache::store: key '{}' has 0 samples, but must have at least 1", key);
  const std::string ns = fmt::format("{}", fmt::join(samples.ns, ","));
  impl_->file.execute(impl_->store, {key, ns, samples.lost, int64_t{samples.disturbed},
                                     checksum(key, ns, samples.lost, samples.disturbed)});
}

std::string ProfileCache::take_warning() {
  return impl_->file.take_warning();
}

Nanoseconds median(std::vector<Nanoseconds> samples) {
  MOE_CHECK(!samples.empty(), "median: there are 0 samples, but there must be at least 1");
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>((samples.size() - 1) / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace moe
