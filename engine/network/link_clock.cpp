#include "engine/network/link_clock.h"

#include <algorithm>

#include "engine/base/errors.h"

namespace moe {
namespace {

/// Returns the latest end of a flow that counts as the same event as an end at `ns`: the two ends
/// differ only by rounding.
double same_moment(double ns) {
  return ns + 1e-5 + 1e-14 * ns;
}

}  // namespace

LinkClock::LinkClock(const Fabric& fabric, Share share, double efficiency, bool keep_use)
    : fabric_(fabric), share_(share), efficiency_(efficiency), keep_use_(keep_use) {
  const size_t num_links = fabric.bytes_per_s().size();
  part_of_.resize(num_links);
  if (keep_use) open_.resize(num_links);
  for (const LinkPart& links : fabric.parts()) {
    for (uint32_t l = links.first; l < links.last; ++l) {
      part_of_[l] = static_cast<uint32_t>(parts_.size());
      if (keep_use) open_[l].link = l;
    }
    parts_.push_back({.links = links, .next_end_ns = kInfinity});
  }
}

MovingStreams& LinkClock::streams_of(Part& part, int64_t priority) {
  if (share_ != Share::kStrictPriority) priority = 0;
  auto at = part.tiers.begin();
  while (at != part.tiers.end() && at->priority > priority) ++at;
  if (at == part.tiers.end() || at->priority != priority) {
    const uint32_t num_links = part.links.last - part.links.first;
    at = part.tiers.insert(at,
                           {priority, MovingStreams(num_links, share_ == Share::kPerCollective)});
    for (uint32_t l = 0; l < num_links; ++l) {
      at->streams.set_capacity(l, fabric_.bytes_per_s()[part.links.first + l]);
    }
  }
  return at->streams;
}

void LinkClock::add(uint32_t owner, int64_t priority, std::span<const Stream> streams) {
  for (const Stream& s : streams) {
    Part& part = parts_[part_of_[s.out]];
    progress(part);
    part.changed = changed_ = true;
    const uint32_t first = part.links.first;
    streams_of(part, priority).add(owner, s.out - first, s.in - first, s);
  }
}

void LinkClock::progress(Part& part) {
  const double seconds = (now_ns_ - part.since_ns) / kNsPerSecond;
  part.since_ns = now_ns_;
  if (seconds == 0) return;
  for (Tier& tier : part.tiers) tier.streams.progress(seconds);
}

void LinkClock::settle(Part& part) {
  part.changed = false;
  if (efficiency_ < 1 || part.tiers.size() > 1) {
    settle_tiers(part);
  } else {
    part.tiers[0].streams.settle(now_ns_);  // has all of every link's rate
  }
  look_ahead(part);
}

/// Settles the tiers one after the other, each with the rates that those before it leave.
void LinkClock::settle_tiers(Part& part) {
  const double* const rates = fabric_.bytes_per_s().data() + part.links.first;
  const uint32_t num_links = part.links.last - part.links.first;
  load_.assign(num_links, 0);
  owners_.assign(num_links, 0);
  for (Tier& tier : part.tiers) {
    for (uint32_t l = 0; l < num_links; ++l) {
      owners_[l] += tier.streams.owners_on(l);
      const double rate = owners_[l] > 1 ? rates[l] * efficiency_ : rates[l];
      tier.streams.set_capacity(l, std::max(0.0, rate - load_[l]));
    }
    tier.streams.settle(now_ns_);
    for (uint32_t l = 0; l < num_links; ++l) load_[l] += tier.streams.used(l);
  }
}

void LinkClock::look_ahead(Part& part) {
  part.next_end_ns = kInfinity;
  for (const Tier& tier : part.tiers) {
    part.next_end_ns = std::min(part.next_end_ns, tier.streams.next_end_ns());
  }
  if (keep_use_) record(part);
}

double LinkClock::next_end_ns() {
  if (!changed_) return next_end_ns_;
  changed_ = false;
  next_end_ns_ = kInfinity;
  for (Part& part : parts_) {
    if (part.changed) settle(part);
    next_end_ns_ = std::min(next_end_ns_, part.next_end_ns);
  }
  return next_end_ns_;
}

void LinkClock::advance(double ns, std::vector<FinishedFlow>& ended) {
  MOE_CHECK(ns >= now_ns_ && ns <= next_end_ns(),
            "LinkClock::advance: ns = {}, but must be from now_ns() = {} to next_end_ns() = {}", ns,
            now_ns_, next_end_ns());
  now_ns_ = ns;
  const double limit = same_moment(ns);
  if (next_end_ns_ > limit) return;
  changed_ = true;
  for (Part& part : parts_) {
    if (part.next_end_ns > limit) continue;
    progress(part);
    const size_t first = ended.size();
    for (Tier& tier : part.tiers) {
      tier.streams.take_ended(ns, limit, ended);
      if (!tier.streams.by_bytes()) part.changed = true;
    }
    std::sort(ended.begin() + static_cast<std::ptrdiff_t>(first), ended.end(),
              [](const auto& a, const auto& b) { return a.owner < b.owner; });
    if (!part.changed) look_ahead(part);
  }
}

void LinkClock::record(const Part& part) {
  const uint32_t first = part.links.first;
  const uint32_t num_links = part.links.last - first;
  load_.assign(num_links, 0);
  for (const Tier& tier : part.tiers) {
    for (uint32_t l = 0; l < num_links; ++l) load_[l] += tier.streams.used(l);
  }
  for (uint32_t l = 0; l < num_links; ++l) {
    LinkUse& open = open_[first + l];
    const double least = 1e-9 * fabric_.bytes_per_s()[first + l];  // less is a rounding error
    const double load = load_[l] > least ? load_[l] : 0;
    if (std::abs(load - open.bytes_per_s) <= least) continue;
    if (open.bytes_per_s > 0 && now_ns_ > open.begin_ns) {
      use_.push_back({open.link, open.begin_ns, now_ns_, open.bytes_per_s});
    }
    open.begin_ns = now_ns_;
    open.bytes_per_s = load;
  }
}

}  // namespace moe
