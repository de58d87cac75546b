// What an error says that a test expects.
#pragma once

#include <string>

namespace moe::test {

/// The message of the error of type E that `call` throws, or "" when it throws none.
template <class E, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

}  // namespace moe::test
