// Names as users type them: the nearest valid name for a misspelt one, the error message for an
// unknown name, and the names of enumerations. Names of struct fields are in field.h.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/base/errors.h"

namespace moe {

/// Returns the nearest of `names` by edit distance (a swap of neighbours is one edit), or "" when
/// the distance is above a third of the length of `name` (at least 1). Two names of up to three
/// letters must begin with the same letter, and names that differ only in digits never match.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

/// Returns the message for an unknown name:
/// "unknown gate 'swich', have: bpr, hash, switch. Did you mean 'switch'?"
std::string unknown_name(std::string_view what, std::string_view name,
                         std::vector<std::string> names);

/// Throws InternalError unless each entry of a table has a unique name and a doc. `rows`: entries
/// with members name and doc, as strings or pointers to strings.
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
    MOE_CHECK(!text(row.name).empty(), "an entry of the table of {} has no name", table);
    MOE_CHECK(names.insert(text(row.name)).second, "two entries of the table of {} are named '{}'",
              table, text(row.name));
    MOE_CHECK(!text(row.doc).empty(), "entry '{}' of the table of {} has no doc", text(row.name),
              table);
  }
}

/// An enumeration whose values count from 0 and which has a function names_of() next to it that
/// returns the names in the order of the values:
///   constexpr std::array<const char*, 2> names_of(Color) { return {"red", "green"}; }
template <class E>
concept HasNames = requires {
  names_of(E{}).size();
};

template <HasNames E>
constexpr const char* name_of(E value) {
  return names_of(value)[static_cast<size_t>(value)];
}
/// Returns the value with that name; nullopt if there is none.
template <HasNames E>
std::optional<E> find_named(std::string_view name) {
  constexpr auto kNames = names_of(E{});
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<E>(i);
  }
  return std::nullopt;
}
/// Returns the value with that name. Throws UserError "unknown <what> ..." with the nearest name.
template <HasNames E>
E value_named(std::string_view what, std::string_view name) {
  if (const auto value = find_named<E>(name)) return *value;
  constexpr auto kNames = names_of(E{});
  throw UserError(unknown_name(what, name, {kNames.begin(), kNames.end()}));
}

}  // namespace moe
