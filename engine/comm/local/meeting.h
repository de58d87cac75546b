// The meeting of a group's members on one lane, for one collective after the other. Every member
// arrives with a request; the last one opens the transfer; every member that is awake works on the
// transfer; all leave when it is done. A waiting member spins briefly (a peer that is running comes
// within microseconds) and then sleeps on a condition variable, so that the core is free for
// compute. The copying itself is in transfer.h.
// After a failure no transfer opens any more. A failure never interrupts an open transfer: a member
// that left early might free memory that its peers still copy.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/local/transfer.h"

namespace moe {

class Meeting {
 public:
  /// Thrown by join().
  struct Failure {
    std::string reason;
    bool found_here;               // false: fail() or an error of another member ended the wait
    std::vector<int64_t> missing;  // if the watchdog ended it: the ranks that did not arrive
  };
  /// The call that a member is making in this meeting, or made last.
  struct MemberState {
    std::string what;  // "" when it never called
    bool inside = false;
    Nanoseconds since = 0;  // when it arrived or left
  };

  Meeting(const Members& members, double timeout_s);

  const Members& members() const { return who_; }
  /// Takes part in one collective; returns when all members have all data of the collective. Throws
  /// Failure when calls do not match, a member is late, or fail() was called. Requires: one call at
  /// a time for each member; request.pieces has entries for all members.
  CommTimes join(int64_t member, const Request& request);
  void fail(const std::string& reason);
  MemberState state_of(int64_t member);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Member {
    bool arrived = false;  // for the next transfer
    Nanoseconds came = 0;
    std::atomic<Nanoseconds> left{0};  // 0 while it is in the meeting
  };

  void enter(int64_t member, const Request& request);
  void open();
  void await_open(Lock& lock, int64_t member, uint64_t turn);
  void await_done(uint64_t turn);
  [[noreturn]] void fail_here(const std::string& reason, std::vector<int64_t> missing = {});
  [[noreturn]] void time_out(int64_t member);

  const Members who_;
  const double timeout_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_. While a transfer is open, requests_ does not change, and the threads that
  // work on the transfer read it without the lock.
  std::vector<Request> requests_;
  std::vector<Member> members_;
  size_t num_arrived_ = 0;
  bool failed_ = false;
  std::string reason_;
  // Set by the member that opens the transfer, before it increases opened_.
  Transfer transfer_;
  Nanoseconds begin_ = 0;
  std::atomic<uint64_t> opened_{0};  // number of transfers that were opened
  std::atomic<uint64_t> done_{0};    // number of transfers that are complete
};

}  // namespace moe
