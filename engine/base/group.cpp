#include "engine/base/group.h"

#include "engine/base/errors.h"

namespace moe {

Group resolve(Group group, int64_t num_ranks, std::string_view what) {
  if (group.size == 0 && group.stride == 1) group.size = num_ranks;
  const auto fits = [num_ranks](int64_t n) { return n >= 1 && n <= num_ranks; };
  if (!fits(group.size) || !fits(group.stride) || num_ranks % (group.size * group.stride) != 0) {
    throw user_error("{}: group = {}, stride = {}: group * stride must divide the {} ranks", what,
                     group.size, group.stride, num_ranks);
  }
  return group;
}

void check(const Round& round, const Group& group, std::string_view what) {
  if (round.of < 1 || group.size % round.of != 0) {
    throw user_error("{}: rounds = {}: must divide the {} ranks of the group", what, round.of,
                     group.size);
  }
  if (round.number < 0 || round.number >= round.of) {
    throw user_error("{}: round = {}: 0 to {} is allowed", what, round.number, round.of - 1);
  }
}

}  // namespace moe
