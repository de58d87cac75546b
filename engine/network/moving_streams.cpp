#include "engine/network/moving_streams.h"

#include <algorithm>
#include <utility>

#include "engine/base/units.h"

namespace moe {

MovingStreams::MovingStreams(size_t num_links, bool per_collective)
    : per_collective_(per_collective),
      sharing_(num_links),
      level_(num_links),
      clock_(num_links),
      end_(num_links, kInfinity),
      end_ns_(num_links, kInfinity),
      search_(num_links),
      next_end_ns_(kInfinity) {}

/// Returns the index of the owner in owners_, where an owner without streams gives its place.
uint32_t MovingStreams::owner_of(uint32_t number) {
  uint32_t free = kNone;
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i].streams == 0) {
      free = i;
    } else if (owners_[i].number == number) {
      return i;
    }
  }
  if (free == kNone) {
    free = static_cast<uint32_t>(owners_.size());
    owners_.emplace_back().links.resize(clock_.size());
  }
  owners_[free].number = number;
  return free;
}

void MovingStreams::add(uint32_t owner, uint32_t out, uint32_t in, const Stream& stream) {
  if (num_streams_++ == 0) std::fill(clock_.begin(), clock_.end(), 0);
  by_bytes_ = stream.by_bytes;
  double count = 0;
  for (const Flow& flow : stream.flows) count += flow.count;
  const uint32_t id = sharing_.add(out, in, stream.weight * count);
  if (id >= streams_.size()) streams_.resize(id + 1), ends_.resize(id + 1);
  Moving& m = streams_[id] = {};
  m.next = stream.flows.data();
  m.last = m.next + stream.flows.size();
  m.out = out, m.in = in;
  m.owner = owner_of(owner);
  m.weight = stream.weight, m.count = count;
  Owner& mine = owners_[m.owner];
  ++mine.streams;
  m.place_out = static_cast<uint32_t>(mine.links[out].streams.size());
  m.place_in = static_cast<uint32_t>(mine.links[in].streams.size());
  mine.links[out].streams.push_back({id, in});
  mine.links[in].streams.push_back({id, out});
  count_flows(m, count);
}

/// `more` flows (or fewer, if negative) of the stream's owner are on the stream's links.
void MovingStreams::count_flows(const Moving& stream, double more) {
  for (const uint32_t l : {stream.out, stream.in}) {
    OwnerLink& link = owners_[stream.owner].links[l];
    link.flows += more;
    if (!link.changed) changed_.push_back({stream.owner, l});
    link.changed = true;
  }
}

void MovingStreams::remove(uint32_t id) {
  const Moving& m = streams_[id];
  Owner& owner = owners_[m.owner];
  for (const uint32_t l : {m.out, m.in}) {
    OwnerLink& link = owner.links[l];
    Moving& last = streams_[link.streams.back().stream];
    const uint32_t place = l == m.out ? m.place_out : m.place_in;
    (l == m.out ? last.place_out : last.place_in) = place;
    link.streams[place] = link.streams.back();
    link.streams.pop_back();
    if (link.streams.empty()) link.flows = 0;
  }
  --owner.streams;
  --num_streams_;
  sharing_.remove(id);
}

void MovingStreams::progress(double seconds) {
  for (size_t l = 0; l < clock_.size(); ++l) clock_[l] += level_[l] * seconds;
}

/// Sets `moved` to the bytes moved up to now.
void MovingStreams::catch_up(Moving& m) {
  if (m.holder == kNone) return;
  m.moved += m.weight * (clock_[m.holder] - m.since);
  m.since = clock_[m.holder];
}

/// Computes the end of a stream that has caught up.
void MovingStreams::set_end(uint32_t id) {
  const Moving& m = streams_[id];
  if (m.holder == kNone) return;
  const double end = m.since + std::max(0.0, m.next->bytes - m.moved) / m.weight;
  if (end <= end_[m.holder]) {
    end_[m.holder] = end;
  } else if (ends_[id] == end_[m.holder]) {
    search_[m.holder] = true;
  }
  ends_[id] = end;
}

/// Takes the holder from the shares.
void MovingStreams::set_holder(uint32_t id) {
  Moving& m = streams_[id];
  if (m.next == m.last || m.holder == sharing_.holder(id)) return;
  catch_up(m);
  if (m.holder != kNone && ends_[id] == end_[m.holder]) search_[m.holder] = true;
  m.holder = sharing_.holder(id);
  m.since = clock_[m.holder];
  ends_[id] = kInfinity;
  set_end(id);
}

/// Computes the weights of kPerCollective where the numbers of flows have changed.
void MovingStreams::weigh() {
  for (const Changed& changed : changed_) {
    Owner& owner = owners_[changed.owner];
    OwnerLink& link = owner.links[changed.link];
    link.changed = false;
    // A stream weighs by the larger number of flows on its two links.
    const double most = std::max(link.flows, std::exchange(link.weighed, link.flows));
    if (!per_collective_ || by_bytes_) continue;
    for (const OnLink& on : link.streams) {
      const double others = owner.links[on.other].flows;
      if (others > most) continue;
      weigh(on.stream, std::max(link.flows, others));
    }
  }
  changed_.clear();
}

void MovingStreams::weigh(uint32_t id, double crowd) {
  Moving& m = streams_[id];
  if (crowd == m.crowd) return;
  catch_up(m);
  m.crowd = crowd;
  m.weight = 1 / crowd;
  set_end(id);
  sharing_.set_share(id, m.weight * m.count);
}

void MovingStreams::settle(double now_ns) {
  weigh();
  sharing_.settle(moved_);
  for (const uint32_t id : moved_) set_holder(id);
  sharing_.write_levels(level_);
  for (uint32_t l = 0; l < clock_.size(); ++l) {
    if (search_[l]) find_end(l);
  }
  look_ahead(now_ns);
}

/// Finds the stream on the link that ends next.
void MovingStreams::find_end(uint32_t link) {
  search_[link] = false;
  double end = kInfinity;
  for (const auto& held : sharing_.held(link)) end = std::min(end, ends_[held.flows]);
  end_[link] = end;
}

/// Computes when the links' clocks read `end_`.
void MovingStreams::look_ahead(double now_ns) {
  const size_t num_links = clock_.size();
  // Without branches and with several minima, so that several links are computed at once.
  constexpr size_t kLanes = 4;
  double next[kLanes] = {kInfinity, kInfinity, kInfinity, kInfinity};
  const auto look = [&](size_t l, size_t lane) {
    const double left = end_[l] - clock_[l], ns = left * kNsPerSecond / level_[l];
    end_ns_[l] = now_ns + (left > 0 ? ns : 0);
    next[lane] = end_ns_[l] < next[lane] ? end_ns_[l] : next[lane];
  };
  size_t l = 0;
  for (; l + kLanes <= num_links; l += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) look(l + lane, lane);
  }
  for (; l < num_links; ++l) look(l, 0);
  next_end_ns_ = std::min(std::min(next[0], next[1]), std::min(next[2], next[3]));
}

void MovingStreams::take_ended(double now_ns, double limit_ns, std::vector<FinishedFlow>& ended) {
  if (next_end_ns_ > limit_ns) return;
  const double seconds = (limit_ns - now_ns) / kNsPerSecond;
  for (uint32_t l = 0; l < clock_.size(); ++l) {
    if (end_ns_[l] > limit_ns) continue;
    const double end = std::max(end_[l], clock_[l] + level_[l] * seconds);
    const std::vector<FairShare::Held>& held = sharing_.held(l);
    double next = kInfinity;
    for (size_t i = held.size(); i-- > 0;) {  // remove() puts the last, which was seen, at i
      const uint32_t id = held[i].flows;
      if (ends_[id] <= end && !end_flows(id, ended)) continue;
      next = std::min(next, ends_[id]);
    }
    end_[l] = next;
  }
  if (by_bytes_) look_ahead(now_ns);
}

/// Ends the next flows of the stream; returns whether it has more.
bool MovingStreams::end_flows(uint32_t id, std::vector<FinishedFlow>& ended) {
  Moving& m = streams_[id];
  m.moved = m.next->bytes;
  m.since = clock_[m.holder];
  double count = 0;
  for (; m.next != m.last && m.next->bytes <= m.moved; ++m.next) {
    count += m.next->count;
    ended.push_back({owners_[m.owner].number, m.next});
  }
  m.count -= count;
  count_flows(m, -count);
  if (m.next == m.last) {
    remove(id);
    return false;
  }
  ends_[id] = m.since + (m.next->bytes - m.moved) / m.weight;
  sharing_.set_share(id, m.weight * m.count);
  return true;
}

int64_t MovingStreams::owners_on(uint32_t link) const {
  return std::count_if(owners_.begin(), owners_.end(),
                       [link](const Owner& owner) { return !owner.links[link].streams.empty(); });
}

}  // namespace moe
