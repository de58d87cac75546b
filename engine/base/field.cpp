#include "engine/base/field.h"

namespace moe {

std::string inlined_name(std::string_view pattern, std::string_view as) {
  std::string name(pattern);
  const size_t at = name.find("{}");
  if (at != std::string::npos) name.replace(at, 2, as);
  return name;
}

}  // namespace moe
