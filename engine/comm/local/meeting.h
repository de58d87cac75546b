// The meeting place of a group on one lane: every member arrives with a request, the last one opens
// the transfer, whoever is awake works on it, and all leave when it is done. Waits spin for a
// moment (a peer that runs comes within microseconds) and then sleep on a condition variable, so
// that the core is left to compute.
// Once failed it stays so, and no transfer opens any more. A failure never interrupts a transfer
// that is open: a member that left early would take away memory which its peers still copy.
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
    bool found_here;               // false: fail() or another member ended the wait
    std::vector<int64_t> missing;  // found here by the watchdog: the ranks that did not arrive
  };
  /// What a member does here, or did last.
  struct MemberState {
    std::string what;  // "" when it never called
    bool inside = false;
    Nanoseconds since = 0;  // when it arrived or left
  };

  Meeting(const Members& members, double timeout_s);

  const Members& members() const { return who_; }
  /// Throws Failure. Requires: one call at a time for each member; request.pieces fits all of them.
  CommTimes join(int64_t member, const Request& request);
  void fail(const std::string& reason);
  MemberState state_of(int64_t member);

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Member {
    bool arrived = false;  // for the transfer that opens next
    Nanoseconds came = 0;
    std::atomic<Nanoseconds> left{0};  // 0 while inside
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
  // Guarded by mutex_; requests_ also lie still while a transfer is open, and are read by its jobs.
  std::vector<Request> requests_;
  std::vector<Member> members_;
  size_t num_arrived_ = 0;
  bool failed_ = false;
  std::string reason_;
  // Set by the member that opens, before opened_.
  Transfer transfer_;
  Nanoseconds begin_ = 0;
  std::atomic<uint64_t> opened_{0};  // turns
  std::atomic<uint64_t> done_{0};
};

}  // namespace moe
