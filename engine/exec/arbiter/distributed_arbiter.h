// The turns of one arbiter for the ranks of a job, one rank per process. Rank 0's process holds a
// LocalArbiter for all ranks. The other ranks send notes to rank 0 (which ops they posted, began
// and finished), and rank 0 sends them every turn. There is no extra thread that reads notes; the
// threads that wait for a turn read them. This suffices: a transfer cannot be chosen before rank 0
// itself has posted it, and from then on rank 0's lane is waiting for a turn. Times in notes are on
// the job's common clock.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/comm/transport/control_channel.h"
#include "engine/exec/arbiter/local_arbiter.h"

namespace moe {

class DistributedArbiter final : public LaneArbiter {
 public:
  /// `number` is the arbiter's index in the schedule. `options` are those of a LocalArbiter of all
  /// ranks; on ranks other than 0 only the timeout is used. Keeps references to graph, schedule and
  /// processes.
  DistributedArbiter(const Graph& graph, const Schedule& schedule, const Arbiter& lanes,
                     int64_t number, Processes& processes, LocalArbiter::Options options);

  void start_step() override;
  void end_step() override;
  void post(int64_t rank, const std::vector<Ready>& ops) override;
  void begun(int64_t rank, OpId op) override;
  Turn next(int64_t rank, LaneId lane) override;
  std::optional<Turn> try_next(int64_t rank, LaneId lane) override;
  void done(int64_t rank, Nanoseconds end) override;
  void abort() override;

 private:
  void send_turn(const Turn& turn);
  void read_messages();
  void handle(int64_t rank, const std::string& text);
  std::optional<Turn> take(int64_t rank, LaneId lane);
  bool may_look();

  const Graph& graph_;
  const Schedule& schedule_;
  const int64_t number_;
  const double timeout_s_;
  Processes& processes_;
  std::unique_ptr<LocalArbiter> all_;  // on rank 0; null elsewhere
  ControlChannel* channel_ = nullptr;  // set when the first step starts
  std::mutex reading_;  // held while messages are read, so that they are handled in order
  std::mutex mutex_;    // guards the members below; locked after reading_
  std::condition_variable changed_;
  /// Indexed by lane of the schedule: number of ops that this rank has posted and not finished.
  std::vector<int64_t> posted_;
  std::optional<Turn> received_;  // on other ranks than 0: received, not yet taken by a lane
  std::optional<Turn> taken_;     // taken by a lane, not yet finished
  Nanoseconds next_look_ = 0;     // when the watchdog checks next
  bool aborted_ = false;
};

}  // namespace moe
