// Texts of others: whether they are UTF-8, and what of them a terminal may see.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace moe {

/// Where the first byte stands that is not UTF-8 (RFC 3629: no overlong forms, no surrogates, no
/// numbers above U+10FFFF); none in a text that is UTF-8.
std::optional<size_t> first_invalid_byte(std::string_view text);

/// The text without what would act on a terminal: control characters (C0 but for newline and tab,
/// DEL, C1), the controls of writing direction (which show a text in another order than it has) and
/// bytes that are not UTF-8 become \x1b or \u202e. The result is UTF-8.
std::string printable(std::string_view text);

}  // namespace moe
