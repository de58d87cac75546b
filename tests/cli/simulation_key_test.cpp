// Simulations that are kept: where a recipe hides a value that changes what a policy does, a later
// run does not print the times of an earlier one.
#include <vector>

#include "tests/base/folder.h"
#include "tests/cli/program.h"

namespace moe::test {
namespace {

namespace fs = std::filesystem;

// %s sets `route`, which does what the number f says: it depends on a file.
const std::string kRecipe = R"(local moe = require "moe"
local f = pcall(moe.op_table, "flag.csv") and 1 or 2
local function take(ctx, n)
  for i = 1, ctx.tokens do ctx:take(i, n == 1 and 1 or 1 + i % ctx.experts) end
end
local route
%s
local g = moe.policy.gate { name = "g", scope = "batch", weight = "prob", k = 1, route = route }
return moe.experiment { name = "e", cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf_irregular" {} },
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 2, seq = 64,
    batch_per_device = 4, experts_per_device = 1, gate = g {} } }
)";

/// Runs the recipe with the value of the policy in `hidden`; returns the line of its system.
std::string line_of(const std::string& folder, const std::string& cache, const std::string& out) {
  const Outcome o =
      run("cd " + folder + "; exec timeout 60 " MOEBENCH_BINARY " run r.lua --cache " + cache +
          " --out " + out);
  INFO(o.text);
  REQUIRE(o.exit == 0);
  const size_t at = o.text.find("raf_irregular");
  REQUIRE(at != std::string::npos);
  return o.text.substr(at, o.text.find('\n', at) - at);
}

TEST_CASE("a value that a policy reaches is in the key of its simulations, or they are not kept") {
  const std::string by = " route = function(ctx) take(ctx, ";
  const Folder folder;
  std::string anew;  // of the second value, the same however it is hidden
  folder.write("m.lua", "return { f = pcall(require('moe').op_table, 'flag.csv') and 1 or 2 }");
  for (const std::string& hidden : std::vector<std::string>{
           "local t = setmetatable({}, { __index = function() return f end })" + by + "t.x) end",
           "local t = setmetatable({}, { __call = function() return f end })" + by + "t()) end",
           "local h = coroutine.wrap(function() while true do coroutine.yield(f) end end)" + by +
               "h()) end",
           "local h = load('return ' .. f)" + by + "h()) end",
           "local h = load('return 1 ' .. (f == 1 and '*' or '+') .. ' 1')" + by + "h()) end",
           "local a, b = function() return 1 end, function() return 2 end local h = f == 1 and a "
           "or b" +
               by + "h()) end",
           "local h = f == 1 and math.min or math.max" + by + "h(1, 2)) end",
           "local t = f == 1 and { 'a', 'b' } or { 'a,number2,stringb' }" + by +
               "#t == 2 and 1) end",
           "moe.model.stash = f" + by + "moe.model.stash) end",
           "require 'm'" + by + "require('m').f) end", by + "require('m').f) end",
           by + "pcall(moe.op_table, 'flag.csv') and 1) end"}) {
    INFO(hidden);
    fs::remove(folder.path("c.simulations.sqlite"));
    const size_t at = kRecipe.find("%s");
    folder.write("r.lua", kRecipe.substr(0, at) + hidden + kRecipe.substr(at + 2));
    folder.write("flag.csv", "op,m,n,k,us\ngemm,1024,4096,4096,61.5\n");
    const std::string first = line_of(folder.path(), "c.sqlite", "o1");
    fs::remove(folder.path("flag.csv"));
    const std::string second = line_of(folder.path(), "c.sqlite", "o2");
    if (anew.empty()) anew = line_of(folder.path(), ":memory:", "o3");
    CHECK(second != first);
    CHECK(second == anew);
  }
}

TEST_CASE("the turns of a recipe's pipeline schedule are in the key of its simulations") {
  const std::string recipe = R"(local moe = require "moe"
local mine = moe.policy.pipeline { name = "mine", doc = "some forwards, then each backward",
  turns = function(p)
    for m = 1, AHEAD do p:forward(m) end
    for m = 1, 4 do
      p:backward(m)
      if m + AHEAD <= 4 then p:forward(m + AHEAD) end
    end
  end }
return moe.experiment { name = "e", cluster = moe.cluster.p4de { nodes = 2 },
  systems = { moe.system "raf_irregular" { mine {} } },
  grid = moe.grid { pp = 2, micro_batches = 4 },
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 2, seq = 64,
    batch_per_device = 4, experts_per_device = 1 } }
)";
  const Folder folder;
  std::vector<std::string> lines;
  for (const char* ahead : {"1", "4"}) {
    std::string text = recipe;
    for (size_t at; (at = text.find("AHEAD")) != std::string::npos;) text.replace(at, 5, ahead);
    folder.write("r.lua", text);
    lines.push_back(line_of(folder.path(), "c.sqlite", "o"));
  }
  CHECK(lines[0] != lines[1]);
}

}  // namespace
}  // namespace moe::test
