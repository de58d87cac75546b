// Names as users type them: the nearest valid name, and the one error for an unknown one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moe {

/// The nearest of `names` by edit distance (a swap of neighbours counts as one), or "" when none is
/// within a third of the length (at least 1). Names of three letters or fewer must
/// begin alike, and names that differ in digits alone are not near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

/// "unknown gate 'swich', have: bpr, hash, switch. Did you mean 'switch'?"
std::string unknown_name(std::string_view what, std::string_view name,
                         std::vector<std::string> names);

}  // namespace moe
