// The times of a list of events, without lanes, arbiters or shared links. An event begins when all
// events that it waits for are over, and ends after its duration. An event that all ranks do
// together begins when the last rank is ready and takes the longest duration of any rank. Callers
// must run the events in an order in which predecessors come first. The full event engine is in
// engine.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/units.h"

namespace moe {

class Events {
 public:
  /// handoff_ns: the time that a lane needs to wake up when it waited for an event of another lane.
  Events(size_t count, size_t ranks, Nanoseconds handoff_ns = 0)
      : ranks_(ranks),
        handoff_ns_(handoff_ns),
        ends_(count * ranks),
        posts_(ranks),
        others_(ranks),
        durations_(ranks) {}

  /// The times when a rank was ready for an event, began it and ended it.
  struct Times {
    Nanoseconds post, begin, end;
  };

  /// Runs event number `event`. waits(f) must call f(number, same_lane) for every event that it
  /// waits for; duration(rank) returns its duration. Calls done(rank, times) for each rank.
  template <class Waits, class Duration, class Done>
  void run(size_t event, bool together, Waits&& waits, Duration&& duration, Done&& done) {
    std::fill(posts_.begin(), posts_.end(), 0);
    std::fill(others_.begin(), others_.end(), 0);
    waits([&](size_t before, bool same_lane) {
      std::vector<Nanoseconds>& latest = same_lane ? posts_ : others_;
      const Nanoseconds* const ends = &ends_[before * ranks_];
      for (size_t r = 0; r < ranks_; ++r) latest[r] = std::max(latest[r], ends[r]);
    });
    for (size_t r = 0; r < ranks_; ++r) {
      if (others_[r] > posts_[r]) posts_[r] = others_[r] + handoff_ns_;
      durations_[r] = duration(r);
    }
    if (together) {
      const Nanoseconds slowest = *std::max_element(durations_.begin(), durations_.end());
      const Nanoseconds last = *std::max_element(posts_.begin(), posts_.end());
      for (size_t r = 0; r < ranks_; ++r) finish(event, r, last, last + slowest, done);
    } else {
      for (size_t r = 0; r < ranks_; ++r) {
        finish(event, r, posts_[r], posts_[r] + durations_[r], done);
      }
    }
  }

  /// Returns when `rank` ended `event`, which must have run.
  Nanoseconds end(size_t event, size_t rank = 0) const { return ends_[event * ranks_ + rank]; }

 private:
  template <class Done>
  void finish(size_t event, size_t rank, Nanoseconds begin, Nanoseconds end, Done& done) {
    ends_[event * ranks_ + rank] = end;
    done(rank, Times{posts_[rank], begin, end});
  }

  size_t ranks_;
  Nanoseconds handoff_ns_;
  std::vector<Nanoseconds> ends_;  // indexed by event * ranks + rank
  // For the event that is being run, indexed by rank: when its lane is free (then: when the rank is
  // ready), when the events on other lanes that it waits for are over, and its duration.
  std::vector<Nanoseconds> posts_, others_, durations_;
};

}  // namespace moe
