// OpenBLAS, opened at run time so that its kernels can be chosen first: its own detection does not
// know every processor (version 0.3.21 takes a Sapphire Rapids for a Prescott, which is 5 to 10
// times slower). The memory that it needs per thread is reserved by blas_buffers.h.
#pragma once

#include <cblas.h>

namespace moe::kernels {

struct Blas {
  decltype(&::cblas_sgemm) sgemm;
  /// Takes the work space of one call; waits forever if there is not enough address space.
  void* (*take_buffer)(int);
  void (*give_buffer)(void*);  // gives the work space back, for the next call
  const char* version;         // "0.3.21"
  const char* core;            // "SkylakeX"
};

/// Opens OpenBLAS at the first call; each product runs on the caller's thread only. If the user has
/// set OPENBLAS_CORETYPE, it names the kernels; otherwise they are those for SkylakeX on a CPU with
/// AVX-512, those for Haswell on one with AVX2, and OpenBLAS's own choice on others. Throws
/// std::runtime_error when there is no OpenBLAS.
const Blas& blas();

/// Is held during each call of OpenBLAS, which ends the process when more calls run at once than
/// its table of work spaces has places for. Once more threads were announced to
/// reserve_blas_buffers() than may call at once, waits until fewer calls run; before that it costs
/// the reading of a flag.
class BlasCall {
 public:
  BlasCall();
  ~BlasCall();
  BlasCall(const BlasCall&) = delete;
  BlasCall& operator=(const BlasCall&) = delete;

 private:
  const bool counted_;
};

}  // namespace moe::kernels
