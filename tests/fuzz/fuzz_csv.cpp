// CSVs of layer,expert.
#include "engine/routing/formats/trace_formats.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, fuzz::mutate_text);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  return fuzz::loaded([&] {
    const Trace trace = trace_of_csv({"fuzz.csv", text}, 0, 2);
    read_trace(trace_bytes(trace), "fuzz.trace");
    csv_of_trace(trace);
  });
}
