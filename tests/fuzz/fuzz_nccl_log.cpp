// Logs of nccl-tests.
#include "engine/cost/nccl_log.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, fuzz::mutate_text);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz::loaded([&] {
    parse_nccl_log({reinterpret_cast<const char*>(data), size}, "fuzz.log");
  });
}
