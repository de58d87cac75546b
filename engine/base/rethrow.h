// Exceptions on their way from one thread or rank to another.
#pragma once

#include <exception>
#include <string>

namespace moe {

/// `error` again with "rank 1, step 3, op b1.gate: " before its message; the kind of error stays.
std::exception_ptr with_prefix(const std::string& prefix, std::exception_ptr error);
/// Requires: a std::exception.
std::string message_of(const std::exception_ptr& error);

}  // namespace moe
