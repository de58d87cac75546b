// Our own binary traces: read, and replayed on as many ranks and on half of them.
#include "engine/routing/trace.h"

#include "engine/routing/workload.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

std::string sample(bool counts_alone) {
  Trace t = {.steps = 2, .layers = 2, .ranks = 2, .tokens = 4, .experts = 3, .k = 2};
  t.blocks = {1, 3};
  for (int i = 0; i < 2 * 2 * 2 * 4; ++i) {
    for (const int e : {i % 3, (i + 1) % 3}) t.choices.push_back(static_cast<uint16_t>(e));
  }
  finish_trace(t, "sample");
  if (counts_alone) t.choices.clear();
  return trace_bytes(t);
}

/// Of counts alone, choices are made for every token: seconds for the largest traces.
constexpr int64_t kMostTokens = 1 << 20;

std::string mutate(std::string_view bytes, fuzz::Random& random) {
  std::string out = bytes.size() < 64 ? sample(random() % 2 == 0) : std::string(bytes);
  out = fuzz::mutate_bytes(out, random);
  if (random() % 16 != 0) fuzz::repair_checksum(out);
  return out;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  return fuzz::loaded([&] {
    const auto trace = std::make_shared<const Trace>(read_trace(bytes, "fuzz.trace"));
    if (trace->ranks * trace->tokens > kMostTokens) return;
    const RoutingModel routing = routing_of(trace, "fuzz", true);
    for (const int64_t part : {1, 2}) {
      if (trace->ranks % part != 0) continue;
      routing.loads({.step = 1,
                     .ranks = trace->ranks / part,
                     .tokens = trace->tokens * part,
                     .experts = trace->experts,
                     .k = trace->k});
    }
  });
}
