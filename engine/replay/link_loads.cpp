#include "engine/replay/link_loads.h"

#include <fmt/format.h>

#include <cmath>

namespace moe {

std::vector<LinkLoad> link_loads(const Wire& wire, const std::vector<LinkUse>& use) {
  std::vector<LinkLoad> loads;
  loads.reserve(use.size());
  for (const LinkUse& u : use) {
    const LinkName name = wire.name(u.link);
    loads.push_back({fmt::format("{} {}.{}", link_kind_name(name.kind), name.node, name.index),
                     std::llround(u.begin_ns), std::llround(u.end_ns), u.bytes_per_s,
                     wire.bytes_per_s(u.link)});
  }
  return loads;
}

}  // namespace moe
