#pragma once

#include <algorithm>
#include <tuple>

#include "engine/timeline/timeline.h"

namespace moe::test {

inline bool same_spans(const Timeline& a, const Timeline& b) {
  const auto key = [](const Span& s) {
    return std::tie(s.op, s.rank, s.lane, s.post, s.begin, s.end, s.bytes, s.chunk);
  };
  return std::equal(a.spans.begin(), a.spans.end(), b.spans.begin(), b.spans.end(),
                    [&](const Span& x, const Span& y) { return key(x) == key(y); });
}

}  // namespace moe::test
