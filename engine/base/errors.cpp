#include "engine/base/errors.h"

namespace moe {

void fail_check(const char* file, int line, const char* expression, const std::string& detail) {
  throw InternalError(fmt::format("{}:{}: check failed: {}{}{}", file, line, expression,
                                  detail.empty() ? "" : ": ", detail));
}

}  // namespace moe
