#include "engine/pipeline/likeness.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace moe::pipeline {
namespace {

/// Per action of an entry: kind, stage, whether the first of them, whether the last of the stage,
/// and whether it is of the micro-batch of the action before.
using Kind = std::vector<std::tuple<Work, int32_t, bool, bool, bool>>;

std::vector<Kind> kinds_of(const Row& row) {
  std::map<int32_t, size_t> last;  // by stage
  for (size_t i = 0; i < row.size(); ++i) last[row[i].stage] = i;
  std::set<std::pair<Work, int32_t>> seen;
  std::vector<Kind> kinds;
  for (size_t i = 0; i < row.size(); ++i) {
    const Action& a = row[i];
    const bool first = seen.emplace(a.work, a.stage).second;
    const bool follows = i > 0 && row[i - 1].stage == a.stage && row[i - 1].micro == a.micro;
    if (i == 0 || !row[i - 1].beside) kinds.emplace_back();
    kinds.back().emplace_back(a.work, a.stage, first, last.at(a.stage) == i, follows);
  }
  return kinds;
}

/// Returns how many entries from a[i] and b[j] on are alike, in steps of `by`.
int32_t run(const std::vector<Kind>& a, int64_t i, const std::vector<Kind>& b, int64_t j,
            int64_t by) {
  int32_t n = 0;
  while (n < Like::kReach) {
    i += by, j += by;
    const bool end_a = i < 0 || i == std::ssize(a), end_b = j < 0 || j == std::ssize(b);
    if (end_a && end_b) return Like::kReach;
    if (end_a || end_b || a[static_cast<size_t>(i)] != b[static_cast<size_t>(j)]) break;
    ++n;
  }
  return n;
}

}  // namespace

std::vector<std::vector<Like>> alike(const std::vector<Row>& few, const std::vector<Row>& many) {
  std::vector<std::vector<Like>> all(many.size());
  for (size_t rank = 0; rank < many.size(); ++rank) {
    const std::vector<Kind> a = kinds_of(few[rank]), b = kinds_of(many[rank]);
    for (int64_t j = 0; j < std::ssize(b); ++j) {
      Like& best = all[rank].emplace_back();
      int32_t most = -1;
      for (int64_t i = 0; i < std::ssize(a); ++i) {
        if (a[static_cast<size_t>(i)] != b[static_cast<size_t>(j)]) continue;
        const int32_t before = run(a, i, b, j, -1), behind = run(a, i, b, j, 1);
        const int32_t reach = std::min(before, behind);
        if (std::pair(reach, before + behind) <= std::pair(best.reach, most)) continue;
        best = {static_cast<int32_t>(i), reach};
        most = before + behind;
      }
    }
  }
  return all;
}

}  // namespace moe::pipeline
