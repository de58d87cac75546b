// The Communicator of one rank per process, by messages. Before a collective, every member sends to
// every other member which function it calls, its post time, and how many bytes it sends. Calls
// that do not match are reported before any byte moves, and a peer that sends nothing is reported
// as not arrived. Sums run in rank order for each element and have the same bits as among ranks of
// one process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/job/processes.h"
#include "engine/comm/local/transfer.h"

namespace moe {

class MessageComm final : public Communicator {
 public:
  /// Makes the communicator among all ranks, on a channel that nothing else uses.
  MessageComm(Processes& processes, int64_t channel);

  int64_t rank() const override { return number_; }
  int64_t size() const override { return who_.size; }
  /// Sets the watchdog's timeout for this communicator and its groups; 0 means no timeout: a call
  /// waits for its peers as long as their processes live.
  void set_timeout(double seconds);

  Communicator& among(const Members& who) override;
  CommTimes call(const Request& request) override;
  /// Sends the bytes of member `root` to all members. For the job's own texts; no op broadcasts.
  CommTimes broadcast(const std::string& what, void* data, Bytes bytes, int64_t root);

 private:
  /// What a member sends to a peer before a collective.
  struct Call {
    CallKind kind = CallKind::kBarrier;
    char what[199] = "";
    int64_t size = 0, root = 0, groups = 1;
    Bytes bytes = 0;       // to this peer
    uint64_t pieces = 0;   // hash of the pieces' sizes
    Nanoseconds post = 0;  // on the job's common clock
  };
  /// Data to or from one peer in an all-to-all: in the op's tensor, or packed in a buffer.
  struct Part {
    Bytes bytes = 0;
    Bytes offset = 0;  // offset in the op's tensor when contiguous, else -1
    std::vector<std::byte> buffer;
  };

  MessageComm(Processes& processes, int64_t channel, const Members& who, int64_t number);
  /// Exchanges and compares the calls of all members; returns times with post and begin.
  CommTimes meet(const Request& request);
  void compare(const Request& request) const;
  void check_sizes(const Request& request) const;
  void exchange(const Request& request);
  template <class T>
  void reduce(const Request& request);
  template <class T>
  const T* sum_share(const Request& request, int64_t elements);
  void spread(const Request& request, const void* own, Bytes bytes, Bytes unit);
  void from_root(const Request& request);
  /// Waits for the messages of `request` after meet(), without a timeout. Throws RunError when the
  /// job has failed.
  void complete(const Request& request);
  [[noreturn]] void time_out(const Request& request, const std::vector<int64_t>& missing);

  Processes& processes_;
  const int64_t channel_;
  const Members who_;
  const int64_t number_;
  double timeout_s_ = 0;
  const std::unique_ptr<Messages> messages_;
  std::vector<Call> mine_, theirs_;  // indexed by member
  std::vector<Part> sent_, received_;
  std::vector<std::byte> sums_;
  std::vector<std::unique_ptr<MessageComm>> subgroups_;
};

}  // namespace moe
