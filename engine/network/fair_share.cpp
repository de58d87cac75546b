#include "engine/network/fair_share.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

namespace moe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Links that become full at the same moment except for rounding are handled in one iteration.
constexpr double kTie = 1 + 1e-13;

}  // namespace

void FairShare::set_groups(const std::vector<FlowGroup>& groups, size_t num_links) {
  links_.resize(num_links);
  per_weight_.resize(num_links);
  frozen_.resize(groups.size());
  first_.assign(num_links + 1, 0);
  for (const FlowGroup& g : groups) {
    ++first_[g.out];
    ++first_[g.in];
  }
  uint32_t end = 0;
  for (uint32_t& first : first_) first = end += first;
  on_link_.resize(end);
  levels_.clear();
  for (uint32_t i = 0; i < groups.size(); ++i) {
    on_link_[--first_[groups[i].out]] = i;
    on_link_[--first_[groups[i].in]] = i;
    levels_.push_back(groups[i].level);
  }
  std::sort(levels_.begin(), levels_.end(), std::greater<>());
  levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
}

void FairShare::start_level(const std::vector<FlowGroup>& groups, int64_t level) {
  for (Link& link : links_) {
    link.weight = 0;
    link.waiting = 0;
  }
  for (const FlowGroup& g : groups) {
    if (g.level != level) continue;
    for (const uint32_t l : {g.out, g.in}) {
      Link& link = links_[l];
      link.weight += g.weight * g.count;
      ++link.waiting;
      if (link.owners == 0 || link.last_owner != g.owner) ++link.owners;
      link.last_owner = g.owner;
    }
  }
}

void FairShare::freeze(FlowGroup& group, double per_weight) {
  group.rate = group.weight * per_weight;
  const double all_weight = group.weight * group.count;
  for (const uint32_t l : {group.out, group.in}) {
    Link& link = links_[l];
    link.used += all_weight * per_weight;
    link.weight -= all_weight;
    --link.waiting;
  }
}

void FairShare::fill_level(std::vector<FlowGroup>& groups, int64_t level, const double* capacity) {
  start_level(groups, level);
  open_.resize(links_.size());
  std::iota(open_.begin(), open_.end(), 0);
  // The rate per weight reached so far. It only grows: rounding must not give a link that fills
  // later a lower rate than the links that filled before.
  for (double reached = 0;;) {
    double least = kInfinity;
    size_t num_open = 0;
    for (const uint32_t l : open_) {
      const Link& link = links_[l];
      if (link.waiting == 0) continue;
      open_[num_open++] = l;
      const double rate = link.owners > 1 ? capacity[l] * efficiency_ : capacity[l];
      per_weight_[l] = (rate - link.used) / link.weight;
      least = std::min(least, per_weight_[l]);
    }
    open_.resize(num_open);
    if (num_open == 0) return;
    reached = std::max(reached, least);
    for (const uint32_t l : open_) {
      if (per_weight_[l] > reached * kTie) continue;
      for (uint32_t k = first_[l]; k < first_[l + 1]; ++k) {
        FlowGroup& group = groups[on_link_[k]];
        if (frozen_[on_link_[k]] || group.level != level) continue;
        frozen_[on_link_[k]] = 1;
        freeze(group, reached);
      }
    }
  }
}

void FairShare::fill(std::vector<FlowGroup>& groups, const double* capacity) {
  std::fill(frozen_.begin(), frozen_.end(), 0);
  std::fill(links_.begin(), links_.end(), Link{});
  for (const int64_t level : levels_) fill_level(groups, level, capacity);
}

}  // namespace moe
