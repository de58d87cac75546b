// Exceptions that are passed from one thread or rank to another. The kind of error and its message
// are kept. Kinds of errors: errors.h.
#pragma once

#include <exception>
#include <string>

namespace moe {

/// Returns `error` with `prefix` ("rank 1, step 3, op b1.gate: ") before its message. The kind of
/// error stays the same; an exception of no project kind becomes a RunError.
std::exception_ptr with_prefix(const std::string& prefix, std::exception_ptr error);
/// Returns the message of `error`. Requires: `error` holds a std::exception.
std::string message_of(const std::exception_ptr& error);

}  // namespace moe
