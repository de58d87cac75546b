// The program started as several processes by torchrun's variables.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/tcp/job.h"

namespace moe::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

/// Removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::temp_directory_path() / ("moebench-tcp-" + name + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string content(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Job::Command command(const Folder& folder, const std::string& recipe) {
  return {MOEBENCH_BINARY,    "run",    recipe, "--cache", folder.file("times.sqlite"), "--out",
          folder.file("out"), "--trust"};
}

std::string recipe_of(const std::string& name) {
  return MOE_SOURCE_DIR "/tests/recipes/job/" + name;
}

TEST_CASE("two processes over TCP give the reference's losses, drops and checksums, once") {
  const Folder folder("golden");
  const JobEnd end = run(2, command(folder, recipe_of("switch.lua")));
  INFO(end.text);
  REQUIRE(end.statuses == std::vector<int>{0, 0});
  const json golden = json::parse(
      content(MOE_SOURCE_DIR "/tests/data/golden_tiny.json"))["gates"]["switch_ranks2"]["fp64"];
  std::istringstream lines(end.text);
  std::string label, checksum;
  size_t step, layer, num_lines = 0;
  int64_t dropped;
  double loss;
  while (lines >> label >> step >> layer >> loss >> dropped >> checksum) {
    ++num_lines;
    const json& moe = golden["moe"][step - 1][layer - 1];
    CHECK(std::abs(loss - golden["losses"][step - 1].get<double>()) < 2e-6);
    CHECK(dropped == moe["dropped_tokens"].get<int64_t>());
    CHECK(checksum == moe["checksum"].get<std::string>());
  }
  CHECK(num_lines == 20);
}

/// A recipe with `text` in two processes.
JobEnd run_text(const std::string& text) {
  const Folder folder("text");
  std::ofstream(folder.file("recipe.lua")) << R"(
local moe = require "moe"
local function train(t)
  local model = moe.model.gpt2_moe { vocab = 64, layers = t.layers or 2, hidden = 32, heads = 2,
    seq = 16, batch_per_device = 2, experts_per_device = 1, capacity_factor = 1 }
  return moe.train { model = model, ranks = t.ranks or 2, tokens = "reference" }
end
local rank = os.getenv 'RANK'
)" + text;
  return run(2, command(folder, folder.file("recipe.lua")));
}

TEST_CASE("a process over TCP that asks for another plan is named by rank 0, and what differs") {
  const JobEnd end = run_text("train { layers = rank == '1' and 4 or 2 }");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 3});
  const std::string why = "rank 1 asks for another plan than rank 0: model/layers: 4, rank 0 has 2";
  CHECK_THAT(end.text, Contains(why));
  CHECK(end.text.find(why) == end.text.rfind(why));
}

TEST_CASE("a script that goes another way in one process over TCP is told by rank 0 alone") {
  const JobEnd end = run_text("if rank == '1' then error 'only here' end train {}");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 3});
  CHECK_THAT(end.text, Contains("rank 1: ") && Contains("only here"));
  CHECK(end.text.find("moebench: ") == end.text.rfind("moebench: "));
}

TEST_CASE("a recipe that is wrong in all processes over TCP is told once, at its line") {
  const JobEnd end = run_text("train { ranks = 3 }");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{1, 1});
  CHECK_THAT(end.text, Contains("recipe.lua:9: moe.train.ranks: 3, but 2 processes were started"));
  CHECK(end.text.find("recipe.lua:9: ") == end.text.rfind("recipe.lua:9: "));
}

TEST_CASE("a process over TCP that ends by itself ends the others, with its rank") {
  const JobEnd end = run_text("if rank == '1' then os.exit(0) end train {}");
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 0});
  CHECK_THAT(end.text, Contains("rank 1 is lost: its connection closed"));
}

TEST_CASE("a process over TCP that is killed ends the others at once, and results stay") {
  const Folder folder("killed");
  const std::string results = folder.file("out/results.json");
  Job job(2, command(folder, recipe_of("endless.lua")));
  job.start_all();
  for (int i = 0; i < 400; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (content(results).find("\"system\": \"deepspeed\"") != std::string::npos) break;
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));  // into its steps
  job.signal(1, SIGKILL);
  const JobEnd end = job.wait();
  INFO(end.text);
  CHECK(end.statuses == std::vector<int>{3, 128 + SIGKILL});
  CHECK(end.seconds < 10);
  CHECK_THAT(end.text, Contains("rank 1 is lost: its connection closed"));
  const json runs = json::parse(content(results))["runs"];
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["losses"].size() == 2);
  CHECK(runs[1]["losses"].size() > 0);
  CHECK(runs[1]["losses"].size() == runs[1]["samples_ms"].size());
  CHECK(runs[1]["stopped"] == true);
  CHECK_THAT(runs[1]["stop_reason"].get<std::string>(), Contains("rank 1 is lost"));
  CHECK_FALSE(runs[1].contains("digest"));
}

TEST_CASE("a signal to any process over TCP ends the job after its step, with all that is over") {
  for (const int rank : {0, 1}) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      CAPTURE(rank, number);
      const Folder folder("signal");
      Job job(2, command(folder, recipe_of("endless.lua")));
      job.start_all();
      for (int i = 0; i < 400; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        const std::string lines = content(folder.file("out/runs.jsonl"));
        if (lines.find("\"system\":\"deepspeed\"") != std::string::npos) break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // into its steps
      job.signal(rank, number);
      const JobEnd end = job.wait(-1, 10);
      INFO(end.text);
      CHECK(end.statuses == std::vector<int>{3, 3});
      CHECK_THAT(end.text, Contains("Executed on 2 CPU ranks") && Contains("interrupted"));
      const json runs = json::parse(content(folder.file("out/results.json")))["runs"];
      REQUIRE(runs.size() == 2);
      CHECK(runs[0]["losses"].size() == 2);
      CHECK(runs[1]["stopped"] == true);
      CHECK(runs[1].contains("digest"));
    }
  }
}

}  // namespace
}  // namespace moe::test
