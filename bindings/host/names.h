// Converts names that recipes write to values of engine enumerations; unknown names are errors with
// the nearest valid name. Enumerations with a table of names are read in field_json.h, not here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/graph/graph.h"

namespace moe::lua {

/// Returns the value of E in [0, count) whose name is `text`; name_of gives the names. Throws
/// UserError with the nearest name if there is no such value; `what` names the enumeration there.
template <class E>
E parse_enum(std::string_view what, std::string_view text, int count, const char* (*name_of)(E)) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    if (text == name_of(static_cast<E>(i))) return static_cast<E>(i);
    names.emplace_back(name_of(static_cast<E>(i)));
  }
  throw UserError(unknown_name(what, text, names));
}

inline Phase parse_phase(std::string_view text) {
  return parse_enum<Phase>("phase", text, static_cast<int>(Phase::kUpdate) + 1, phase_name);
}
inline Segment parse_segment(std::string_view text) {
  return parse_enum<Segment>("seg", text, static_cast<int>(Segment::kUpdate) + 1, segment_name);
}

}  // namespace moe::lua
