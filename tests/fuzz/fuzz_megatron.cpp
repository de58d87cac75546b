// Lines of Megatron-LM's RouterTracer.
#include "engine/routing/formats/trace_formats.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

constexpr std::string_view kSample =
    R"({"step": 0, "stage": "pre_dispatch", "block": "decoder", "layer": 1, "rank": 0,)"
    R"( "num_tokens": 2, "topk": 2, "top_indices": [[0, 3], [1, 2]]})";

std::string mutate(std::string_view text, fuzz::Random& random) {
  return fuzz::mutate_json_lines(text, random, kSample);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  return fuzz::loaded([&] {
    const Trace trace = trace_of_megatron({{"fuzz.jsonl", text}}, 0);
    read_trace(trace_bytes(trace), "fuzz.trace");
    megatron_of_trace(trace);
  });
}
