// Every documented number at the ends of its range: ranges.lua.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "tests/bindings/fixture.h"

using namespace moe::lua;

namespace {

std::string ranges(LibraryState& state, const std::string& expression) {
  state.run(
      "return assert(loadfile('" MOE_SOURCE_DIR "/tests/bindings/ranges.lua'))()" + expression, 1);
  std::string text = lua_tostring(state.L(), -1);
  lua_pop(state.L(), 1);
  return text;
}

void check_all(int steps, int corners) {
  LibraryState state;
  std::istringstream names(ranges(state, ".names()"));
  for (std::string name; std::getline(names, name);) {
    INFO(name);
    CHECK(ranges(state, fmt::format(".run('{}', {}, {})", name, steps, corners)) == "");
  }
}

}  // namespace

TEST_CASE("documented numbers at the ends of their ranges give figures or are refused by name") {
  check_all(1, 3);
}

TEST_CASE("documented numbers between the ends of their ranges, and many corners", "[slow]") {
  check_all(6, 150);
}

TEST_CASE("what is beyond the clock is refused at the recipe's own line") {
  const auto refuses = [](const std::string& recipe, const std::string& line) {
    const Folder folder;
    const std::optional<Failure> failure =
        run_recipe(folder,
                   "local moe = require 'moe'\nlocal m = moe.model.gpt2_moe { layers = 2, "
                   "hidden = 64, heads = 4, seq = 32,\n  batch_per_device = 4, "
                   "experts_per_device = 2 }\n" +
                       recipe);
    REQUIRE(failure);
    CHECK(failure->kind == "user");
    CHECK_THAT(failure->message,
               Catch::Contains("recipe.lua:" + line + ": ") && Catch::Contains("beyond the clock"));
  };
  const std::string slow =
      "local c = moe.cluster.p4de { nodes = 1, device = { "
      "gemm_flops_per_s = 1e-9, memory_bytes_per_s = 1e12 } }\n";
  // Links so slow that only lina's packing, whose plans have parts, passes the limit in its order.
  refuses(
      "local c = moe.cluster.custom { nodes = 2, devices_per_node = 2, device = {\n"
      "gemm_flops_per_s = 1e14, memory_bytes_per_s = 1e12 }, intra = { bytes_per_s = 0.0056,\n"
      "latency_us = 1 }, nic = { bytes_per_s = 2e10, latency_us = 3 } }\n"
      "moe.plan { model = m, cluster = c, system = moe.system 'lina' {} }\n",
      "7");
  for (const std::string system : {"raf", "lancet", "lina", "prophet"}) {
    INFO(system);
    refuses(slow +
                "return moe.experiment { name = 'x', model = m, cluster = c,\n  systems = {\n"
                "moe.system '" +
                system + "' {} } }",
            "7");
    refuses(slow + "moe.plan { model = m, cluster = c, system = moe.system '" + system +
                "' {} }:simulate()",
            "5");
  }
}
