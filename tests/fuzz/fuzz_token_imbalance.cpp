// Traces of the token-imbalance benchmark. An input is the manifest and the two tensors that are
// read, each after its length in four bytes.
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/sha256.h"
#include "engine/routing/formats/trace_formats.h"
#include "tests/fuzz/mutate.h"

using namespace moe;

namespace {

using Parts = std::array<std::string, 3>;  // the manifest and the archives of kTensors
constexpr std::array<const char*, 2> kTensors = {"expert_ids", "source_rank"};

Parts sample() {
  Trace t = {.steps = 1, .layers = 1, .ranks = 2, .tokens = 2, .experts = 3, .k = 2};
  t.blocks = {1};
  t.choices = {0, 1, 1, 2, 2, 0, 0, 2};
  finish_trace(t, "sample");
  Parts parts;
  for (const auto& [name, content] : token_imbalance_of_trace(t, 0, 0)) {
    if (name == "manifest.json") parts[0] = content;
    for (size_t i = 0; i < kTensors.size(); ++i) {
      if (name.find(kTensors[i]) != std::string::npos) parts[i + 1] = content;
    }
  }
  return parts;
}

/// Parts that the bytes end before are empty.
Parts parts_of(std::string_view bytes) {
  Parts parts;
  for (std::string& part : parts) {
    uint32_t length = 0;
    if (bytes.size() < sizeof length) break;
    std::memcpy(&length, bytes.data(), sizeof length);
    bytes.remove_prefix(sizeof length);
    part = bytes.substr(0, length);
    bytes.remove_prefix(part.size());
  }
  return parts;
}

std::string bytes_of(const Parts& parts) {
  std::string out;
  for (const std::string& part : parts) {
    const auto length = static_cast<uint32_t>(part.size());
    out.append(reinterpret_cast<const char*>(&length), sizeof length);
    out += part;
  }
  return out;
}

/// Makes the manifest's checksums those of the archives.
void repair(Parts& parts) {
  nlohmann::json manifest = nlohmann::json::parse(parts[0], nullptr, false);
  if (!manifest.is_object() || !manifest["tensors"].is_object()) return;
  for (size_t i = 0; i < kTensors.size(); ++i) {
    nlohmann::json& tensor = manifest["tensors"][kTensors[i]];
    if (tensor.is_object()) tensor["sha256"] = sha256_text(parts[i + 1]);
  }
  parts[0] = manifest.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string mutate(std::string_view bytes, fuzz::Random& random) {
  Parts parts = bytes.size() < 64 ? sample() : parts_of(bytes);
  const size_t which = random() % 4;
  if (which == 1 || which == 2) {
    parts[which] = fuzz::mutate_bytes(parts[which], random);
  } else {
    static const std::string good = sample()[0];
    parts[0] = fuzz::mutate_json(parts[0], random, good);
  }
  if (random() % 16 != 0) repair(parts);
  return bytes_of(parts);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Parts parts = parts_of({reinterpret_cast<const char*>(data), size});
  return fuzz::loaded([&] {
    const auto read = [&](size_t, const std::string& file) {
      return parts[file.find(kTensors[1]) != std::string::npos ? 2 : 1];
    };
    const Trace trace = trace_of_token_imbalance({{"manifest.json", parts[0]}}, read);
    read_trace(trace_bytes(trace), "fuzz.trace");
    token_imbalance_of_trace(trace, 0, 0);
  });
}
