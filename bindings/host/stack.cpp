#include "bindings/host/stack.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/base/errors.h"

namespace moe::lua {
namespace {

// Bytes of stack reserved for code without this check: planning, kernels, and making the error.
constexpr size_t kReserve = size_t{512} << 10;

// Returns the lowest address that the stack may reach in calls of Lua on this thread.
uintptr_t lowest_address() {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  size_t size = 0;
  MOE_CHECK(pthread_getattr_np(pthread_self(), &attributes) == 0,
            "pthread_getattr_np must return the bounds of this thread's stack, but it failed");
  pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<uintptr_t>(lowest) + std::min(kReserve, size / 2);
}

}  // namespace

void check_stack() {
  thread_local const uintptr_t lowest = lowest_address();
  // The frame's address is used, and not a variable's: sanitizers keep variables elsewhere.
  if (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) > lowest) return;
  throw UserError(
      "C stack overflow: calls are nested too deep through functions that call back, such as "
      "string.gsub, table.sort, coroutines and those of moe");
}

}  // namespace moe::lua
