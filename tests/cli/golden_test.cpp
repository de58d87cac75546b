// The Lua surface against the independent reference values, and recipes that can be run.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

namespace moe::test {
namespace {

namespace fs = std::filesystem;

TEST_CASE("moe.train and a Switch gate in Lua give the reference's losses, drops and checksums") {
  const Folder folder;
  const Outcome o =
      run(MOEBENCH_BINARY " run " MOE_SOURCE_DIR "/tests/recipes/golden/switch.lua --out " +
          folder.path("out"));
  REQUIRE(o.exit == 0);
  const auto golden =
      nlohmann::json::parse(text_of(MOE_SOURCE_DIR "/tests/data/golden_tiny.json"))["gates"];
  std::istringstream lines(o.text);
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
}

/// Whether this is no recipe (shared.lua is what those of its folder share) or the test 'recipes'
/// or 'lessons' runs it.
bool runs_elsewhere(const fs::path& recipe) {
  if (recipe.filename() == "shared.lua") return true;
  const fs::path folder = recipe.parent_path().filename();
  if (folder == "lessons" || folder == "course") return true;
  std::string name = fs::relative(recipe, MOE_SOURCE_DIR "/recipes").replace_extension().string();
  std::replace(name.begin(), name.end(), '/', '-');
  return fs::exists(fs::path(MOE_SOURCE_DIR "/tests/recipes/golden") / (name + ".txt"));
}

/// Of scripts that compute for seconds a copy with fewer points is checked.
std::string to_check(const fs::path& recipe, const Folder& folder) {
  const std::map<std::string, std::pair<std::string, std::string>> scripts = {
      {"balancers.lua", {"seeds = 20, small = 1000", "seeds = 2, small = 20"}},
      {"fig11.lua", {"STEPS = { 2, 3, 4 }", "STEPS = { 2 }"}},
      {"table1.lua", {"\"S\", \"M\", \"L\", \"DS\", \"DM\"", "\"S\""}},
      {"when_does_it_pay.lua", {"{ 256, 512, 1024, 2048, 4096, 8192, 16384 }", "{ 256, 16384 }"}}};
  const auto found = scripts.find(recipe.filename().string());
  if (found == scripts.end()) return recipe.string();
  const auto& [many, few] = found->second;
  const fs::path shared = fs::path(recipe).replace_filename("shared.lua");
  if (fs::exists(shared)) folder.write("shared.lua", text_of(shared));
  std::string lua = text_of(recipe);
  REQUIRE(lua.find(many) != std::string::npos);
  return folder.write("copy.lua", lua.replace(lua.find(many), many.size(), few));
}

TEST_CASE("every recipe of the project is right as far as it can be without running") {
  // Of recipes with hundreds of plans a few are made.
  const std::map<std::string, std::string> narrowed = {
      {"balancers_steps.lua",
       "--set nodes=1 --set seed=1 --set tokens=256 --set workload=W2_hot_rank"},
      {"dispatchers.lua", "--set nodes=2"},
      {"lancet/fig11_12.lua", "--set nodes=4 --set gpu=p3dn --set size=S --set padding=none"},
      {"lancet/fig13.lua", "--set gpu=p4de"},
      {"lancet/fig15.lua", "--set gpu=p4de"},
      {"lancet/fig16.lua", "--set gpu=p4de"},
      {"lancet/regret.lua",
       "--set rows=8 --set nodes=2 --set gpu=p4de --set size=S "
       "--set capacity_factor=1.25"},
      {"lina/fig10_14.lua", "--set experts=4 --set model.layers=4"},
      {"lina/fig15.lua", "--set size=gpt2 --set model.layers=2"},
      {"mix_all.lua", "--set nodes=2 --set gpu=p4de --set model.layers=4"},
      {"mix_mesh.lua", "--set gpu=p4de --set pp=2 --set grid.micro_batches=2 --set model.layers=4"},
      {"open_models.lua", "--set nodes=8 --set model.layers=4"},
      {"prediction_error.lua", "--set configurations=8"}};
  const Folder folder;
  size_t num_recipes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(MOE_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".lua") continue;
    if (entry.path().filename() == "every_mix.lua") continue;  // makes 22,000 plans, in minutes
    if (runs_elsewhere(entry.path())) continue;
    ++num_recipes;
    const auto found =
        narrowed.find(fs::relative(entry.path(), MOE_SOURCE_DIR "/recipes").string());
    const Outcome o = run(MOEBENCH_BINARY " check " + to_check(entry.path(), folder) + " " +
                          (found == narrowed.end() ? "" : found->second));
    INFO(entry.path().string() << "\n" << o.text);
    CHECK(o.exit == 0);
  }
  CHECK(num_recipes >= 3);
}

}  // namespace
}  // namespace moe::test
