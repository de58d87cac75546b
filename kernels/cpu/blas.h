// OpenBLAS, opened at run time so that its kernels can be chosen first: its own detection does not
// know every processor (version 0.3.21 takes a Sapphire Rapids for a Prescott, which is 5 to 10
// times slower). The memory that it needs per thread is in blas_buffers.h.
#pragma once

#include <cblas.h>

namespace moe::kernels {

struct Blas {
  decltype(&::cblas_sgemm) sgemm;
  /// Takes the work space of one call; waits forever where memory is missing.
  void* (*take_buffer)(int);
  void (*give_buffer)(void*);  // gives the work space back, for the next call
  const char* version;         // "0.3.21"
  const char* core;            // "SkylakeX"
};

/// Opens OpenBLAS at the first call; each product runs on the caller's thread only. If the user has
/// set OPENBLAS_CORETYPE, it decides the kernels; else they are SkylakeX with AVX-512, Haswell with
/// AVX2, else OpenBLAS's choice. Throws std::runtime_error when there is no OpenBLAS.
const Blas& blas();

}  // namespace moe::kernels
