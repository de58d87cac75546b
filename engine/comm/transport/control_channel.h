// Short texts between two processes of a job, on a channel of their own: whoever sends goes on at
// once, and whoever reads gets what has come, of one sender in the order in which it was sent. Any
// thread. Not here: collectives (message_comm.h).
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/comm/job/processes.h"

namespace moe {

class ControlChannel {
 public:
  /// Keeps a reference to processes.
  ControlChannel(Processes& processes, int64_t channel);

  // Where a peer is lost the job fails; in a job that has failed nothing goes or comes any more.
  void send(int64_t peer, std::string text);
  /// The next of those that have come, from anybody.
  std::optional<Transport::ControlMessage> read();

 private:
  struct Sent {
    std::string text;
    std::unique_ptr<Messages> messages;
  };
  void forget_sent();

  Processes& processes_;
  Transport& transport_;
  const int64_t channel_;
  std::mutex mutex_;       // of sent_
  std::deque<Sent> sent_;  // under way, oldest first
};

}  // namespace moe
