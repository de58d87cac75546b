// Fields of JSON texts that other tools wrote, with errors that name file, line and field.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace moe {

/// Throws UserError where the text is no JSON object.
nlohmann::json json_object(std::string_view text, const std::string& where);
/// A whole number from 0. Throws UserError where it is missing or something else.
int64_t integer_field(const nlohmann::json& object, const char* field, const std::string& where);
/// The value in a message: its beginning; lists and objects within it as [...] and {...}.
std::string shown(const nlohmann::json& value);

}  // namespace moe
