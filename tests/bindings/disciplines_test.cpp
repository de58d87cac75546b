// Picks in Lua on real ranks; tests/lua/engine has those of plans.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kDisciplineTrain = R"(
local moe = require "moe"
local function train(system, steps)
  return moe.train { model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4,
      seq = 16, batch_per_device = 2, experts = 2 },
    ranks = 2, steps = steps or 3, tokens = "reference", timeout_s = 20, system = system }
end
local reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }
)";

}  // namespace

TEST_CASE("Lina's variants and a pick in Lua train to the same bits as no overlap at all") {
  CHECK(message_of(kDisciplineTrain + R"(
    local mine = moe.policy.schedule { name = "mine", params = { smallest = false },
      apply = function(s, g, ctx, o)
        for _, op in ipairs(g:ops { kind = "all_to_all" }) do s:priority(op, 1) end
        local first = g:ops { kind = "all_reduce" }[1]
        s:discipline("comm_reduce", { exclusive = { "comm" }, pick = function(ready)
          local best = ready[1]
          for _, op in ipairs(ready) do
            if op == first then return op end
            if o.smallest and op.bytes < best.bytes then best = op end
          end
          return best
        end })
      end }
    local plain = train(moe.system "raf" {})
    local systems = { moe.system "mine" { mine {}, all_reduce = reduce },
      moe.system "cut" { mine { smallest = true }, moe.pass.chunked { bytes = 256, which = "both" },
        all_reduce = reduce } }
    for _, name in ipairs { "baseline", "fixed", "priority", "partition" } do
      systems[#systems + 1] = moe.system("lina_" .. name) {}
    end
    for _, system in ipairs(systems) do
      local r = train(system)
      assert(r.digest == plain.digest, system.name)
      assert(r.metrics[3].a2a_transfer_ms > 0 and r.metrics[3].all_reduce_transfer_ms > 0)
      assert(r.metrics[3].pipelining_efficiency > 0)
    end
  )") == "(no error)");
}

TEST_CASE("a pick that goes wrong in the executor alone ends the run with its line") {
  // A fresh state counts its calls from 0 again: the simulation, which comes first, stays below 40.
  const Folder folder;
  const auto failure = run_recipe(folder, kDisciplineTrain + R"(
    local calls = 0
    local p = moe.policy.schedule { name = "late", apply = function(s, g)
      s:discipline("comm_reduce", { pick = function(ready)
        calls = calls + 1
        if calls > 40 then return nil end
        return ready[1]
      end })
    end }
    train(moe.system "late" { p {}, all_reduce = reduce }, 10))");
  REQUIRE(failure);
  CHECK(failure->kind == "run");
  CHECK_THAT(failure->message, Contains("recipe.lua:12: ") &&
                                   Contains("pick of lane 'comm_reduce', schedule 'late'") &&
                                   Contains("returned nil, although op '"));
}

TEST_CASE("a schedule whose pick the executor needs stands at the top of the recipe") {
  CHECK_THAT(message_of(kDisciplineTrain + R"(
    train(moe.system "raf" {}, 1)
    local p = moe.policy.schedule { name = "hidden", apply = function(s)
      s:discipline("comm_reduce", { pick = function(ready) return ready[1] end })
    end }
    train(moe.system "late" { p {}, all_reduce = reduce }))"),
             Contains("schedule 'hidden'") && Contains("define it at the top of the recipe"));
}
