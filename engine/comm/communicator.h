// Communicator: the collectives of one rank on one comm lane, among all ranks or those of a group.
// Calls of all members must come in the same order; a call returns when this member's result is
// complete. A member that never comes is named by the watchdog: RunError "rank 1: all_to_all
// b1.moe.a2a_1: rank 0 did not arrive in 30 s"; ranks in errors are always those of the world.
// Sums run in rank order for each element.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/group.h"
#include "engine/base/limits.h"
#include "engine/base/units.h"

namespace moe {

/// When a collective's parts happened, on the run's clock.
struct CommTimes {
  Nanoseconds post = 0;   // this member called
  Nanoseconds begin = 0;  // the last member called
  Nanoseconds end = 0;    // over: by the link model where there is one, else when this call returns
};

/// What one member of an all-to-all sends and receives.
struct Pieces {
  // For peer p and group g (a local expert): the send piece is at send_offset[p * groups + g] bytes
  // with send_bytes[...] bytes; likewise for receive. Sizes of matching pieces agree between
  // members, else RunError naming both ranks and both sizes.
  int64_t groups = 1;
  std::vector<Bytes> send_offset, send_bytes, receive_offset, receive_bytes;
  /// Of an exchange in rounds; pieces of peers that do not meet in it are empty.
  Round round = {};
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank's number among the members, 0 to size() - 1.
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  /// The communicator of the group that this rank is in, on the same lane; *this where all ranks
  /// are one group. It lives as long as this one and takes over posted_at(). Called by the lane's
  /// thread; needs nobody else. Requires: this is the communicator of all ranks.
  Communicator& group(const Group& group);

  /// `what` names the op in errors.
  virtual CommTimes all_to_all(const std::string& what, const void* send, void* receive,
                               const Pieces& pieces) = 0;
  /// In place or not, element type float, double or int64 by T.
  virtual CommTimes all_reduce(const std::string& what, const float* in, float* out, int64_t n) = 0;
  virtual CommTimes all_reduce(const std::string& what, const double* in, double* out,
                               int64_t n) = 0;
  virtual CommTimes broadcast(const std::string& what, void* data, Bytes bytes, int64_t root) = 0;
  virtual CommTimes barrier(const std::string& what) = 0;

  /// The next call counts as posted at `t` (no later than the call itself): the time when its
  /// inputs were ready, for a lane's thread that the system woke late. 0: when it is made.
  void posted_at(Nanoseconds t) { posted_at_ = t; }

 protected:
  /// The post time of the call that is being made.
  Nanoseconds take_post();

 private:
  /// A resolved group of fewer than all.
  virtual Communicator& subgroup(const Group& group) = 0;

  Nanoseconds posted_at_ = 0;
};

/// N ranks as threads of one process: rank r's communicator of lane l. abort() wakes every waiting
/// member with a RunError that carries the reason; it is called when a rank fails.
class InProcessWorld {
 public:
  struct Options {
    double timeout_s = kWatchdogSeconds;
  };
  InProcessWorld(int64_t num_ranks, int64_t num_lanes, Options options);
  ~InProcessWorld();
  Communicator& comm(int64_t rank, int64_t lane);
  void abort(const std::string& reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The run's clock: steady, nanoseconds.
Nanoseconds clock_ns();

}  // namespace moe
