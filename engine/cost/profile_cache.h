// The profile cache: key -> samples in ns, in one SQLite file (WAL), safe under concurrent runs and
// kills. A file that is not a readable cache of this schema (one of an earlier schema too) is
// renamed to "<path>.corrupt-<n>", which take_warning() names, and a new one begins; it is never
// silently used. A row has a checksum over key and samples; one that does not fit it, or whose
// samples are out of range, is as good as none, so that the key is measured anew and replaced.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace moe {

/// An hour: no op or transfer takes longer, and the sum of so many as a plan has does not overflow.
constexpr Nanoseconds kLongestSample = int64_t{3'600} * 1'000'000'000;

class ProfileCache {
 public:
  /// Opens or creates, folders included. path "" or ":memory:": a cache of this object alone.
  /// Throws UserError naming the path when the file or its folder cannot be written.
  explicit ProfileCache(const std::string& path);
  ~ProfileCache();
  ProfileCache(const ProfileCache&) = delete;
  ProfileCache& operator=(const ProfileCache&) = delete;

  /// Nothing unless all samples are of `least` to kLongestSample. What computes takes time; waiting
  /// and what only moves may take none.
  std::optional<std::vector<Nanoseconds>> find(const std::string& key, Nanoseconds least = 1);
  /// Replaces what the key had. Requires: at least one sample. RunError when the disk refuses.
  void store(const std::string& key, const std::vector<Nanoseconds>& samples);
  /// What went wrong on opening, once; "" when nothing did.
  std::string take_warning();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The middle sample (lower middle of an even number). Requires: not empty.
Nanoseconds median(std::vector<Nanoseconds> samples);

}  // namespace moe
