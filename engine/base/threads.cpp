#include "engine/base/threads.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>

namespace moe {

void check_room_for_threads(int64_t n, const std::string& what) {
  constexpr size_t kAllocator = size_t{8} << 20;  // jemalloc: two blocks of 2 MiB, aligned to that
  pthread_attr_t attributes;
  size_t stack = 0;
  pthread_attr_init(&attributes);
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_destroy(&attributes);
  const size_t bytes = static_cast<size_t>(n) * (stack + kAllocator);
  if (bytes == 0) return;
  void* const room =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw run_error(
        "the {} threads for {} need {} MiB of address space, but this process cannot reserve it; "
        "raise its limit (ulimit -v)",
        n, what, bytes >> 20);
  }
  munmap(room, bytes);
}

}  // namespace moe
