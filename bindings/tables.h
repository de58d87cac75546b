// The engine's tables as data, for the Lua library and `moebench list`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace moe::lua {

/// kind: "gates", "passes", "executors", "ops", ...: an array of {name, doc, ...}; "fields": the
/// tables of fields of structs, each with its fields_json(). Throws UserError with the nearest
/// kind.
nlohmann::json table_json(const std::string& kind);

}  // namespace moe::lua
