#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/threads.h"
#include "engine/comm/communicator.h"
#include "engine/comm/local/meeting.h"

namespace moe {

Nanoseconds clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Nanoseconds Communicator::take_post() {
  const Nanoseconds now = clock_ns(), at = posted_at_;
  posted_at_ = 0;
  return at > 0 ? std::min(at, now) : now;
}

CommTimes Communicator::nothing() {
  const Nanoseconds at = take_post();
  return {at, at, at, thread_cpu_ns()};
}

CommTimes Communicator::post(Request request) {
  request.post = take_post();
  return call(request);
}

CommTimes Communicator::all_to_all(const std::string& what, const void* send, void* receive,
                                   const Pieces& pieces) {
  const size_t n = static_cast<size_t>(size() * pieces.groups);
  MOE_CHECK(pieces.send_offset.size() == n && pieces.send_bytes.size() == n &&
                pieces.receive_offset.size() == n && pieces.receive_bytes.size() == n,
            "all_to_all: Pieces has {} send_offset, {} send_bytes, {} receive_offset and {} "
            "receive_bytes, but must have {} of each, for {} ranks and {} groups",
            pieces.send_offset.size(), pieces.send_bytes.size(), pieces.receive_offset.size(),
            pieces.receive_bytes.size(), n, size(), pieces.groups);
  return post({CallKind::kAllToAll, what, send, receive, 0, 0, &pieces});
}

Communicator& Communicator::group(const Group& group) {
  const Group resolved = resolve(group, size(), "communicator");
  if (resolved.size == size()) return *this;
  return made(among({resolved.size, resolved.member(rank(), 0), resolved.stride}));
}

Communicator& Communicator::pair(int64_t distance) {
  const int64_t other = rank() + distance;
  MOE_CHECK(distance != 0 && other >= 0 && other < size(),
            "Communicator::pair(): rank {} + {} must be another of {} ranks", rank(), distance,
            size());
  return made(among({2, std::min(rank(), other), std::abs(distance)}));
}

Communicator& Communicator::made(Communicator& members) {
  members.posted_at_ = std::exchange(posted_at_, 0);
  return members;
}

std::string describe(const Request& request) {
  return fmt::format("{} {}", name_of(request.kind), request.what);
}

Bytes element_bytes(CallKind kind) {
  switch (kind) {
    case CallKind::kAllReduceF32:
    case CallKind::kReduceScatterF32:
      return sizeof(float);
    case CallKind::kAllReduceF64:
    case CallKind::kReduceScatterF64:
      return sizeof(double);
    default:
      return 1;
  }
}

struct InProcessWorld::Impl {
  class Member;
  /// The meeting of one group on one lane.
  struct GroupLane {
    GroupLane(int64_t lane, const Members& members, double timeout_s)
        : lane(lane), meeting(members, timeout_s) {}
    const int64_t lane;
    Meeting meeting;
  };

  Impl(int64_t num_ranks, int64_t num_lanes, double timeout_s);
  /// Returns the GroupLane of these members on the lane; creates it if needed.
  GroupLane& group_lane(int64_t lane, const Members& members);
  CommTimes call(GroupLane& group_lane, int64_t number, const Request& request);
  void abort(const std::string& reason);
  std::string whereabouts(int64_t rank);

  const int64_t num_ranks;
  const double timeout_s;
  std::vector<std::unique_ptr<Member>> members;  // [lane * num_ranks + rank]
  std::mutex mutex;                              // guards the members below
  std::deque<GroupLane> group_lanes;
  // The reason of the first failure; calls on a GroupLane that is created later fail with it too.
  std::optional<std::string> aborted;
};

/// The communicator of one rank on one lane, as member `number` of a GroupLane.
class InProcessWorld::Impl::Member final : public Communicator {
 public:
  Member(Impl& world, GroupLane& group_lane, int64_t number)
      : world_(world), group_lane_(group_lane), number_(number) {}

  int64_t rank() const override { return number_; }
  int64_t size() const override { return group_lane_.meeting.members().size; }
  CommTimes call(const Request& request) override {
    return world_.call(group_lane_, number_, request);
  }

  Communicator& among(const Members& who) override {
    MOE_CHECK(size() == world_.num_ranks,
              "Communicator::group() must be called on the communicator of all {} ranks, but was "
              "called on that of a group of {}",
              world_.num_ranks, size());
    for (const auto& made : subgroups_) {
      if (made->group_lane_.meeting.members() == who) return *made;
    }
    subgroups_.push_back(std::make_unique<Member>(world_, world_.group_lane(group_lane_.lane, who),
                                                  (number_ - who.first) / who.stride));
    return *subgroups_.back();
  }

 private:
  Impl& world_;
  GroupLane& group_lane_;
  const int64_t number_;
  std::vector<std::unique_ptr<Member>> subgroups_;
};

InProcessWorld::Impl::Impl(int64_t num_ranks, int64_t num_lanes, double timeout_s)
    : num_ranks(num_ranks), timeout_s(timeout_s) {
  for (int64_t lane = 0; lane < num_lanes; ++lane) {
    GroupLane& all = group_lane(lane, {num_ranks});
    for (int64_t r = 0; r < num_ranks; ++r) {
      members.push_back(std::make_unique<Member>(*this, all, r));
    }
  }
}

InProcessWorld::Impl::GroupLane& InProcessWorld::Impl::group_lane(int64_t lane,
                                                                  const Members& who) {
  const std::lock_guard lock(mutex);
  for (GroupLane& group_lane : group_lanes) {
    if (group_lane.lane == lane && group_lane.meeting.members() == who) return group_lane;
  }
  GroupLane& made = group_lanes.emplace_back(lane, who, timeout_s);
  if (aborted) made.meeting.fail(*aborted);
  return made;
}

CommTimes InProcessWorld::Impl::call(GroupLane& group_lane, int64_t number,
                                     const Request& request) {
  try {
    return group_lane.meeting.join(number, request);
  } catch (const Meeting::Failure& failure) {
    if (!failure.found_here) {
      throw run_error("rank {}: {}: stopped: {}", group_lane.meeting.members().rank(number),
                      describe(request), failure.reason);
    }
    std::string reason = failure.reason;
    for (const int64_t r : failure.missing) reason += fmt::format("; {}", whereabouts(r));
    abort(reason);
    throw RunError(reason);
  }
}

void InProcessWorld::Impl::abort(const std::string& reason) {
  const std::lock_guard lock(mutex);
  if (!aborted) aborted = reason;
  for (GroupLane& group_lane : group_lanes) group_lane.meeting.fail(reason);
}

std::string InProcessWorld::Impl::whereabouts(int64_t rank) {
  const Nanoseconds now = clock_ns();
  const auto seconds = [&](Nanoseconds since) { return static_cast<double>(now - since) / 1e9; };
  std::string waits;
  Meeting::MemberState last;
  int64_t last_lane = 0;
  const std::lock_guard lock(mutex);
  for (GroupLane& group_lane : group_lanes) {
    const Members& who = group_lane.meeting.members();
    const int64_t number = (rank - who.first) / who.stride;
    if (rank < who.first || number >= who.size || who.rank(number) != rank) continue;
    const Meeting::MemberState p = group_lane.meeting.state_of(number);
    if (p.inside) {
      waits += fmt::format("{}in {} on lane {} for {:.3g} s", waits.empty() ? "" : " and ", p.what,
                           group_lane.lane, seconds(p.since));
    } else if (p.since > last.since) {
      last = p;
      last_lane = group_lane.lane;
    }
  }
  if (!waits.empty()) return fmt::format("rank {} is {}", rank, waits);
  if (last.since == 0) return fmt::format("rank {} has made no call yet", rank);
  return fmt::format("rank {} left {} on lane {} {:.3g} s ago", rank, last.what, last_lane,
                     seconds(last.since));
}

InProcessWorld::InProcessWorld(int64_t num_ranks, int64_t num_lanes, Options options)
    : impl_(std::make_unique<Impl>(num_ranks, num_lanes, options.timeout_s)) {
  MOE_CHECK(num_ranks > 0 && num_lanes > 0,
            "InProcessWorld: num_ranks = {} and num_lanes = {}, but both must be at least 1",
            num_ranks, num_lanes);
}

InProcessWorld::~InProcessWorld() = default;

Communicator& InProcessWorld::comm(int64_t rank, int64_t lane) {
  return *impl_->members[static_cast<size_t>(lane * impl_->num_ranks + rank)];
}

void InProcessWorld::abort(const std::string& reason) {
  impl_->abort(reason);
}

}  // namespace moe
