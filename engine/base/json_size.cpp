#include "engine/base/json_size.h"

#include "engine/base/errors.h"

namespace moe {

void check_json_size(std::string_view text, const std::string& what) {
  // Of nlohmann::json and libstdc++ on 64 bits: an element of a list that grows, 16 bytes in the old
  // and up to 32 in the new memory; an empty list or object; a member's node with its name.
  constexpr size_t kElement = 48, kList = 96, kMember = 96, kMost = size_t{512} << 20;
  size_t bytes = text.size();
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted)
      i += c == '\\' ? 1 : 0;
    else if (c == ',')
      bytes += kElement;
    else if (c == ':')
      bytes += kMember;
    else if (c == '{' || c == '[')
      bytes += kList;
  }
  if (bytes <= kMost) return;
  throw user_error(
      "{}: the values of its JSON text would take about {} MiB of memory; allowed: {} MiB", what,
      bytes >> 20, kMost >> 20);
}

}  // namespace moe
