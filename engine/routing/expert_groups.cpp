#include "engine/routing/expert_groups.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/base/errors.h"

namespace moe {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

float score_of(std::span<const float> group, GroupScore rule) {
  float best = kNone, second = kNone;
  for (const float score : group) {
    if (score > best) {
      second = best;
      best = score;
    } else if (score > second) {
      second = score;
    }
  }
  return rule == GroupScore::kMax ? best : best + second;
}

}  // namespace

void check(const ExpertGroups& g, int64_t experts, int64_t k, std::string_view who) {
  if (g.groups < 1 || experts % g.groups != 0) {
    throw user_error("{} 'groups' = {}, allowed: a divisor of the {} experts", who, g.groups,
                     experts);
  }
  if (g.top < 1 || g.top > g.groups) {
    throw user_error("{} 'top_groups' = {}, allowed: 1 to 'groups' = {}", who, g.top, g.groups);
  }
  const int64_t size = experts / g.groups;
  if (k > g.top * size) {
    throw user_error("{} 'top_groups' = {}, allowed: as many groups of {} experts as have k = {}",
                     who, g.top, size, k);
  }
  if (g.score == GroupScore::kTop2 && size < 2) {
    throw user_error("{} 'group_score' = 'top2', allowed: for groups of 2 experts or more", who);
  }
}

void limit_to_groups(const ExpertGroups& groups, std::span<float> scores, int64_t experts) {
  if (!groups.limits()) return;
  const auto count = static_cast<size_t>(groups.groups);
  const auto size = static_cast<size_t>(experts) / count;
  std::vector<float> group_scores(count);
  std::vector<size_t> order(count);
  for (; !scores.empty(); scores = scores.subspan(count * size)) {
    for (size_t g = 0; g < count; ++g) {
      group_scores[g] = score_of(scores.subspan(g * size, size), groups.score);
    }
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return group_scores[a] > group_scores[b]; });
    for (auto g = order.begin() + groups.top; g != order.end(); ++g) {
      for (float& score : scores.subspan(*g * size, size)) {
        if (score == score) score = kNone;
      }
    }
  }
}

}  // namespace moe
