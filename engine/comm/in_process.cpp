#include <algorithm>
#include <chrono>
#include <deque>

#include "engine/base/errors.h"
#include "engine/comm/communicator.h"
#include "engine/comm/meeting.h"

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

namespace {

void check_pieces(const Pieces& pieces, int64_t num_ranks) {
  const size_t n = static_cast<size_t>(num_ranks * pieces.groups);
  MOE_CHECK(pieces.send_offset.size() == n && pieces.send_bytes.size() == n &&
                pieces.receive_offset.size() == n && pieces.receive_bytes.size() == n,
            "pieces of {} ranks and {} groups", num_ranks, pieces.groups);
}

}  // namespace

struct InProcessWorld::Impl {
  class Member;

  Impl(int64_t num_ranks, int64_t num_lanes, double timeout_s);
  CommTimes call(int64_t rank, int64_t lane, const Request& request);
  void abort(const std::string& reason);
  std::string whereabouts(int64_t rank);

  const int64_t num_ranks;
  std::deque<Meeting> lanes;
  std::vector<std::unique_ptr<Member>> members;  // [lane * num_ranks + rank]
};

/// The view of one rank on one lane.
class InProcessWorld::Impl::Member final : public Communicator {
 public:
  Member(Impl& world, int64_t rank, int64_t lane) : world_(world), rank_(rank), lane_(lane) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return world_.num_ranks; }

  CommTimes all_to_all(const std::string& what, const void* send, void* receive,
                       const Pieces& pieces) override {
    check_pieces(pieces, world_.num_ranks);
    return call({CallKind::kAllToAll, what, send, receive, 0, 0, &pieces});
  }
  CommTimes all_reduce(const std::string& what, const float* in, float* out, int64_t n) override {
    return call({CallKind::kAllReduceF32, what, in, out, n});
  }
  CommTimes all_reduce(const std::string& what, const double* in, double* out, int64_t n) override {
    return call({CallKind::kAllReduceF64, what, in, out, n});
  }
  CommTimes broadcast(const std::string& what, void* data, Bytes bytes, int64_t root) override {
    MOE_CHECK(root >= 0 && root < world_.num_ranks, "root {}", root);
    return call({CallKind::kBroadcast, what, data, data, bytes, root});
  }
  CommTimes barrier(const std::string& what) override { return call({CallKind::kBarrier, what}); }

 private:
  CommTimes call(Request request) {
    request.post = take_post();
    return world_.call(rank_, lane_, request);
  }

  Impl& world_;
  const int64_t rank_, lane_;
};

InProcessWorld::Impl::Impl(int64_t num_ranks, int64_t num_lanes, double timeout_s)
    : num_ranks(num_ranks) {
  for (int64_t lane = 0; lane < num_lanes; ++lane) {
    lanes.emplace_back(num_ranks, timeout_s);
    for (int64_t r = 0; r < num_ranks; ++r) {
      members.push_back(std::make_unique<Member>(*this, r, lane));
    }
  }
}

CommTimes InProcessWorld::Impl::call(int64_t rank, int64_t lane, const Request& request) {
  try {
    return lanes[static_cast<size_t>(lane)].join(rank, request);
  } catch (const Meeting::Failure& failure) {
    if (!failure.found_here) {
      throw run_error("rank {}: {}: stopped: {}", rank, describe(request), failure.reason);
    }
    std::string reason = failure.reason;
    for (const int64_t r : failure.missing) reason += fmt::format("; {}", whereabouts(r));
    abort(reason);
    throw RunError(reason);
  }
}

void InProcessWorld::Impl::abort(const std::string& reason) {
  for (Meeting& lane : lanes) lane.fail(reason);
}

std::string InProcessWorld::Impl::whereabouts(int64_t rank) {
  const Nanoseconds now = clock_ns();
  const auto seconds = [&](Nanoseconds since) { return static_cast<double>(now - since) / 1e9; };
  std::string waits;
  Meeting::Presence last;
  int64_t last_lane = 0;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const Meeting::Presence p = lanes[lane].presence(rank);
    if (p.inside) {
      waits += fmt::format("{}in {} on lane {} for {:.3g} s", waits.empty() ? "" : " and ", p.what,
                           lane, seconds(p.since));
    } else if (p.since > last.since) {
      last = p;
      last_lane = static_cast<int64_t>(lane);
    }
  }
  if (!waits.empty()) return fmt::format("rank {} is {}", rank, waits);
  if (last.since == 0) return fmt::format("rank {} has made no call yet", rank);
  return fmt::format("rank {} left {} on lane {} {:.3g} s ago", rank, last.what, last_lane,
                     seconds(last.since));
}

InProcessWorld::InProcessWorld(int64_t num_ranks, int64_t num_lanes, Options options)
    : impl_(std::make_unique<Impl>(num_ranks, num_lanes, options.timeout_s)) {
  MOE_CHECK(num_ranks > 0 && num_lanes > 0, "{} ranks, {} lanes", num_ranks, num_lanes);
}

InProcessWorld::~InProcessWorld() = default;

Communicator& InProcessWorld::comm(int64_t rank, int64_t lane) {
  return *impl_->members[static_cast<size_t>(lane * impl_->num_ranks + rank)];
}

void InProcessWorld::abort(const std::string& reason) {
  impl_->abort(reason);
}

}  // namespace moe
