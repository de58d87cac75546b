// How much memory the values of a JSON text take, known before they are made: a few bytes of text can
// become a hundred times as many.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace moe {

/// Throws UserError, which begins with `what`, if the values of the text would take more than 512
/// MiB as nlohmann::json has them (as much as a recipe may use). The text need not be JSON.
void check_json_size(std::string_view text, const std::string& what);

}  // namespace moe
