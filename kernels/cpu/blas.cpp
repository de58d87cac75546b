#include "kernels/cpu/blas.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace moe::kernels {
namespace {

constexpr const char* kLibrary = "libopenblas.so.0";

template <class F>
F symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (!found) throw std::runtime_error(std::string(kLibrary) + " has no " + name);
  return reinterpret_cast<F>(found);
}

Blas open() {
  if (__builtin_cpu_supports("x86-64-v4")) {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  } else if (__builtin_cpu_supports("x86-64-v3")) {
    setenv("OPENBLAS_CORETYPE", "Haswell", 0);
  }
  setenv("OPENBLAS_NUM_THREADS", "1", 1);  // its workers would spin beside our ranks
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  symbol<void (*)(int)>(library, "openblas_set_num_threads")(1);
  static std::string version = symbol<char* (*)()>(library, "openblas_get_config")();
  version.erase(0, version.find(' ') + 1);  // "OpenBLAS 0.3.21 NO_LAPACK DYNAMIC_ARCH ..."
  version.erase(version.find(' '));
  return {symbol<decltype(Blas::sgemm)>(library, "cblas_sgemm"), version.c_str(),
          symbol<char* (*)()>(library, "openblas_get_corename")()};
}

}  // namespace

const Blas& blas() {
  static const Blas opened = open();
  return opened;
}

}  // namespace moe::kernels
