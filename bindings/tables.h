// The engine's tables (gates, passes, ops, fields, ...) as data, for the checks and documentation
// of the Lua library and for `moebench list`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace moe::lua {

/// Returns the table of this kind. "gates", "passes", "executors", "ops", ... are arrays of {name,
/// doc, ...}; "fields" is an array of the tables of fields of structs, each with its fields_json().
/// Throws UserError with the nearest valid name for an unknown kind.
nlohmann::json table_json(const std::string& kind);

}  // namespace moe::lua
