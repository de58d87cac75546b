// TensorRT-LLM's routing patterns.
#include <nlohmann/json.hpp>

#include "engine/routing/formats/trace_formats.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

constexpr std::string_view kSample =
    R"({"ep_size": 2, "experts_per_rank": 2, "slot_dispatch_matrix": [[4, 2], [0, 6]],)"
    R"( "expert_histogram": [[1, 3], [5, 3]]})";

/// Sizes that fit each other again, so that a mutation gets past the first check; the histogram,
/// whose sums would not, is left out.
std::string repaired(const std::string& text) {
  nlohmann::json pattern = nlohmann::json::parse(text, nullptr, false);
  if (!pattern.is_object() || !pattern["slot_dispatch_matrix"].is_array()) return text;
  nlohmann::json& matrix = pattern["slot_dispatch_matrix"];
  for (nlohmann::json& row : matrix) {
    if (!row.is_array()) row = nlohmann::json::array();
    while (row.size() > matrix.size()) row.erase(row.size() - 1);
    while (row.size() < matrix.size()) row.push_back(row.empty() ? nlohmann::json(1) : row[0]);
  }
  pattern["ep_size"] = matrix.size();
  pattern.erase("expert_histogram");
  return pattern.dump();
}

/// Other sizes, and every slot the same number.
std::string even_pattern(fuzz::Random& random) {
  const size_t ranks = 1 + random() % 16;
  const auto slots = nlohmann::json::parse(fuzz::interesting_number(random));
  const nlohmann::json row(ranks, slots);
  return nlohmann::json{{"ep_size", ranks},
                        {"experts_per_rank", 1 + random() % 4},
                        {"slot_dispatch_matrix", nlohmann::json(ranks, row)}}
      .dump();
}

std::string mutate(std::string_view text, fuzz::Random& random) {
  if (random() % 8 == 0) return even_pattern(random);
  const std::string out = fuzz::mutate_json(text, random, kSample);
  return random() % 2 == 0 ? repaired(out) : out;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  return fuzz::loaded([&] {
    const Trace trace = trace_of_tensorrt({"fuzz.json", text}, 1);
    read_trace(trace_bytes(trace), "fuzz.trace");
    tensorrt_of_trace(trace, 0, 0);
  });
}
