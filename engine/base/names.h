// Names as users type them: the nearest valid name, and the one error for an unknown one.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/base/errors.h"

namespace moe {

/// The nearest of `names` by edit distance (a swap of neighbours counts as one), or "" when none is
/// within a third of the length (at least 1). Names of three letters or fewer must
/// begin alike, and names that differ in digits alone are not near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

/// "unknown gate 'swich', have: bpr, hash, switch. Did you mean 'switch'?"
std::string unknown_name(std::string_view what, std::string_view name,
                         std::vector<std::string> names);

/// Throws InternalError unless each row of a table has a name of its own and a doc. rows: with
/// members name and doc, texts or pointers to them.
template <class Rows>
void check_rows(std::string_view table, const Rows& rows) {
  const auto text = [](const auto& value) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(value)>>) {
      return std::string_view(value != nullptr ? value : "");
    } else {
      return std::string_view(value);
    }
  };
  std::set<std::string_view> names;
  for (const auto& row : rows) {
    MOE_CHECK(!text(row.name).empty(), "a row of the table of {} has no name", table);
    MOE_CHECK(names.insert(text(row.name)).second, "two rows of the table of {} are named '{}'",
              table, text(row.name));
    MOE_CHECK(!text(row.doc).empty(), "'{}' of the table of {} has no doc", text(row.name), table);
  }
}

/// An enumeration whose values count from 0 and whose names stand beside it, by value:
///   constexpr std::array<const char*, 2> names_of(Color) { return {"red", "green"}; }
template <class E>
concept HasNames = requires {
  names_of(E{}).size();
};

template <HasNames E>
constexpr const char* name_of(E value) {
  return names_of(value)[static_cast<size_t>(value)];
}
/// The value of that name. Throws UserError with the nearest name: "unknown <what> ...".
template <HasNames E>
E value_named(std::string_view what, std::string_view name) {
  constexpr auto kNames = names_of(E{});
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<E>(i);
  }
  throw UserError(unknown_name(what, name, {kNames.begin(), kNames.end()}));
}

}  // namespace moe
