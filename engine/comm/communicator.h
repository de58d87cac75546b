// Communicator: the collectives of one rank on one comm lane, among all ranks or within a group.
// All members must make their calls in the same order; a call returns when this member's result is
// complete. When a member does not call in time, the watchdog throws a RunError that names it:
// "rank 1: all_to_all b1.moe.a2a_1: rank 0 did not arrive in 30 s". Errors use the ranks' numbers
// among all ranks, also within a group. Sums are taken in rank order for each element.
// Implementations: local/ for threads of one process, transport/ for processes. Devices do not use
// this interface; theirs is exec/device/comm.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/group.h"
#include "engine/base/limits.h"
#include "engine/base/names.h"
#include "engine/base/units.h"

namespace moe {

/// Times of one collective, on the run's clock (clock_ns()).
struct CommTimes {
  Nanoseconds post = 0;   // when this member called
  Nanoseconds begin = 0;  // when the last member called
  /// When the collective ended: computed by the link model on an emulated link, otherwise the time
  /// at which this member's call returns.
  Nanoseconds end = 0;
  /// On an emulated link: the CPU time of this member's thread when the collective ended
  /// (thread_cpu_ns()), from which the time of what its call did afterwards follows.
  Nanoseconds cpu = 0;
};

/// The members of a collective, numbered 0 to size - 1, and their ranks.
struct Members {
  int64_t size = 0;
  int64_t first = 0;
  int64_t stride = 1;
  int64_t rank(int64_t number) const { return first + number * stride; }
  bool operator==(const Members&) const = default;
};

/// What one member of an all-to-all sends and receives.
struct Pieces {
  // The piece that is sent to peer p for group g (a local expert) is send_bytes[p * groups + g]
  // bytes at offset send_offset[p * groups + g]; receive_offset and receive_bytes are indexed in
  // the same way. Where the sizes of matching pieces differ between two members, the call throws
  // RunError, which names both ranks and both sizes.
  int64_t groups = 1;
  std::vector<Bytes> send_offset, send_bytes, receive_offset, receive_bytes;
  /// For an exchange in rounds: the round of this call. Pieces for and from peers that do not
  /// exchange with this member in this round are empty.
  Round round = {};
};

enum class CallKind : uint8_t {
  kAllToAll,
  kAllReduceF32,
  kAllReduceF64,
  kReduceScatterF32,
  kReduceScatterF64,
  kAllGather,
  kBroadcast,
  kBarrier
};
constexpr std::array<const char*, 8> names_of(CallKind) {
  return {"all_to_all",
          "all_reduce",
          "all_reduce (double)",
          "reduce_scatter",
          "reduce_scatter (double)",
          "all_gather",
          "broadcast",
          "barrier"};
}

/// One call of one member.
struct Request {
  CallKind kind = CallKind::kBarrier;
  std::string what;
  const void* in = nullptr;  // broadcast: the root's data
  void* out = nullptr;
  // all_reduce: elements; reduce_scatter: elements of a member's share of the sums; all_gather:
  // bytes of a member; broadcast: bytes
  int64_t size = 0;
  int64_t root = 0;  // broadcast
  const Pieces* pieces = nullptr;
  Nanoseconds post = 0;
};

/// Returns the call's kind and name: "all_reduce b0.grads".
std::string describe(const Request& request);
/// Returns the bytes of one of the elements that the call's size counts: 1 if it counts bytes.
Bytes element_bytes(CallKind kind);

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank's number among the members of this communicator, 0 to size() - 1.
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  /// Returns the communicator of the group that this rank is in, on the same lane; *this when the
  /// group is all ranks. It lives as long as this communicator. A time set by posted_at() then
  /// applies to the next call of the returned communicator. Called by the lane's thread; does not
  /// wait for other members. Requires: this is the communicator of all ranks.
  Communicator& group(const Group& group);

  /// Returns the communicator of this rank and the one that is `distance` ranks behind it (before
  /// it, if negative), the lower of which is member 0; else like group().
  Communicator& pair(int64_t distance);

  /// Returns the communicator of these members, one of which is this rank and which are not all;
  /// for group() and pair().
  virtual Communicator& among(const Members& members) = 0;

  /// Exchanges pieces with all members. `what` names the op in errors, here and below.
  CommTimes all_to_all(const std::string& what, const void* send, void* receive,
                       const Pieces& pieces);
  /// Sums n elements over all members, elementwise; `out` may be `in`.
  CommTimes all_reduce(const std::string& what, const float* in, float* out, int64_t n) {
    return post({CallKind::kAllReduceF32, what, in, out, n});
  }
  CommTimes all_reduce(const std::string& what, const double* in, double* out, int64_t n) {
    return post({CallKind::kAllReduceF64, what, in, out, n});
  }
  /// Sums as all_reduce does, but gives each member only its n sums: in [size() * n], out [n], the
  /// sums of elements [rank() * n, rank() * n + n); `out` may be in + rank() * n.
  CommTimes reduce_scatter(const std::string& what, const float* in, float* out, int64_t n) {
    return post({CallKind::kReduceScatterF32, what, in, out, n});
  }
  CommTimes reduce_scatter(const std::string& what, const double* in, double* out, int64_t n) {
    return post({CallKind::kReduceScatterF64, what, in, out, n});
  }
  /// Gives every member the bytes of all members, in their order: in [bytes], out [size() * bytes];
  /// `in` may be their place in `out`.
  CommTimes all_gather(const std::string& what, const void* in, void* out, Bytes bytes) {
    return post({CallKind::kAllGather, what, in, out, bytes});
  }
  CommTimes barrier(const std::string& what) { return post({CallKind::kBarrier, what}); }
  /// Makes a call whose post time is set; the functions above make theirs by it. Requires: Pieces
  /// has entries for all members.
  virtual CommTimes call(const Request& request) = 0;

  /// Sets the post time of the next call to `t`: the time at which the inputs of that call were
  /// ready, for a lane whose thread woke up late. `t` must not be after the call; 0 means the time
  /// of the call.
  void posted_at(Nanoseconds t) { posted_at_ = t; }
  /// Returns the times of a call in which no member sends anything; it ends when it is posted.
  CommTimes nothing();

 protected:
  /// Sets the request's post time and makes the call.
  CommTimes post(Request request);

 private:
  /// Returns the post time of the current call, and resets posted_at().
  Nanoseconds take_post();
  /// Hands the post time of the next call over to `members`, and returns them.
  Communicator& made(Communicator& members);

  Nanoseconds posted_at_ = 0;
};

/// N ranks that are threads of one process; comm(r, l) is rank r's communicator on lane l. abort()
/// is called when a rank fails: waiting and later calls then throw a RunError with `reason`.
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

/// The run's clock: steady, in nanoseconds.
Nanoseconds clock_ns();

}  // namespace moe
