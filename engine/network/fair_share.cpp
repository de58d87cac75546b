#include "engine/network/fair_share.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace moe {
namespace {

/// Levels that differ by less than this factor are equal except for rounding.
constexpr double kTie = 1 + 1e-13;
/// Differs from every sum.
constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();

}  // namespace

FairShare::FairShare(size_t num_links)
    : capacity_(num_links),
      level_(num_links, kInfinity),
      taken_(num_links),
      weight_(num_links),
      seen_(num_links, kUnseen),
      count_(num_links),
      position_(num_links),
      held_(num_links),
      order_(num_links) {
  std::iota(order_.begin(), order_.end(), 0);
  std::iota(position_.begin(), position_.end(), 0);
}

void FairShare::mark(uint32_t link) {
  seen_[link] = kUnseen;
  first_changed_ = std::min<size_t>(first_changed_, position_[link]);
}

void FairShare::set_capacity(uint32_t link, double bytes_per_s) {
  if (capacity_[link] == bytes_per_s) return;
  capacity_[link] = bytes_per_s;
  mark(link);
}

/// Lets `link` hold back flows that no link holds.
void FairShare::hold(uint32_t id, uint32_t link) {
  Flows& flows = flows_[id];
  const uint32_t other = flows.out + flows.in - link;
  if (level_[link] == kInfinity) level_[link] = 0;  // until it is computed
  flows.holder = link;
  flows.place = static_cast<uint32_t>(held_[link].size());
  held_[link].push_back({id, other, flows.share});
  weight_[link] += flows.share;
  taken_[other] += flows.share * level_[link];
  mark(link);
  mark(other);
}

void FairShare::release(uint32_t id) {
  const Flows& flows = flows_[id];
  const uint32_t link = flows.holder;
  const uint32_t other = flows.out + flows.in - link;
  taken_[other] -= flows.share * level_[link];
  weight_[link] -= flows.share;
  std::vector<Held>& held = held_[link];
  held[flows.place] = held.back();
  flows_[held.back().flows].place = flows.place;
  held.pop_back();
  if (held.empty()) weight_[link] = 0;
  mark(link);
  mark(other);
}

uint32_t FairShare::add(uint32_t out, uint32_t in, double share) {
  auto id = static_cast<uint32_t>(flows_.size());
  if (free_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_.back();
    free_.pop_back();
  }
  flows_[id] = {out, in, 0, 0, share};
  ++count_[out];
  ++count_[in];
  ++added_;
  hold(id, position_[out] < position_[in] ? out : in);
  moved_.push_back(id);
  return id;
}

void FairShare::remove(uint32_t id) {
  release(id);
  for (const uint32_t l : {flows_[id].out, flows_[id].in}) {
    if (--count_[l] == 0) taken_[l] = 0;  // without rounding errors
  }
  flows_[id].share = 0;
  free_.push_back(id);
}

void FairShare::set_share(uint32_t id, double share) {
  Flows& flows = flows_[id];
  Held& held = held_[flows.holder][flows.place];
  const double more = share - flows.share;
  flows.share = held.share = share;
  weight_[flows.holder] += more;
  taken_[held.other] += more * level_[flows.holder];
  mark(flows.holder);
  mark(held.other);
}

/// Returns the level at which the link is full; below every level if flows that other links hold
/// take more than it has.
inline double FairShare::level_of(uint32_t link) const {
  const double left = capacity_[link] - taken_[link];
  if (!held_[link].empty()) return std::max(0.0, left / weight_[link]);
  return left < -1e-12 * capacity_[link] ? -kInfinity : kInfinity;
}

inline void FairShare::set_level(uint32_t link, double level) {
  const double more = level - level_[link];
  if (std::abs(more) <= 1e-14 * level && level < kInfinity) return;
  level_[link] = level;
  double* const taken = taken_.data();
  const Held* held = held_[link].data();
  const Held* const end = held + held_[link].size();
  for (; held != end; ++held) taken[held->other] += held->share * more;
}

/// Lets `link` hold back the flows on both links, which `from` held; returns whether there are any.
bool FairShare::take_over(uint32_t link, uint32_t from) {
  bool any = false;
  for (size_t i = held_[from].size(); i-- > 0;) {
    const Held held = held_[from][i];
    if (held.other != link) continue;
    release(held.flows);
    hold(held.flows, link);
    moved_.push_back(held.flows);
    any = true;
  }
  return any;
}

/// Moves the link at position k, whose level comes out below that of a link before it, in front of
/// that link; takes over the flows that both share. Returns its new position. Counts `budget` down.
size_t FairShare::move_forward(size_t k, size_t& budget) {
  const uint32_t link = order_[k];
  double level = level_of(link);
  for (; k > 0 && level * kTie < level_[order_[k - 1]] && budget > 0; --k) {
    if (take_over(link, order_[k - 1])) {
      level = level_of(link);
      --budget;
    }
    order_[k] = order_[k - 1];
    position_[order_[k]] = static_cast<uint32_t>(k);
  }
  order_[k] = link;
  position_[link] = static_cast<uint32_t>(k);
  seen_[link] = taken_[link];
  set_level(link, level < 0 ? kInfinity : level);
  return k;
}

/// Computes the levels of changed links in ascending order. A link whose level comes out below that
/// of a link before it moves in front of it; then the links behind it are computed again. Returns
/// false if this takes too long.
bool FairShare::relax() {
  size_t budget = 8 * order_.size();
  double before = first_changed_ == 0 ? 0 : level_[order_[first_changed_ - 1]];
  for (size_t k = first_changed_; k < order_.size(); ++k) {
    const uint32_t link = order_[k];
    const bool same = taken_[link] == seen_[link];
    const double level = same ? level_[link] : level_of(link);
    if (level * kTie < before || level < 0) {
      k = move_forward(k, budget);
      if (budget == 0) return false;
    } else if (!same) {
      seen_[link] = taken_[link];
      set_level(link, level);
    }
    before = level_[order_[k]];
  }
  return true;
}

/// Computes all levels by progressive filling: the rates of all flows grow together, each in
/// proportion to its weight; when a link is full, the rates of the flows on it stop growing.
void FairShare::fill() {
  start_filling();
  std::vector<uint32_t>& open = order_;  // not sorted where relax() gave up
  std::iota(open.begin(), open.end(), 0);
  full_.clear();
  // The level reached so far. It only grows: rounding must not give a link that fills later a lower
  // level than the links that filled before.
  for (double reached = 0;;) {
    std::erase_if(open, [&](uint32_t l) { return filling_[l].growing == 0; });
    if (open.empty()) break;
    double least = kInfinity;
    for (const uint32_t l : open) {
      level_[l] = (capacity_[l] - filling_[l].used) / filling_[l].weight;
      least = std::min(least, level_[l]);
    }
    reached = std::max(reached, least);
    for (const uint32_t l : open) {
      if (level_[l] > reached * kTie) continue;
      level_[l] = reached;
      const uint32_t first = filling_[l].first;
      for (uint32_t k = first; k < first + count_[l]; ++k) freeze(on_link_[k], l);
      full_.push_back(l);
    }
  }
  end_filling();
}

void FairShare::start_filling() {
  filling_.assign(held_.size(), {});
  uint32_t end = 0;
  for (uint32_t l = 0; l < held_.size(); ++l) {
    filling_[l].first = end;
    end += count_[l];
    held_[l].clear();
  }
  on_link_.resize(end);
  for (uint32_t id = 0; id < flows_.size(); ++id) {
    Flows& flows = flows_[id];
    if (flows.share == 0) continue;
    flows.holder = kNone;
    for (const uint32_t l : {flows.out, flows.in}) {
      Filling& filling = filling_[l];
      on_link_[filling.first + filling.growing++] = id;
      filling.weight += flows.share;
    }
  }
}

/// The rate of flows that still grow stops at the level of `link`.
void FairShare::freeze(uint32_t id, uint32_t link) {
  Flows& flows = flows_[id];
  if (flows.holder != kNone) return;
  flows.holder = link;
  for (const uint32_t l : {flows.out, flows.in}) {
    filling_[l].used += flows.share * level_[link];
    filling_[l].weight -= flows.share;
    --filling_[l].growing;
  }
}

void FairShare::end_filling() {
  std::fill(taken_.begin(), taken_.end(), 0);
  std::fill(weight_.begin(), weight_.end(), 0);
  moved_.clear();
  for (uint32_t id = 0; id < flows_.size(); ++id) {
    if (flows_[id].share == 0) continue;
    hold(id, flows_[id].holder);
    moved_.push_back(id);
  }
  order_.clear();
  for (const uint32_t l : full_) {
    if (!held_[l].empty()) order_.push_back(l);
  }
  for (uint32_t l = 0; l < held_.size(); ++l) {
    if (!held_[l].empty()) continue;
    level_[l] = kInfinity;
    order_.push_back(l);
  }
  for (uint32_t k = 0; k < order_.size(); ++k) position_[order_[k]] = k;
  seen_ = taken_;
}

void FairShare::write_levels(std::vector<double>& levels) const {
  // A level is infinite exactly where a link holds nothing.
  for (size_t l = 0; l < level_.size(); ++l) levels[l] = level_[l] < kInfinity ? level_[l] : 0;
}

void FairShare::settle(std::vector<uint32_t>& moved) {
  const size_t all = flows_.size() - free_.size();
  if (4 * added_ > all || !relax()) fill();
  added_ = 0;
  first_changed_ = order_.size();
  moved.clear();
  moved.swap(moved_);
}

}  // namespace moe
