// The Lua surface against the independent reference values, and the same bytes from two processes.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include <unistd.h>

namespace fs = std::filesystem;

namespace {

std::string folder(const std::string& name) {
  return (fs::temp_directory_path() / ("moebench-" + name + "-" + std::to_string(getpid())))
      .string();
}

int run_recipe_to(const std::string& recipe, const std::string& out, const std::string& to) {
  const std::string command = std::string(MOEBENCH_BINARY) + " run " MOE_SOURCE_DIR "/" + recipe +
                              " --executor simulate --out " + out + " > " + to + " 2>/dev/null";
  return std::system(command.c_str());
}

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_CASE("moe.train and a Switch gate in Lua give the reference's losses, drops and checksums") {
  const std::string out = folder("golden"), text = out + ".txt";
  const std::string command = std::string(MOEBENCH_BINARY) +
                              " run " MOE_SOURCE_DIR "/tests/recipes/golden/switch.lua --out " +
                              out + " > " + text;
  REQUIRE(std::system(command.c_str()) == 0);
  const auto golden =
      nlohmann::json::parse(content(MOE_SOURCE_DIR "/tests/data/golden_tiny.json"))["gates"];
  std::istringstream lines(content(text));
  std::string label, checksum;
  size_t step, layer, num_lines = 0;
  int64_t capacity, dropped;
  double loss;
  while (lines >> label >> step >> layer >> loss >> capacity >> dropped >> checksum) {
    ++num_lines;
    INFO(label << " step " << step << " layer " << layer);
    const auto& reference = golden[label]["fp64"];
    const auto& moe = reference["moe"][step - 1][layer - 1];
    CHECK(std::abs(loss - reference["losses"][step - 1].get<double>()) < 2e-6);
    CHECK(capacity == moe["capacity"].get<int64_t>());
    CHECK(dropped == moe["dropped_tokens"].get<int64_t>());
    CHECK(checksum == moe["checksum"].get<std::string>());
  }
  CHECK(num_lines == 40);
  fs::remove_all(out);
  fs::remove(text);
}

/// Whether the test 'recipes' runs this recipe and compares what it simulates.
bool is_golden(const fs::path& recipe) {
  std::string name = fs::relative(recipe, MOE_SOURCE_DIR "/recipes").replace_extension().string();
  std::replace(name.begin(), name.end(), '/', '-');
  return fs::exists(fs::path(MOE_SOURCE_DIR "/tests/recipes/golden") / (name + ".txt"));
}

/// Returns the command that checks a recipe, with its output in the file `text`. balancers.lua, a
/// script, computes for 15 s; a copy of it with fewer samples is checked.
std::string check_command(const fs::path& recipe, const std::string& settings,
                          const std::string& text) {
  const std::string program = std::string(MOEBENCH_BINARY) + " check ", to = " > " + text + " 2>&1";
  if (recipe.filename() != "balancers.lua") return program + recipe.string() + " " + settings + to;
  const std::string many = "seeds = 20, small = 1000", copy = text + ".lua";
  std::string lua = content(recipe);
  REQUIRE(lua.find(many) != std::string::npos);
  std::ofstream(copy) << lua.replace(lua.find(many), many.size(), "seeds = 2, small = 20");
  return program + copy + to;
}

TEST_CASE("every recipe of the project is right as far as it can be without running") {
  // Of recipes with hundreds of plans a few are made.
  const std::map<std::string, std::string> narrowed = {
      {"balancers_steps.lua", "--set nodes=1 --set seed=1 --set tokens=256"},
      {"fig11_12.lua", "--set nodes=4 --set gpu=p3dn"},
      {"mix_all.lua", "--set nodes=2 --set gpu=p4de"},
      {"regret.lua", "--set rows=8 --set nodes=2 --set gpu=p4de"}};
  size_t num_recipes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(MOE_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".lua") continue;
    if (entry.path().filename() == "every_mix.lua") continue;  // makes 22,000 plans, in minutes
    if (is_golden(entry.path())) continue;
    ++num_recipes;
    const std::string text = folder("check") + ".txt";
    const auto found = narrowed.find(entry.path().filename().string());
    const std::string command =
        check_command(entry.path(), found == narrowed.end() ? "" : found->second, text);
    const int status = std::system(command.c_str());
    INFO(entry.path().string() << "\n" << content(text));
    CHECK(status == 0);
    fs::remove(text);
    fs::remove(text + ".lua");
  }
  CHECK(num_recipes >= 3);
}

TEST_CASE("a recipe's own tables and its claims are printed") {
  const std::string out = folder("fig"), text = out + ".txt";
  REQUIRE(run_recipe_to("recipes/lancet/fig13.lua --set gpu=p3dn --set size=S", out, text) == 0);
  const std::string said = content(text);
  CHECK(said.find("compute alone ms") != std::string::npos);
  CHECK(said.find("lancet-038-V100 ") != std::string::npos);
  CHECK(said.find("lancet-038-A100  figure 13  69 %      -") != std::string::npos);
  CHECK(said.find("  no run\n") != std::string::npos);
  fs::remove_all(out);
  fs::remove(text);
}

TEST_CASE("placements in Lua and built in shorten the steps of skewed routing") {
  const std::string out = folder("placement");
  REQUIRE(run_recipe_to("recipes/custom_placement.lua", out, out + ".txt") == 0);
  const auto runs = nlohmann::json::parse(content(fs::path(out) / "results.json"))["runs"];
  REQUIRE(runs.size() == 3);
  for (size_t i = 1; i < 3; ++i) {
    INFO(runs[i]["system"]);
    CHECK(runs[i]["iteration_ms"] < 0.9 * runs[0]["iteration_ms"].get<double>());
    REQUIRE(runs[i]["placements"].size() == 12);
    for (const auto& layer : runs[i]["placements"][0]) {
      CHECK(layer["copies"] == 0);
      CHECK(layer["max_load"] == layer["max_load_plain"]);
    }
    for (size_t step = 1; step < 12; ++step) {
      for (const auto& layer : runs[i]["placements"][step]) {
        CHECK(layer["copies"] > 0);
        CHECK(layer["max_load"] < 0.8 * layer["max_load_plain"].get<double>());
        CHECK(layer["max_load"] >= layer["mean_load"]);
      }
    }
  }
  fs::remove_all(out);
  fs::remove(out + ".txt");
}

TEST_CASE("two processes simulate the same bytes") {
  const std::string a = folder("first"), b = folder("second");
  REQUIRE(run_recipe_to("recipes/custom_schedule.lua", a, a + ".txt") == 0);
  REQUIRE(run_recipe_to("recipes/custom_schedule.lua", b, b + ".txt") == 0);
  size_t traces = 0;
  for (const auto& entry : fs::directory_iterator(a)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("trace-", 0) != 0) continue;
    ++traces;
    CHECK(content(entry.path()) == content(fs::path(b) / name));
  }
  CHECK(traces == 3);
  for (const std::string& path : {a, b, a + ".txt", b + ".txt"}) fs::remove_all(path);
}
