#include "engine/routing/formats/json_fields.h"

#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/files.h"

namespace moe {
namespace {

using nlohmann::json;

/// Returns the value as text, but only "[...]" for a list and "{...}" for an object.
std::string without_content(const json& value) {
  if (!value.is_structured()) return value.dump();
  return value.is_array() ? "[...]" : "{...}";
}

}  // namespace

json json_object(std::string_view text, const std::string& where) {
  check_json_size(text, where);
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) throw user_error("{}: the text is not a JSON object", where);
  return value;
}

int64_t integer_field(const json& object, const char* field, const std::string& where) {
  const auto at = object.find(field);
  if (at == object.end()) throw user_error("{}: field '{}' is missing", where, field);
  if (!at->is_number_integer() || at->get<int64_t>() < 0) {
    throw user_error("{}: field '{}' is {}; allowed: a whole number from 0", where, field,
                     shown(*at));
  }
  return at->get<int64_t>();
}

std::string shown(const json& value) {
  constexpr size_t kMostEntries = 8, kMostBytes = 60;
  if (value.is_object()) return without_content(value);
  std::string text;
  if (value.is_array()) {
    for (size_t i = 0; i < value.size() && i < kMostEntries; ++i) {
      text += fmt::format("{}{}", i > 0 ? "," : "", without_content(value[i]));
    }
    text = fmt::format("[{}{}]", text, value.size() > kMostEntries ? ",..." : "");
  } else {
    text = value.dump();
  }
  if (text.size() <= kMostBytes) return text;
  size_t end = kMostBytes;
  // Does not cut inside a UTF-8 character.
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

}  // namespace moe
