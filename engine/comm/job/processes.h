// The processes of a job, one rank each: the communicators of the lanes, strings sent between rank
// 0 and all ranks, control messages, a common clock, and a heartbeat that detects dead processes. A
// failure in one process ends the calls of all processes: they throw RunError with its reason, and
// every later call fails too. Calls are collective: all processes make them in the same order,
// otherwise they fail with an error that names both calls. A process that is silent (killed,
// stopped, or its machine is gone) is named within silence_s plus half a second, even when no call
// waits for it. A request to stop (base/stop.h) that another process gets is sent to rank 0 and
// sets the flag of base/stop.h there; rank 0 decides when the run ends. How bytes travel is in
// transport/, not here.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/transport/transport.h"

namespace moe {

class ControlChannel;
class MessageComm;

class Processes {
 public:
  struct Options {
    double silence_s = 5;
    /// For tests: measures the clocks' offset by messages even when the processes share a clock.
    bool measure_clock = false;
  };
  /// Connects the processes; waits and throws as open_transport() does.
  explicit Processes(Options options);
  Processes() : Processes(Options()) {}
  /// Does not end the job: call finish() or exit_job() before.
  ~Processes();

  int64_t rank() const { return transport_->rank(); }
  int64_t size() const { return transport_->size(); }
  /// Number of processes on this machine.
  int64_t size_here() const { return transport_->size_here(); }
  /// This process's index among the processes on this machine, in rank order.
  int64_t place_here() const { return transport_->place_here(); }
  bool is_root() const { return rank() == 0; }

  /// Returns this rank's communicators of the lanes 0 to n - 1 of a run; the next run gets the same
  /// communicators.
  std::vector<Communicator*> lanes(int64_t n, double timeout_s);

  /// Returns control channel number n, counted from 0; later calls return the same one. All
  /// processes must call it in the same order, as lanes().
  ControlChannel& control_channel(int64_t n);

  // In the next three functions, `what` names the call in errors. They have no timeout: they wait
  // for the other processes as long as these live.
  /// Returns the string that rank 0 passed as `text`.
  std::string broadcast(const std::string& what, std::string text);
  /// Returns on rank 0 the strings of all ranks, in rank order, and on other ranks an empty list.
  std::vector<std::string> gather(const std::string& what, const std::string& text);
  /// Returns entry rank() of the list `texts` that rank 0 passed; other ranks' lists are not read.
  std::string scatter(const std::string& what, const std::vector<std::string>& texts);

  /// Converts a time of this process to rank 0's clock, and back. Exact on rank 0, and if all
  /// processes are on one machine; otherwise the error is at most clock_error(), plus the drift of
  /// the clocks since the start.
  Nanoseconds to_common(Nanoseconds t) const { return t + ahead_ns_; }
  Nanoseconds from_common(Nanoseconds t) const { return t - ahead_ns_; }
  /// The largest error of to_common() at the start: half of the shortest measured round trip to
  /// rank 0; 0 on rank 0, and if all processes are on one machine.
  Nanoseconds clock_error() const { return clock_error_ns_; }

  /// Reports that the job has failed in this process: all calls of all processes end with `reason`.
  /// Called by any thread.
  void fail(const std::string& reason);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string reason() const;
  /// await() waits until the messages are complete, clock_ns() has passed `deadline` (0 means no
  /// deadline), or the job has failed; it returns which of these happened.
  enum class Wait : uint8_t { kOver, kLate, kFailed };
  Wait await(Messages& messages, Nanoseconds deadline);

  /// Ends an orderly job: waits until all processes have called it, then closes the connections.
  void finish();
  /// Ends all processes with this exit status. Rank 0 does so at once. Another rank first waits
  /// kGrace_s, so that rank 0 can save results and report the error, then prints `last_words` to
  /// stderr and ends the processes.
  [[noreturn]] void exit_job(int status, const std::string& last_words = "");
  static constexpr double kGrace_s = 3;

 private:
  friend class ControlChannel;
  friend class MessageComm;
  void find_clock(bool measure);
  Nanoseconds distance_to(int64_t peer);
  void note_failure(const std::string& reason);
  bool messages_out();
  void watch();
  void listen(Nanoseconds now);
  void forgive(Nanoseconds absent);
  void beat(Nanoseconds now);
  void pass_on_stop();
  void look_for_silent(Nanoseconds now);

  const Options options_;
  const std::unique_ptr<Transport> transport_;
  const int64_t alive_;  // the channel of the heartbeats
  std::unique_ptr<MessageComm> control_;
  std::vector<std::unique_ptr<MessageComm>> lanes_;
  std::vector<std::unique_ptr<ControlChannel>> control_channels_;
  Nanoseconds ahead_ns_ = 0, clock_error_ns_ = 0;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::string reason_, letter_;
  bool over_ = false;
  // The following members are used by the monitor thread only, except letters_.
  std::vector<int64_t> watched_;
  std::vector<Nanoseconds> heard_;
  std::vector<std::unique_ptr<Messages>> beats_;
  std::unique_ptr<Messages> stop_letter_;
  bool stop_sent_ = false;
  std::vector<std::unique_ptr<Messages>> letters_;  // letter_ to each peer; guarded by mutex_
  Nanoseconds last_look_ = 0, last_beat_ = 0;
  std::jthread monitor_;  // last: uses all of the above
};

}  // namespace moe
