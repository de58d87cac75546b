#include "engine/base/group.h"

#include "engine/base/errors.h"

namespace moe {

Group resolve(Group group, int64_t num_ranks, std::string_view what) {
  if (group.size == 0 && group.stride == 1) group.size = num_ranks;
  const auto fits = [num_ranks](int64_t n) { return n >= 1 && n <= num_ranks; };
  if (!fits(group.size) || !fits(group.stride) || num_ranks % (group.size * group.stride) != 0) {
    throw user_error("{}: group = {}, stride = {}: their product must divide the {} ranks", what,
                     group.size, group.stride, num_ranks);
  }
  return group;
}

}  // namespace moe
