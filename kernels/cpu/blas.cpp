#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/blas_buffers.h"

namespace moe::kernels {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

template <class F>
F symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found)
    throw std::runtime_error(std::string("the OpenBLAS library ") + kLibrary +
                             " lacks the function " + name + ", which the CPU kernels need");
  return reinterpret_cast<F>(found);
}

Blas open() {
  if (__builtin_cpu_supports("x86-64-v4")) {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  } else if (__builtin_cpu_supports("x86-64-v3")) {
    setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  }
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // its own threads would compete with the ranks for cores
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw std::runtime_error(std::string("the CPU kernels need OpenBLAS: ") + dlerror());
  symbol<void (*)(int)>(library, "openblas_set_num_threads")(1);
  static std::string version = symbol<char* (*)()>(library, "openblas_get_config")();
  version.erase(0, version.find(' ') + 1);  // "OpenBLAS 0.3.21 NO_LAPACK DYNAMIC_ARCH ..."
  version.erase(version.find(' '));
  return {symbol<decltype(Blas::sgemm)>(library, "cblas_sgemm"),
          symbol<decltype(Blas::take_buffer)>(library, "blas_memory_alloc"),
          symbol<decltype(Blas::give_buffer)>(library, "blas_memory_free"), version.c_str(),
          symbol<char* (*)()>(library, "openblas_get_corename")()};
}

// The table of work spaces has 128 places in Debian's OpenBLAS and at least 50 in others
// (driver/others/memory.c, NUM_BUFFERS); what it adds beyond is not safe between threads. As many
// calls at once as there are cores keep all cores busy.
int64_t most_calls() {
  static const auto most = std::clamp<int64_t>(std::thread::hardware_concurrency(), 48, 128);
  return most;
}

std::atomic<bool> counts_calls{false};

sem_t* free_calls() {
  static sem_t* const free = [] {
    static sem_t made;
    sem_init(&made, 0, static_cast<unsigned>(most_calls()));
    return &made;
  }();
  return free;
}

}  // namespace

const Blas& blas() {
  static const Blas opened = open();
  return opened;
}

BlasCall::BlasCall() : counted_(counts_calls.load(std::memory_order_relaxed)) {
  while (counted_ && sem_wait(free_calls()) != 0) continue;  // interrupted by a signal
}

BlasCall::~BlasCall() {
  if (counted_) sem_post(free_calls());
}

bool reserve_blas_buffers(int64_t num_threads) {
  // Address space per buffer: 128 MiB, and some bytes for its bookkeeping.
  constexpr size_t kBytes = size_t{130} << 20;
  static std::mutex mutex;
  static int64_t reserved = 0;
  const std::lock_guard lock(mutex);
  if (num_threads > most_calls()) counts_calls = true;
  num_threads = std::min(num_threads, most_calls());
  std::vector<void*> taken;
  bool enough = true;
  while (enough && static_cast<int64_t>(taken.size()) < num_threads) {
    if (static_cast<int64_t>(taken.size()) >= reserved) {
      void* const room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      enough = room != MAP_FAILED;
      if (enough) munmap(room, kBytes);
    }
    if (enough) taken.push_back(blas().take_buffer(0));
  }
  for (void* buffer : taken) blas().give_buffer(buffer);
  reserved = std::max(reserved, static_cast<int64_t>(taken.size()));
  return enough;
}

}  // namespace moe::kernels
