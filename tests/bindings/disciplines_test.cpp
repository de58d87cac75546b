// Lanes that pick, exclusive lanes, chunks, priorities and holds from Lua, on a small model's plan.
#include <catch2/catch.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kDisciplineModel = R"(
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
  batch_per_device = 2, experts_per_device = 1 }
local function plan_of(passes)
  passes.all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }
  return moe.plan { model = model, cluster = moe.cluster.p4de { nodes = 1 },
    system = moe.system "mine" (passes) }
end
local function schedule(apply, ...)
  return plan_of { moe.policy.schedule { name = "mine", apply = apply } {}, ... }
end
)";  // 12 lines

void good_discipline(const std::string& text) {
  const std::string message = message_of(kDisciplineModel + text);
  CHECK(message == "(no error)");
}

std::string bad_discipline(const std::string& text) {
  return message_of(kDisciplineModel + text);
}

/// The message of an apply(s, g) on line 13.
std::string bad_apply(const std::string& body) {
  return bad_discipline("schedule(function(s, g) " + body + " end)");
}

}  // namespace

TEST_CASE("a pick in Lua that follows the priorities plans and simulates as the built-in one") {
  good_discipline(R"(
    local function system(pick)
      return schedule(function(s, g)
        for _, op in ipairs(g:ops { kind = "all_to_all" }) do
          s:priority(op, 1)
          assert(op.priority == 1)
        end
        s:discipline("comm_reduce", { pick = pick })
        s:discipline("comm", { pick = pick })
      end)
    end
    local calls = 0
    moe.policy.schedule { name = "other", apply = function() end }
    local builtin = plan_of { moe.policy.schedule { name = "builtin", apply = function(s, g)
      s:discipline("comm_reduce", { pick = "priority" })
      s:discipline("comm", { pick = "priority" })
    end } {} }
    local own = system(function(ready)
      calls = calls + 1
      local best = ready[1]
      for _, op in ipairs(ready) do
        assert(op.name and op.bytes > 0 and (op.kind == "all_to_all" or op.kind == "all_reduce"))
        if op.priority > best.priority then best = op end
      end
      return best
    end)
    assert(calls > 50, calls)
    assert(own:simulate().iteration_ms == builtin:simulate().iteration_ms)
  )");
}

TEST_CASE("a pick decides: the largest first ends the largest before the smallest") {
  good_discipline(R"(
    local first
    local function by(better)
      return plan_of { moe.policy.schedule { name = "by" .. tostring(better), apply = function(s, g)
        s:discipline("comm_reduce", { pick = function(ready)
          local best = ready[1]
          for _, op in ipairs(ready) do if better(op, best) then best = op end end
          if #ready > 5 and not first then first = best end
          return best
        end })
      end } {} }
    end
    by(function(a, b) return a.bytes > b.bytes end)
    local large = first
    first = nil
    by(function(a, b) return a.bytes < b.bytes end)
    assert(large and first and large ~= first)
  )");
}

TEST_CASE("handles that the schedule kept are the ones that a pick is given, readable there only") {
  good_discipline(R"(
    local seen, kept_s
    local last
    schedule(function(s, g)
      local ops = g:ops { kind = "all_reduce" }
      last = ops[#ops]
      kept_s = s
      s:discipline("comm_reduce", { pick = function(ready)
        for _, op in ipairs(ready) do
          if op == last then seen = last.name end
        end
        local ok, why = pcall(function() kept_s:priority(ready[1], 2) end)
        assert(not ok and tostring(why):find("a pick cannot change", 1, true), tostring(why))
        return ready[1]
      end })
    end)
    assert(seen)
    local ok, why = pcall(function() return last.name end)
    assert(not ok and tostring(why):find("has ended", 1, true))
  )");
}

TEST_CASE("what a pick does wrong fails the run at its line, with lane and schedule") {
  const auto message = [](const std::string& pick, const std::string& kind) {
    const Folder folder;
    const auto failure = run_recipe(
        folder, kDisciplineModel +
                    "schedule(function(s, g)\n s:discipline('comm', { pick = function(ready)\n" +
                    pick + " end }) end)");
    REQUIRE(failure);
    CHECK(failure->kind == kind);
    CHECK_THAT(failure->message, Contains("lane 'comm'") && Contains("schedule 'mine'"));
    return failure->message;
  };
  CHECK_THAT(message("return nil", "run"),
             Contains("recipe.lua:14: ") && Contains("returned nil, although op '"));
  CHECK_THAT(message("return g:op { kind = 'gelu' }", "run"), Contains("which is not ready"));
  CHECK_THAT(message("return g:ops { kind = 'all_to_all' }[4]", "run"),
             Contains("returned op") && Contains("which is not ready"));
  CHECK_THAT(message("return 1", "run"),
             Contains("returned a number; return one of the ready ops"));
  CHECK_THAT(message("local x = nil; x()", "lua"), Contains("recipe.lua:15: attempt to call"));
}

TEST_CASE("a pick that does not return is stopped at its line, and the run fails", "[signals]") {
  const Folder folder;
  const auto failure =
      run_recipe(folder,
                 kDisciplineModel +
                     "schedule(function(s)\n s:discipline('comm', { pick = function()\n while true "
                     "do end end }) end)",
                 [](HostOptions& o) { o.policy_deadline_s = 0.2; });
  REQUIRE(failure);
  CHECK(failure->kind == "run");
  CHECK_THAT(failure->message, Contains("recipe.lua:15: a call passed the deadline of 0.2 s") &&
                                   Contains("pick of lane 'comm', schedule 'mine'"));
}

TEST_CASE("Lina's priority written in Lua makes the built-in's plan") {
  good_discipline(R"(
    local own = schedule(function(s, g)
      for _, op in ipairs(g:ops { kind = "all_to_all" }) do s:priority(op, 1) end
      for _, op in ipairs(g:ops { kind = "all_reduce", where = function(op)
        return op.inputs[1].bytes > 1000 end }) do
        s:chunk(op, 1000)
      end
      s:discipline("comm", { exclusive = { "comm_reduce" }, hold = function(op, g)
        local from = op:producers()[1]
        return from and from.kind == "combine_dx" and from or nil
      end })
    end)
    local builtin = plan_of { moe.pass.priority {}, moe.pass.chunked { bytes = 1000 } }
    assert(own:simulate().iteration_ms == builtin:simulate().iteration_ms)
    local free = plan_of { moe.pass.priority { hold = false }, moe.pass.chunked { bytes = 1000 } }
    assert(own:info().hash ~= free:info().hash)
  )");
}

TEST_CASE("a discipline that is wrong is refused at its line") {
  CHECK_THAT(bad_apply("s:discipline('com', { pick = 'priority' })"),
             Contains("recipe.lua:13: ") && Contains("unknown lane 'com', have") &&
                 Contains("Did you mean 'comm'?"));
  CHECK_THAT(bad_apply("s:discipline('comm', { pik = 'priority' })"),
             Contains("recipe.lua:13: s:discipline: unknown key 'pik'") &&
                 Contains("Did you mean 'pick'?"));
  CHECK_THAT(bad_apply("s:discipline('comm', { pick = 'priorty' })"), Contains("'priority'?"));
  CHECK_THAT(bad_apply("s:discipline('comm', { pick = 3 })"),
             Contains("pick: a number is not allowed; give \"order\", \"priority\" or a function"));
  CHECK_THAT(bad_apply("s:discipline('compute', { pick = 'priority' })"),
             Contains("recipe.lua:13: lane 'compute' is a compute lane"));
  CHECK_THAT(bad_apply("s:discipline('comm', { exclusive = { 'compute' } })"),
             Contains("recipe.lua:13: lane 'compute' is a compute lane"));
  CHECK_THAT(bad_apply("s:discipline('comm', { exclusive = { 'comm' } })"),
             Contains("recipe.lua:13: exclusive: lane 'comm' is listed twice"));
  CHECK_THAT(bad_apply("s:discipline('comm', {}) s:discipline('comm', { pick = 'priority' })"),
             Contains("lane 'comm' already has a discipline") && Contains("'mine' and 'mine'"));
  CHECK_THAT(bad_apply("s:discipline('comm', { hold = function() end })"),
             Contains("lane 'comm' runs its ops in the schedule's order and is not exclusive"));
  CHECK_THAT(
      bad_apply("s:discipline('comm', { pick = 'priority', hold = function(op) return op end "
                "})"),
      Contains("recipe.lua:13: s:discipline: hold of") && Contains("is not a compute op"));
  CHECK_THAT(
      bad_apply("s:discipline('comm', { pick = 'priority', hold = function(op, g) return "
                "g:op { kind = 'sgd' } end })"),
      Contains("illegal schedule: hold") && Contains("the first op must come before the second"));
  CHECK_THAT(
      bad_discipline("schedule(function(s) s:discipline('comm', {}) end, moe.pass.priority {})"),
      Contains("lane 'comm' already has a discipline") && Contains("'mine' and 'priority'"));
}

TEST_CASE("a chunk or a priority that is wrong is refused at its line") {
  const std::string op = "local op = g:op { kind = 'all_reduce' } ";
  for (const char* bytes : {"0", "-1", "1e12", "0/0", "2.5"}) {
    CHECK_THAT(bad_apply(op + "s:chunk(op, " + bytes + ")"),
               Contains("recipe.lua:13: s:chunk: bytes of 'all_reduce.0': ") &&
                   Contains("is not allowed; give a whole number from 1 to 128"));
  }
  CHECK_THAT(bad_apply(op + "s:chunk(op, 64) s:chunk(op, 32)"),
             Contains("is already cut into chunks of 64 bytes (stages 'mine' and 'mine')"));
  CHECK_THAT(bad_apply("s:chunk(g:op { kind = 'gelu' }, 64)"),
             Contains("is a gelu; only transfers can be cut into chunks"));
  CHECK_THAT(bad_discipline("schedule(function(s, g) " + op +
                            "s:chunk(op, 64) end, moe.pass.chunked { bytes = 100 })"),
             Contains("(stages 'mine' and 'chunked')"));
  CHECK_THAT(bad_apply(op + "s:priority(op, 0.5)"), Contains("s:priority: 0.5 is not allowed"));
}

namespace {

const std::string kDisciplineTrain = R"(
local function train(system, steps)
  return moe.train { model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4,
      seq = 16, batch_per_device = 2, experts = 2 },
    ranks = 2, steps = steps or 3, tokens = "reference", timeout_s = 20, system = system }
end
local reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 }
)";

}  // namespace

TEST_CASE("Lina's variants and a pick in Lua train to the same bits as no overlap at all") {
  good_discipline(kDisciplineTrain + R"(
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
  )");
}

TEST_CASE("a pick that goes wrong in the executor alone ends the run with its line") {
  // A fresh state counts its calls from 0 again: the simulation, which comes first, stays below 40.
  const Folder folder;
  const auto failure = run_recipe(folder, kDisciplineModel + kDisciplineTrain + R"(
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
  CHECK_THAT(failure->message, Contains("recipe.lua:23: ") &&
                                   Contains("pick of lane 'comm_reduce', schedule 'late'") &&
                                   Contains("returned nil, although op '"));
}

TEST_CASE("a schedule whose pick the executor needs stands at the top of the recipe") {
  CHECK_THAT(bad_discipline(kDisciplineTrain + R"(
    train(moe.system "raf" {}, 1)
    local p = moe.policy.schedule { name = "hidden", apply = function(s)
      s:discipline("comm_reduce", { pick = function(ready) return ready[1] end })
    end }
    train(moe.system "late" { p {}, all_reduce = reduce }))"),
             Contains("schedule 'hidden'") && Contains("define it at the top of the recipe"));
}
