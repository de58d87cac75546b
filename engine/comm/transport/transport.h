// Messages between the processes of a job, by MPI. The classes are interfaces, so that all sources
// but transport_mpi.cpp compile without MPI. Any thread may call any function except
// open_transport(), open_channel() and finish(). No function waits for a peer unless its comment
// says so: a caller that waits calls over() or read() in a loop, in which it can check for
// failures. Not here: collectives (message_comm.h), liveness and failures (job/processes.h), how
// the processes were started (job/launch.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace moe {

/// A set of messages that are waited for together. Memory that is sent from or received into
/// belongs to these messages until over() returns true or give_up() is called. Messages of one
/// channel, sender, receiver and tag keep their order. Used by one thread at a time.
class Messages {
 public:
  virtual ~Messages() = default;

  /// Start to send or receive `bytes` bytes; for 0 bytes, no message is sent or expected.
  virtual void send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes) = 0;
  virtual void receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes) = 0;
  /// Makes progress, and returns whether all messages are complete. Throws RunError, which names
  /// the peers, when MPI fails.
  virtual bool over() = 0;
  /// The peers, ascending, with incomplete messages.
  virtual std::vector<int64_t> missing() const = 0;
  /// Abandons all messages; for a job that has failed.
  virtual void give_up() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Number of processes on this machine.
  virtual int64_t size_here() const = 0;
  /// Index of this process among the processes on this machine, in rank order.
  virtual int64_t place_here() const = 0;

  /// Opens a channel and returns its number. Called by all processes at the same point; may wait
  /// for the other processes. Messages of different channels are never mixed up.
  virtual int64_t open_channel() = 0;
  virtual std::unique_ptr<Messages> messages() = 0;
  /// A message that has arrived without a receive having been posted for it.
  struct ControlMessage {
    int64_t peer;
    std::string text;
  };
  /// Returns the next control message of the channel, from any process; nullopt when there is none.
  /// Throws RunError when MPI fails.
  virtual std::optional<ControlMessage> read(int64_t channel) = 0;

  /// Waits until all processes called finish(). Must be the last call.
  virtual void finish() = 0;
  /// Ends all other processes with this exit status; the caller then exits itself.
  virtual void abort(int status) = 0;
};

/// Connects the processes. Called at most once in a process. Waits for all processes. Throws
/// UserError in a build without MPI, and RunError when the library does not let several threads
/// call it at the same time.
std::unique_ptr<Transport> open_transport();
/// Name and version of the MPI library, "Open MPI v4.1.4"; "" in a build without MPI.
std::string mpi_library();

}  // namespace moe
