// Groups of experts of which a token may choose from a few only, so that its experts are on few
// devices (DeepSeek-V2, arXiv 2405.04434, section 2.1.3; DeepSeek-V3, arXiv 2412.19437, section
// 2.1.2). Any gate is limited by what it is given: the scores of other experts are -infinity, and
// no function of primitives.h ranks these.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/field.h"

namespace moe {

/// What of a token's scores in a group makes the group's score: the best one (DeepSeek-V2), or the
/// sum of the two best (DeepSeek-V3).
enum class GroupScore : uint8_t { kMax, kTop2 };
constexpr std::array<const char*, 2> names_of(GroupScore) {
  return {"max", "top2"};
}

/// Experts in `groups` groups of as many neighbours. A token chooses experts of its `top` groups of
/// the best score; of equal groups the lower one is better.
struct ExpertGroups {
  int64_t groups = 1;
  int64_t top = 1;
  GroupScore score = GroupScore::kMax;

  bool limits() const { return top < groups; }
};
constexpr auto fields_of(const ExpertGroups*) {
  return field_table<ExpertGroups>(
      field("groups", &ExpertGroups::groups,
            "number of groups of neighbouring experts, of which a token chooses from few")
          .from(1, 1e6),
      field("top_groups", &ExpertGroups::top, "number of groups from which a token chooses")
          .from(1, 1e6),
      field("group_score", &ExpertGroups::score,
            "by what groups are chosen: their best score, or the sum of their two best"));
}

/// Throws UserError, which begins with `who`, unless the groups divide the experts and `top` groups
/// have at least k of them.
void check(const ExpertGroups& groups, int64_t experts, int64_t k, std::string_view who);

/// Sets the scores [tokens, experts] of experts that their token cannot choose to -infinity; NaN
/// stays. Requires: check() passed.
void limit_to_groups(const ExpertGroups& groups, std::span<float> scores, int64_t experts);

}  // namespace moe
