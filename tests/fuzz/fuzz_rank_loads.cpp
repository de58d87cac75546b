// CSVs of the rows that each rank computes.
#include "engine/routing/formats/trace_formats.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

constexpr std::string_view kSample =
    "method,iter,layer,rank,token_num\na,0,0,0,6\na,0,0,1,2\nb,0,0,0,4\na,1,0,0,4\na,1,0,1,4\n";

std::string mutate(std::string_view text, fuzz::Random& random) {
  return fuzz::mutate_text(text.size() <= 1 ? kSample : text, random);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  return fuzz::loaded([&] {
    const Trace trace = trace_of_rank_loads({"fuzz.csv", text}, 2, {{"method", "a"}});
    read_trace(trace_bytes(trace), "fuzz.trace");
  });
}
