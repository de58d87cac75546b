// Messages between the processes of a job. Any thread may call anything but open_transport(),
// open_channel() and finish(). Nothing here waits for a peer except where it says so, so that
// whoever waits can look for failures meanwhile.
// Not here: collectives (message_comm.h), who lives and what failed (processes.h), how the
// processes were started (launch.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace moe {

struct TcpJob;

/// Messages under way that are waited for together. Memory that is sent or received into stays
/// with them until over() or give_up(). Messages of one channel, sender, receiver and tag keep
/// their order. Used by one thread at a time.
class Messages {
 public:
  virtual ~Messages() = default;

  /// Any number of bytes; none for 0.
  virtual void send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes) = 0;
  virtual void receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes) = 0;
  /// Whether all of them are over; makes them go on. Throws RunError naming a peer that is lost.
  virtual bool over() = 0;
  /// The peers, ascending, whose messages have not come.
  virtual std::vector<int64_t> missing() const = 0;
  /// Waits for none of them any more; for a job that has failed.
  virtual void give_up() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Processes on this machine.
  virtual int64_t size_here() const = 0;
  /// This one's place among them.
  virtual int64_t place_here() const = 0;

  /// Called by all processes at the same point; may wait for them. Messages of one channel never
  /// meet those of another.
  virtual int64_t open_channel() = 0;
  virtual std::unique_ptr<Messages> messages() = 0;
  /// A message that has come and that nobody has asked for: reads it. From anybody.
  struct ControlMessage {
    int64_t peer;
    std::string text;
  };
  /// Throws RunError where there is none and a peer is lost, naming it.
  virtual std::optional<ControlMessage> read(int64_t channel) = 0;

  /// Waits for all processes; nothing may be called afterwards.
  virtual void finish() = 0;
  /// Ends all other processes with this exit status; this one exits next.
  virtual void abort(int status) = 0;
};

/// As this process was launched: over TCP where torchrun's variables say the job, else by MPI. At
/// most once in a process's life. Waits for all processes.
std::unique_ptr<Transport> open_transport();

/// Throws UserError in a build without MPI, RunError where the library does not let several threads
/// call it at the same time.
std::unique_ptr<Transport> open_mpi();
/// "Open MPI v4.1.4", "" in a build without MPI.
std::string mpi_library();

/// A connection between every two processes. Throws as connect_all().
std::unique_ptr<Transport> open_tcp(const TcpJob& job);

}  // namespace moe
