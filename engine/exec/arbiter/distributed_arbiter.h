// The turns of one arbiter for the ranks of a job, one per process. Rank 0's process holds the one
// LocalArbiter of all; the others tell it by messages what they posted, began and are through with,
// and it tells them every turn. No thread waits for messages but those that wait for turns: nothing
// can be chosen before rank 0 itself has posted, and from then on its lane looks. Times in messages
// are on the job's common clock.
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
  /// number: of the arbiter in the schedule. Options: of a LocalArbiter of all ranks, used on rank
  /// 0 alone but for the timeout. Keeps references to graph, schedule and processes.
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
  std::unique_ptr<LocalArbiter> all_;  // on rank 0
  ControlChannel* channel_ = nullptr;  // from the first step on
  std::mutex reading_;                 // messages are followed in the order in which they are read
  std::mutex mutex_;                   // of what follows; taken after reading_
  std::condition_variable changed_;
  std::vector<int64_t> posted_;   // by lane of the schedule: ops of this rank that are not over
  std::optional<Turn> received_;  // on others than rank 0: not taken yet
  std::optional<Turn> taken_;     // not done yet
  Nanoseconds next_look_ = 0;     // the watchdog's
  bool aborted_ = false;
};

}  // namespace moe
