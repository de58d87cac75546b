// Reads fields of JSON texts that other tools wrote. Errors name the file, line and field, and show
// at most the beginning of a value. The formats themselves are in trace_formats.h.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace moe {

/// Returns the parsed text. Throws UserError when it is not a JSON object.
nlohmann::json json_object(std::string_view text, const std::string& where);
/// Returns the field, a whole number from 0. Throws UserError when it is missing or invalid.
int64_t integer_field(const nlohmann::json& object, const char* field, const std::string& where);
/// Returns the beginning of a value, for messages. Objects, and lists inside a list, appear only as
/// {...} and [...].
std::string shown(const nlohmann::json& value);

}  // namespace moe
