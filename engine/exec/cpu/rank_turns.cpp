// The lanes of a CPU rank that get their turns from an arbiter: when their ops are posted, and how
// a turn is executed.
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/comm/local/emulated_link.h"
#include "engine/exec/cpu/rank.h"

namespace moe {

/// Fills postings_: an op on a lane with an arbiter counts down the ops for which it waits. On a
/// lane that runs in order, it also waits for the previous op of the lane.
template <class T>
void Rank<T>::add_postings() {
  const auto arbitrated = [](const LaneArbiter* t) { return t != nullptr; };
  if (std::none_of(arbiters_.begin(), arbiters_.end(), arbitrated)) return;
  postings_ = std::vector<Posting>(plan_.graph.num_ops());
  std::vector<std::vector<OpId>> posts(plan_.graph.num_ops());
  std::vector<std::vector<LaneArbiter*>> announces(plan_.graph.num_ops());
  for (size_t l = 0; l < lanes_.size(); ++l) {
    if (arbiters_[l] == nullptr) continue;
    const bool picks = plan_.schedule.picks(LaneId(static_cast<int64_t>(l)));
    std::vector<Launch>& launches = lanes_[l].launches;
    for (size_t i = 0; i < launches.size(); ++i) {
      if (i > 0 && !picks) launches[i].waits.push_back(launches[i - 1].op);
      Posting& posting = postings_[launches[i].op.index()];
      posting.launch = i;
      posting.waits = launches[i].waits;
      for (const OpId op : posting.waits) posts[op.index()].push_back(launches[i].op);
    }
  }
  for (const Hold& hold : plan_.schedule.holds) {
    const LaneId lane = plan_.schedule.lane_of[hold.until.index()];
    announces[hold.from.index()].push_back(arbiters_[lane.index()]);
  }
  for (Lane& lane : lanes_) {
    for (Launch& launch : lane.launches) {
      launch.posts = std::move(posts[launch.op.index()]);
      launch.announces = std::move(announces[launch.op.index()]);
    }
  }
}

template <class T>
void Rank<T>::take_turns(LaneId id, const ProgramRun& spec, Communicator& comm) {
  Lane& lane = lanes_[id.index()];
  LaneArbiter& arbiter = *arbiters_[id.index()];
  std::vector<OpId> first;
  for (const Launch& launch : lane.launches) {
    if (launch.waits.empty()) first.push_back(launch.op);
  }
  if (!first.empty()) paced() ? hold_until(spec.start) : wait_until_ns(spec.start);
  post(std::move(first), spec);
  for (size_t left = lane.launches.size(); left > 0;) {
    const Turn turn = arbiter.next(rank_, id);
    lane.current = turn.op;
    if (turn.error) std::rethrow_exception(turn.error);
    Launch& launch = lane.launches[postings_[turn.op.index()].launch];
    const Nanoseconds end = take_turn(launch, id, spec, turn, comm);
    if (turn.chunk + 1 == launch.num_chunks) --left;
    lane.current = OpId();
    arbiter.done(rank_, end);
  }
}

/// Executes a turn; returns the time at which the transfer ended.
template <class T>
Nanoseconds Rank<T>::take_turn(Launch& launch, LaneId id, const ProgramRun& spec, const Turn& turn,
                               Communicator& comm) {
  const bool runs = spec.train || launch.forward;
  Nanoseconds end = turn.since;
  if (turn.chunk == 0) launch.chunk_post = postings_[turn.op.index()].ready;
  if (runs && turn.chunk == 0) end = before(launch, spec, end);
  if (runs) end = transfer(launch, turn.chunk, id, spec, end, comm);
  if (turn.chunk + 1 == launch.num_chunks) {
    finish(launch, spec, runs ? after(launch, id, spec, end, launch.chunk_cpu) : end);
  }
  return end;
}

/// Posts the ops to their arbiters, with one call of LaneArbiter::post() per arbiter.
template <class T>
void Rank<T>::post(std::vector<OpId> ops, const ProgramRun& spec) {
  const auto arbiter_of = [&](OpId op) {
    return arbiters_[plan_.schedule.lane_of[op.index()].index()];
  };
  while (!ops.empty()) {
    LaneArbiter* const arbiter = arbiter_of(ops[0]);
    std::vector<Ready> ready;
    std::erase_if(ops, [&](OpId op) {
      if (arbiter_of(op) != arbiter) return false;
      Posting& posting = postings_[op.index()];
      posting.ready = spec.start;
      for (const OpId before : posting.waits) {
        posting.ready = std::max(posting.ready, progress_.wait(before, spec.epoch));
      }
      ready.push_back({op, posting.ready});
      return true;
    });
    arbiter->post(rank_, ready);
  }
}

template <class T>
void Rank<T>::finish(const Launch& launch, const ProgramRun& spec, Nanoseconds end) {
  progress_.finish(launch.op, spec.epoch, end, launch.awaited);
  std::vector<OpId> ready;
  for (const OpId next : launch.posts) {
    if (postings_[next.index()].left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      ready.push_back(next);
    }
  }
  post(std::move(ready), spec);
}

template <class T>
std::string Rank<T>::waits_for(OpId op, const ProgramRun& spec) const {
  std::vector<std::string> names;
  for (const OpId before : postings_[op.index()].waits) {
    if (!progress_.over(before, spec.epoch)) names.push_back(plan_.graph.op(before).name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

#define MOE_INSTANTIATE(T)                                                                    \
  template void Rank<T>::add_postings();                                                      \
  template void Rank<T>::take_turns(LaneId id, const ProgramRun& spec, Communicator& comm);   \
  template void Rank<T>::finish(const Launch& launch, const ProgramRun& spec, Nanoseconds e); \
  template std::string Rank<T>::waits_for(OpId op, const ProgramRun& spec) const;
MOE_INSTANTIATE(float)
MOE_INSTANTIATE(double)
#undef MOE_INSTANTIATE

}  // namespace moe
