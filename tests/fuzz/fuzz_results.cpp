// The files of a folder of results, made into a page, which reads them as moe.results does for a
// recipe. An input is results.json and, after a byte of 0, runs.jsonl.
#include <nlohmann/json.hpp>

#include "tests/fuzz/lua_loader.h"

using namespace moe;

namespace {

constexpr std::string_view kSample = R"({"schema": 1, "runs": []})";

std::pair<std::string_view, std::string_view> parts_of(std::string_view input) {
  const size_t end = std::min(input.find('\0'), input.size());
  return {input.substr(0, end), input.substr(std::min(end + 1, input.size()))};
}

/// The lines that moebench would write for a results.json: its top, then its runs.
std::string lines_of(std::string_view whole) {
  nlohmann::json head = nlohmann::json::parse(whole, nullptr, false);
  if (!head.is_object()) return std::string(whole);
  const nlohmann::json runs = head["runs"];
  for (const char* const list : {"runs", "claims", "experiments"}) head.erase(list);
  head["session"] = "later";
  std::string lines = head.dump() + "\n";
  for (size_t i = 0; runs.is_array() && i < runs.size(); ++i) {
    lines += nlohmann::json{{"run", i + 1}, {"record", runs[i]}}.dump() + "\n";
  }
  return lines;
}

std::string mutate(std::string_view input, fuzz::Random& random) {
  const auto [whole, lines] = parts_of(input);
  const size_t which = random() % 8;
  if (which == 0) return std::string(whole) + '\0' + lines_of(whole);
  if (which > 3 || lines.empty()) {
    const std::string changed = fuzz::mutate_json(whole, random, kSample);
    return lines.empty() ? changed : changed + '\0' + std::string(lines);
  }
  return std::string(whole) + '\0' + fuzz::mutate_json_lines(lines, random, kSample);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max, unsigned seed) {
  return fuzz::mutated(data, size, max, seed, mutate);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string path = fuzz::folder() + "/results.json";
  static const std::string path_of_lines = fuzz::folder() + "/runs.jsonl";
  static fuzz::LuaLoader loader(R"(
    require "moe"
    local page = require "moe.results.page"
    return function() page.report "report.html" end)");
  const auto [whole, lines] = parts_of({reinterpret_cast<const char*>(data), size});
  fuzz::write(path, whole);
  fuzz::write(path_of_lines, lines);
  return fuzz::loaded([] { loader.load(); });
}
