// What one measurement gives: the time of each call, and how far other load disturbed the calls.
#pragma once

#include <vector>

#include "engine/base/units.h"

namespace moe {

/// The samples of one measurement. Calls that were disturbed are known of compute on the CPU only
/// (profile/call_sampler.h); all other measurements say that none was.
struct Samples {
  std::vector<Nanoseconds> ns;
  double lost = 0;         // share, 0 to 1, of all calls made that were disturbed
  bool disturbed = false;  // whether disturbed calls are among `ns`, for want of enough others
  bool operator==(const Samples&) const = default;
};

}  // namespace moe
