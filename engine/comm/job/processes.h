// The processes of a job, one rank each: the lanes' communicators, texts that go from rank 0 to all
// and back, control messages, one clock, and who is alive. What fails in one process ends the calls
// of all: they throw RunError with its reason, and no call succeeds any more.
// Calls are collective: all processes make them in the same order, else they fail with both calls
// named. A process that is silent (killed, stopped, its machine gone) is named within silence_s
// plus half a second, also while nobody waits for it; at once where the transport loses it.
// A request to stop (base/stop.h) in any of them is one in rank 0, which decides what it ends.
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
    /// Tests: finds the distance of clocks by messages where processes share one too.
    bool measure_clock = false;
  };
  /// As open_transport().
  explicit Processes(Options options);
  Processes() : Processes(Options()) {}
  /// Not a way to end well: finish() or exit_job() are.
  ~Processes();

  int64_t rank() const { return transport_->rank(); }
  int64_t size() const { return transport_->size(); }
  /// Those on this machine.
  int64_t size_here() const { return transport_->size_here(); }
  /// This one's place among them, by rank.
  int64_t place_here() const { return transport_->place_here(); }
  bool is_root() const { return rank() == 0; }

  /// This rank's communicators of the lanes 0 to n - 1 of a run; the same ones for the next run.
  std::vector<Communicator*> lanes(int64_t n, double timeout_s);

  /// Number n, from 0; the same one for the next who asks. Collective as lanes().
  ControlChannel& control_channel(int64_t n);

  // `what` names the call in errors. They wait as long as the others live.
  /// Rank 0's text.
  std::string broadcast(const std::string& what, std::string text);
  /// On rank 0 everybody's text by rank, elsewhere nothing.
  std::vector<std::string> gather(const std::string& what, const std::string& text);
  /// The text of rank 0's list that is this rank's; the list is read on rank 0 only.
  std::string scatter(const std::string& what, const std::vector<std::string>& texts);

  /// Rank 0's clock_ns() at this process's `t`, and back. Exact on rank 0's machine; elsewhere off
  /// by less than half the shortest round trip seen at the start.
  Nanoseconds to_common(Nanoseconds t) const { return t + ahead_ns_; }
  Nanoseconds from_common(Nanoseconds t) const { return t - ahead_ns_; }
  /// How far to_common() may be off: half of the fastest question and answer; 0 on rank 0, and
  /// where nothing was asked.
  Nanoseconds clock_error() const { return clock_error_ns_; }

  /// The job has failed here: all calls of all processes end with the reason. Any thread.
  void fail(const std::string& reason);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string reason() const;
  /// Returns when they are over, the clock has passed `deadline` (0: none), or the job has failed,
  /// and which of it.
  enum class Wait : uint8_t { kOver, kLate, kFailed };
  Wait await(Messages& messages, Nanoseconds deadline);

  /// All processes are done and end.
  void finish();
  /// Ends all processes with this exit status. Rank 0 does so at once; another one gives it
  /// kGrace_s to save and to tell what there is, then does so with last words on stderr.
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
  const int64_t alive_;  // the monitor's channel
  std::unique_ptr<MessageComm> control_;
  std::vector<std::unique_ptr<MessageComm>> lanes_;
  std::vector<std::unique_ptr<ControlChannel>> control_channels_;
  Nanoseconds ahead_ns_ = 0, clock_error_ns_ = 0;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::string reason_, letter_;
  bool over_ = false;
  // The monitor's.
  std::vector<int64_t> watched_;
  std::vector<Nanoseconds> heard_;
  std::vector<std::unique_ptr<Messages>> beats_;
  std::unique_ptr<Messages> stop_letter_;
  bool stop_sent_ = false;
  std::vector<std::unique_ptr<Messages>> letters_;  // by peer, as one of them may be lost
  Nanoseconds last_look_ = 0, last_beat_ = 0;
  std::jthread monitor_;  // last: uses all of the above
};

}  // namespace moe
