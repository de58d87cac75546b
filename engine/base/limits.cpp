#include "engine/base/limits.h"

#include "engine/base/errors.h"

namespace moe {

void fail_bytes(const std::string& what, double bytes) {
  throw user_error(
      "{} has {:.4g} bytes; at most 2^53 are allowed: make the model smaller, or divide it over "
      "more ranks",
      what, bytes);
}

void fail_time(const std::string& what, double ns) {
  throw user_error("{} takes {:.4g} s, which is beyond the clock: at most 104 days are allowed",
                   what, ns / kNsPerSecond);
}

}  // namespace moe
