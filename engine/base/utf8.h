// Strings from outside (recipes, files, messages of libraries): whether they are UTF-8, and how to
// print them without effects on a terminal. Whether JSON or Lua is well-formed is not checked here.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace moe {

/// Returns the index of the first byte that does not belong to valid UTF-8 (RFC 3629: no overlong
/// forms, no surrogates, no code points above U+10FFFF), or nullopt for valid UTF-8.
std::optional<size_t> first_invalid_byte(std::string_view text);

/// Returns `text` with everything that would act on a terminal written as an escape such as \x1b or
/// \u202e: control characters (C0 except newline and tab, DEL, C1), the controls of writing
/// direction (which show a text in another order than it has), line and paragraph separators, and
/// bytes that are not UTF-8. The result is UTF-8.
std::string printable(std::string_view text);

/// Returns the text, or of one with more than 8,000 bytes its begin and its end, and between them
/// how many bytes are left out: for messages, which may quote what a recipe made.
std::string shortened(std::string text);

}  // namespace moe
