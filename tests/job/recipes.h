// What tests of recipes in several processes share, whoever starts the processes: folders, the
// recipes of tests/recipes/job, and what the reference says of one of them.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>

namespace moe::test {

/// Removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("moebench-job-" + name + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ / name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string content(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline nlohmann::json runs_in(const Folder& folder) {
  return nlohmann::json::parse(content(folder.file("out/results.json")))["runs"];
}

inline std::string recipe_of(const std::string& name) {
  return MOE_SOURCE_DIR "/tests/recipes/job/" + name;
}

/// Begins a recipe of eight lines: train(t) trains a small model on two ranks.
inline const std::string kTrain = R"(
local moe = require "moe"
local function train(t)
  local model = moe.model.gpt2_moe { vocab = 64, layers = t.layers or 2, hidden = 32, heads = 2,
    seq = 16, batch_per_device = 2, experts_per_device = 1, capacity_factor = 1 }
  return moe.train { model = model, ranks = t.ranks or 2, tokens = "reference", link = t.link,
    system = t.system }
end
)";

inline void check_once(const std::string& text, const std::string& part) {
  const size_t at = text.find(part);
  CHECK(at != std::string::npos);
  CHECK(at == text.rfind(part));
}

/// What switch.lua printed are the reference's losses, drops and checksums, each once.
inline void check_reference(const std::string& text) {
  const nlohmann::json golden = nlohmann::json::parse(
      content(MOE_SOURCE_DIR "/tests/data/golden_tiny.json"))["gates"]["switch_ranks2"]["fp64"];
  std::istringstream lines(text);
  std::string label, checksum;
  size_t step, layer, num_lines = 0;
  int64_t dropped;
  double loss;
  while (lines >> label >> step >> layer >> loss >> dropped >> checksum) {
    ++num_lines;
    const nlohmann::json& moe = golden["moe"][step - 1][layer - 1];
    CHECK(std::abs(loss - golden["losses"][step - 1].get<double>()) < 2e-6);
    CHECK(dropped == moe["dropped_tokens"].get<int64_t>());
    CHECK(checksum == moe["checksum"].get<std::string>());
  }
  CHECK(num_lines == 20);
}

/// Until the file has the text, and `then_ms` more: endless.lua is then in its steps.
inline void wait_until_written(const std::string& file, const std::string& text,
                               int then_ms = 300) {
  for (int i = 0; i < 400 && content(file).find(text) == std::string::npos; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::this_thread::sleep_for(std::chrono::milliseconds(then_ms));
}
inline const std::string kInResults = "\"system\": \"deepspeed\"";
inline const std::string kInJournal = "\"system\":\"deepspeed\"";

/// What a run of endless.lua leaves that was asked to end in the steps of its second system.
inline void check_interrupted(const Folder& folder, const std::string& text) {
  CHECK_THAT(text, Catch::Matchers::Contains("Executed on 2 CPU ranks") &&
                       Catch::Matchers::Contains("interrupted"));
  const nlohmann::json runs = runs_in(folder);
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["losses"].size() == 2);
  CHECK(runs[1]["stopped"] == true);
}

}  // namespace moe::test
