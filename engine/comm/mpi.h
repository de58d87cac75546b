// Messages between the processes of an MPI job: the one place that calls MPI. Any thread may call
// anything but the constructor, finish() and open_channel(). Nothing here waits for a peer except
// where it says so, so that whoever waits can look for failures meanwhile.
// Not here: collectives (message_comm.h), who lives and what failed (processes.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/units.h"

namespace moe {

/// How this process was started, as the launcher's environment variables say.
struct MpiLaunch {
  bool by_mpi = false;
  int64_t rank = 0;
  int64_t size = 0;  // 0: not told
};
MpiLaunch mpi_launch();

/// "Open MPI v4.1.4", "" in a build without MPI.
std::string mpi_library();

/// At most one in a process's life.
class Mpi {
 public:
  /// Waits for all processes. Throws UserError in a build without MPI, RunError where the library
  /// does not let several threads call it at the same time.
  Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;
  ~Mpi();

  int64_t rank() const;
  int64_t size() const;
  /// Processes on this machine.
  int64_t size_here() const;

  /// Called by all processes at the same point; waits for them. Messages of one channel never meet
  /// those of another.
  int64_t open_channel();
  /// A message that has come and that nobody has asked for: reads it. From `peer`, or from anybody.
  struct Letter {
    int64_t peer;
    std::string text;
  };
  std::optional<Letter> read(int64_t channel);

  /// Waits for all processes; nothing may be called afterwards.
  void finish();
  /// Ends all processes; the launcher returns `status`.
  [[noreturn]] void abort(int status);

 private:
  friend class Messages;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Messages under way that are waited for together. Memory that is sent or received into stays
/// with them until over() or give_up(). Messages of one channel, sender, receiver and tag keep
/// their order. Used by one thread at a time.
class Messages {
 public:
  explicit Messages(Mpi& mpi);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Any number of bytes; none for 0.
  void send(int64_t channel, int64_t peer, int tag, const void* data, Bytes bytes);
  void receive(int64_t channel, int64_t peer, int tag, void* data, Bytes bytes);
  /// Whether all of them are over; makes them go on. Throws RunError naming a peer that MPI lost.
  bool over();
  /// The peers, ascending, whose messages have not come.
  std::vector<int64_t> missing() const;
  /// Waits for none of them any more; for a job that has failed.
  void give_up();

 private:
  Mpi& mpi_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moe
