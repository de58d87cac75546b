#include "engine/network/link_clock.h"

#include <algorithm>
#include <limits>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the latest end of a flow that counts as the same event as an end at `ns`: the two ends
/// differ only by rounding.
double same_moment(double ns) {
  return ns + 1e-5 + 1e-14 * ns;
}

}  // namespace

LinkClock::LinkClock(const Fabric& fabric, Share share, double efficiency, bool keep_use)
    : fabric_(fabric), share_(share), keep_use_(keep_use) {
  const size_t num_links = fabric.bytes_per_s().size();
  part_of_.resize(num_links);
  crowd_.resize(num_links);
  load_.resize(num_links);
  if (keep_use) open_.resize(num_links);
  for (const LinkPart& links : fabric.parts()) {
    for (uint32_t l = links.first; l < links.last; ++l) {
      part_of_[l] = static_cast<uint32_t>(parts_.size());
      if (keep_use) open_[l].link = l;
    }
    parts_.push_back({links, {}, {}, FairShare(efficiency), 0, kInfinity, false, false, false});
  }
}

void LinkClock::add(uint32_t owner, int64_t priority, std::span<const Stream> streams) {
  for (const Stream& s : streams) {
    Part& part = parts_[part_of_[s.out]];
    progress(part);
    part.changed = part.regroup = true;
    part.by_bytes = s.by_bytes;
    const uint32_t first = part.links.first;
    FlowGroup group{s.out - first, s.in - first, 0, s.weight, 0, owner, 0};
    if (share_ == Share::kStrictPriority) group.level = priority;
    for (const Flow& flow : s.flows) group.count += flow.count;
    // Groups of one owner must be adjacent (FairShare::set_groups).
    auto at = std::upper_bound(part.groups.begin(), part.groups.end(), group,
                               [](const auto& a, const auto& b) { return a.owner < b.owner; });
    const auto place = at - part.groups.begin();
    part.groups.insert(at, group);
    part.moving.insert(part.moving.begin() + place,
                       {s.flows.data(), s.flows.data() + s.flows.size(), 0, kInfinity});
  }
}

void LinkClock::progress(Part& part) {
  const double seconds = (now_ns_ - part.since_ns) / kNsPerSecond;
  part.since_ns = now_ns_;
  if (seconds == 0) return;
  for (size_t i = 0; i < part.moving.size(); ++i) {
    part.moving[i].moved += part.groups[i].rate * seconds;
  }
}

void LinkClock::weigh_per_collective(Part& part) {
  std::vector<FlowGroup>& groups = part.groups;
  for (size_t first = 0, last = 0; first < groups.size(); first = last) {
    while (last < groups.size() && groups[last].owner == groups[first].owner) ++last;
    for (size_t i = first; i < last; ++i) crowd_[groups[i].out] = crowd_[groups[i].in] = 0;
    for (size_t i = first; i < last; ++i) {
      crowd_[groups[i].out] += groups[i].count;
      crowd_[groups[i].in] += groups[i].count;
    }
    for (size_t i = first; i < last; ++i) {
      const double crowd = std::max(crowd_[groups[i].out], crowd_[groups[i].in]);
      groups[i].weight = 1.0 / crowd;
    }
  }
}

void LinkClock::settle(Part& part) {
  part.changed = false;
  const uint32_t first = part.links.first;
  if (part.regroup) part.sharing.set_groups(part.groups, part.links.last - first);
  part.regroup = false;
  if (share_ == Share::kPerCollective && !part.by_bytes) weigh_per_collective(part);
  part.sharing.fill(part.groups, fabric_.bytes_per_s().data() + first);
  for (size_t i = 0; i < part.moving.size(); ++i) {
    MovingStream& m = part.moving[i];
    const double left = m.next->bytes - m.moved;
    m.next_end_ns = left > 0 ? now_ns_ + left * kNsPerSecond / part.groups[i].rate : now_ns_;
  }
  look_ahead(part);
}

void LinkClock::look_ahead(Part& part) {
  part.next_end_ns = kInfinity;
  for (const MovingStream& m : part.moving)
    part.next_end_ns = std::min(part.next_end_ns, m.next_end_ns);
  if (keep_use_) record(part);
}

double LinkClock::next_end_ns() {
  double next = kInfinity;
  for (Part& part : parts_) {
    if (part.changed) settle(part);
    next = std::min(next, part.next_end_ns);
  }
  return next;
}

void LinkClock::take_ended(Part& part, double limit_ns, std::vector<FinishedFlow>& ended) {
  size_t kept = 0;
  for (size_t i = 0; i < part.moving.size(); ++i) {
    MovingStream& m = part.moving[i];
    FlowGroup& group = part.groups[i];
    if (m.next_end_ns <= limit_ns) {
      m.moved = m.next->bytes;
      for (; m.next != m.last && m.next->bytes <= m.moved; ++m.next) {
        group.count -= m.next->count;
        ended.push_back({group.owner, m.next});
      }
    }
    if (m.next == m.last) continue;
    if (kept != i) {
      part.moving[kept] = m;
      part.groups[kept] = group;
    }
    ++kept;
  }
  if (kept == part.moving.size()) return;
  part.moving.resize(kept);
  part.groups.resize(kept);
  part.regroup = true;
}

void LinkClock::advance(double ns, std::vector<FinishedFlow>& ended) {
  MOE_CHECK(ns >= now_ns_ && ns <= next_end_ns(),
            "LinkClock::advance: ns = {}, but must be from now_ns() = {} to next_end_ns() = {}", ns,
            now_ns_, next_end_ns());
  now_ns_ = ns;
  const double limit = same_moment(ns);
  for (Part& part : parts_) {
    if (part.next_end_ns > limit) continue;
    progress(part);
    take_ended(part, limit, ended);
    part.changed = !part.by_bytes;
    if (part.by_bytes) look_ahead(part);
  }
}

void LinkClock::record(const Part& part) {
  const uint32_t first = part.links.first;
  const uint32_t num_links = part.links.last - first;
  std::fill_n(load_.begin(), num_links, 0.0);
  for (const FlowGroup& g : part.groups) {
    const double all = g.rate * g.count;
    load_[g.out] += all;
    load_[g.in] += all;
  }
  for (uint32_t l = 0; l < num_links; ++l) {
    LinkUse& open = open_[first + l];
    const double rate = fabric_.bytes_per_s()[first + l];
    if (std::abs(load_[l] - open.bytes_per_s) <= 1e-9 * rate) continue;
    if (open.bytes_per_s > 0 && now_ns_ > open.begin_ns) {
      use_.push_back({open.link, open.begin_ns, now_ns_, open.bytes_per_s});
    }
    open.begin_ns = now_ns_;
    open.bytes_per_s = load_[l];
  }
}

}  // namespace moe
