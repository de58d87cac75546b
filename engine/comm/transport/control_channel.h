// Short strings sent between two processes of a job, on a separate channel. The sender does not
// wait; read() returns the messages that have arrived, those of one sender in the order of sending.
// Any thread may call. Not here: collectives (message_comm.h).
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

  // When a peer is lost, the job fails. In a job that has failed, send() does nothing and read()
  // returns nullopt.
  void send(int64_t peer, std::string text);
  /// Returns the next message that has arrived, from any sender; nullopt when there is none.
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
  std::mutex mutex_;       // guards sent_
  std::deque<Sent> sent_;  // not yet delivered, oldest first
};

}  // namespace moe
