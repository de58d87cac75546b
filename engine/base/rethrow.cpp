#include "engine/base/rethrow.h"

#include "engine/base/errors.h"

namespace moe {

std::exception_ptr with_prefix(const std::string& prefix, std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const UserError& e) {
    return std::make_exception_ptr(UserError(prefix + e.what()));
  } catch (const InternalError& e) {
    return std::make_exception_ptr(InternalError(prefix + e.what()));
  } catch (const std::exception& e) {
    return std::make_exception_ptr(RunError(prefix + e.what()));
  }
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace moe
