// Traces of other tools, as recipes read and write them, on the real core.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "engine/base/files.h"
#include "tests/bindings/fixture.h"

namespace moe::lua {
namespace {

using Catch::Contains;

constexpr const char* kHead = "local moe = require 'moe'\n";

// Two steps, layers and ranks, whose ranks have up to three tokens.
std::string records(int rank) {
  std::string text;
  for (int step = 0; step < 2; ++step) {
    for (const int layer : {1, 4}) {
      const std::string more = step > 0 ? "" : ", [2, 5]";
      text += fmt::format(R"({{"step": {}, "layer": {}, "rank": {}, "num_tokens": {}, "topk": 2, )"
                          R"("top_indices": [[{}, 3], [{}, 0]{}]}})"
                          "\n",
                          step, layer, rank, step > 0 ? 2 : 3, layer, 1 + rank, more);
    }
  }
  return text;
}

TEST_CASE("a trace comes back from every format that has its choices, a pattern with its sums") {
  const Folder folder;
  for (int rank = 0; rank < 2; ++rank) folder.write(fmt::format("r{}", rank), records(rank));
  const auto failure = run_recipe(folder, std::string(kHead) + R"(
    moe.trace.import { format = "megatron", files = { "r0", "r1" }, experts = 6, to = "a" }
    local files = moe.trace.export { format = "megatron", trace = "a", to = "own" }
    moe.trace.import { format = "megatron", files = files, experts = 6, to = "b" }
    files = moe.trace.export { format = "csv", trace = "a", to = "a.csv" }
    moe.trace.import { format = "csv", files = files, k = 2, to = "c" }
    moe.trace.export { format = "csv", trace = "c", to = "c.csv" }
    files = moe.trace.export { format = "tensorrt", trace = "a", to = "p", step = 2, layer = 2 }
    moe.trace.import { format = "tensorrt", files = files, k = 2, to = "d" }
    moe.trace.export { format = "tensorrt", trace = "d", to = "q" }
    local t = moe.trace.read "a"
    assert(t.steps == 2 and t.layers == 2 and t.ranks == 2 and t.tokens == 3 and t.experts == 6)
    assert(t.blocks[1] == 2 and t.blocks[2] == 5 and t.choices and not moe.trace.read "d".choices)
    local loads = moe.loads { routing = moe.trace "a" {}, ranks = 2, tokens = 3, experts = 6, k = 2,
      layer = 2, step = 1 }
    assert(table.concat(loads[2], " ") == "1 0 2 1 1 1")
  )");
  CHECK((failure ? failure->message + failure->traceback : "") == "");
  const auto same = [&](const char* a, const char* b) {
    CHECK(read_file(folder.path("out/") + a) == read_file(folder.path("out/") + b));
  };
  same("a", "b");
  same("a.csv", "c.csv");
  same("p", "q");
}

TEST_CASE("what no trace can be made of is refused at the recipe's line, with file and reason") {
  std::string wide;
  for (int i = 0; i < 4000; ++i) wide += "0,65533\n1,0\n";
  struct Row {
    std::string text, fields, message;
  };
  for (const Row& row :
       {Row{wide, "format = 'csv'", "recipe.lua:2: t: 4000 steps, 2 layers, 1 ranks of up to 1"},
        {"0,1\n0,1\n", "format = 'csv', k = 2", "t: step 0, layer 0, rank 0, token 0: expert 1 is"},
        {"{\"step\": 0, ", "format = 'megatron'", "recipe.lua:2: t:1: the text is not JSON at"},
        {std::string(200'000, '['), "format = 'megatron'", "t:1: more than 64 objects and arrays"},
        {R"({"ep_size": 1, "experts_per_rank": 1, "slot_dispatch_matrix": [[9]]})",
         "format = 'tensorrt', k = 3", "k = 3 is not allowed; give 1 to 1"}}) {
    const Folder folder;
    folder.write("t", row.text);
    const auto failure = run_recipe(
        folder,
        kHead + fmt::format("moe.trace.import {{ files = {{ 't' }}, to = 'x', {} }}", row.fields));
    REQUIRE(failure);
    CHECK(failure->kind == "user");
    CHECK_THAT(failure->message, Contains(row.message));
  }
}

}  // namespace
}  // namespace moe::lua
