// The three kinds of errors of the project, as exceptions with a formatted message. UserError: what
// the user gave is wrong; the message names the field, the value and what is allowed.
// InternalError: a bug of this project; carries file and line, and is thrown by MOE_CHECK.
// RunError: the input was fine but a run failed (illegal schedule, lost rank, deadline, NaN).
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace moe {

class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

class RunError : public std::runtime_error {
 public:
  explicit RunError(const std::string& message) : std::runtime_error(message) {}
};

class InternalError : public std::logic_error {
 public:
  explicit InternalError(const std::string& message) : std::logic_error(message) {}
};

/// Returns a UserError with a formatted message. Example:
///   throw user_error("model.heads: {} does not divide hidden = {}", heads, hidden);
template <class... Args>
[[nodiscard]] UserError user_error(fmt::format_string<Args...> f, Args&&... args) {
  return UserError(fmt::format(f, std::forward<Args>(args)...));
}

template <class... Args>
[[nodiscard]] RunError run_error(fmt::format_string<Args...> f, Args&&... args) {
  return RunError(fmt::format(f, std::forward<Args>(args)...));
}

[[noreturn]] void fail_check(const char* file, int line, const char* expression,
                             const std::string& detail);

}  // namespace moe

/// Throws InternalError unless `condition` holds. It is for invariants that no user input may
/// break.
/// Example: MOE_CHECK(i < n, "op {} of {}", i, n)
#define MOE_CHECK(condition, ...)                                                       \
  do {                                                                                  \
    if (!(condition))                                                                   \
      ::moe::fail_check(__FILE__, __LINE__, #condition, ::moe::detail_of(__VA_ARGS__)); \
  } while (0)

namespace moe {
inline std::string detail_of() {
  return {};
}
template <class... Args>
std::string detail_of(fmt::format_string<Args...> f, Args&&... args) {
  return fmt::format(f, std::forward<Args>(args)...);
}
}  // namespace moe
