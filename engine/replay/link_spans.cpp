#include "engine/replay/link_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moe {
namespace {

/// Divides the use of one link into `count` equal intervals, each with the mean rate over the
/// interval; idle intervals are omitted.
std::vector<LinkUse> averaged(const std::vector<LinkUse>& use, size_t count) {
  const double from = use.front().begin_ns;
  const double width = (use.back().end_ns - from) / static_cast<double>(count);
  const auto border = [&](size_t i) { return from + static_cast<double>(i) * width; };
  std::vector<double> moved(count);  // bytes per second times ns
  for (const LinkUse& u : use) {
    for (auto i = static_cast<size_t>((u.begin_ns - from) / width);
         i < count && border(i) < u.end_ns; ++i) {
      const double begin = std::max(u.begin_ns, border(i)), end = std::min(u.end_ns, border(i + 1));
      moved[i] += u.bytes_per_s * std::max(end - begin, 0.0);
    }
  }
  std::vector<LinkUse> mean;
  for (size_t i = 0; i < count; ++i) {
    if (moved[i] > 0) mean.push_back({use[0].link, border(i), border(i + 1), moved[i] / width});
  }
  return mean;
}

}  // namespace

std::vector<LinkSpan> link_spans(const Wire& wire, const std::vector<LinkUse>& use, size_t most) {
  std::vector<std::vector<LinkUse>> by_link(wire.num_links());
  for (const LinkUse& u : use) by_link[u.link].push_back(u);
  std::vector<LinkSpan> spans;
  for (std::vector<LinkUse>& link : by_link) {
    if (link.size() > most) link = averaged(link, most);
    for (const LinkUse& u : link) {
      const LinkName name = wire.name(u.link);
      spans.push_back({fmt::format("{} {}.{}", name_of(name.kind), name.node, name.index),
                       std::llround(u.begin_ns), std::llround(u.end_ns), u.bytes_per_s,
                       wire.bytes_per_s(u.link)});
    }
  }
  return spans;
}

}  // namespace moe
