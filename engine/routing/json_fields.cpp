#include "engine/routing/json_fields.h"

#include <nlohmann/json.hpp>

#include "engine/base/errors.h"

namespace moe {

nlohmann::json json_object(std::string_view text, const std::string& where) {
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (!value.is_object()) throw user_error("{}: is no JSON object", where);
  return value;
}

int64_t whole_field(const nlohmann::json& object, const char* field, const std::string& where) {
  const auto at = object.find(field);
  if (at == object.end()) throw user_error("{}: field '{}' is missing", where, field);
  if (!at->is_number_integer() || at->get<int64_t>() < 0) {
    throw user_error("{}: field '{}' is {}; allowed: a whole number from 0", where, field,
                     at->dump());
  }
  return at->get<int64_t>();
}

}  // namespace moe
