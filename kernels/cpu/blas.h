// OpenBLAS, opened at run time so that its kernels can be chosen first: its own detection does not
// know every processor (0.3.21 takes a Sapphire Rapids for a Prescott, 5 to 10 times slower).
#pragma once

#include <cblas.h>

namespace moe::kernels {

struct Blas {
  decltype(&::cblas_sgemm) sgemm;
  void* (*take_buffer)(int);   // of a call, waits for ever where there is none
  void (*give_buffer)(void*);  // back; it is kept for the next call
  const char* version;         // "0.3.21"
  const char* core;            // "SkylakeX"
};

/// Opened at the first call, for one thread a caller. OPENBLAS_CORETYPE is the user's where it is
/// set;
/// otherwise SkylakeX with AVX-512, Haswell with AVX2, and OpenBLAS's own choice below that.
/// Throws: std::runtime_error when there is no OpenBLAS.
const Blas& blas();

}  // namespace moe::kernels
