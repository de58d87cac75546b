// The profile cache: maps a key to samples in ns, in a CacheFile. A row has a checksum over its key
// and its Samples. A row with a wrong checksum or values out of range is ignored, so that the key
// is measured again and the row replaced. What a key contains is in cost_model.h (ProfileCost).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/cost/samples.h"

namespace moe {

/// The largest valid sample, one hour. No op or transfer takes longer, and a sum over all ops of a
/// plan does not overflow.
constexpr Nanoseconds kLongestSample = int64_t{3'600} * 1'000'000'000;

class ProfileCache {
 public:
  /// Opens the file, or creates it with its folders. The paths "" and ":memory:" give a cache in
  /// memory. Throws UserError naming the path when the file or its folder cannot be written.
  explicit ProfileCache(const std::string& path);
  ~ProfileCache();
  ProfileCache(const ProfileCache&) = delete;
  ProfileCache& operator=(const ProfileCache&) = delete;

  /// Returns the samples of a key; nullopt when there are none, their checksum is wrong, or one is
  /// below `least` or above kLongestSample. Samples of compute are at least 1 ns; those of waits
  /// and memcpys may be 0.
  std::optional<Samples> find(const std::string& key, Nanoseconds least = 1);
  /// Stores the samples of a key in place of earlier ones. Throws RunError when the file cannot be
  /// written. Requires: at least one sample.
  void store(const std::string& key, const Samples& samples);
  /// Returns the warning of opening the file, or "" when there is none; a second call returns "".
  std::string take_warning();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Returns the middle sample (of an even number, the lower middle one). Requires: not empty.
Nanoseconds median(std::vector<Nanoseconds> samples);

}  // namespace moe
