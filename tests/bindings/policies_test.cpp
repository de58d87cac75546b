// Passes and schedules in Lua, on the plan of a small model.
#include <catch2/catch.hpp>

#include "bindings/host/userdata.h"
#include "bindings/policy/graph_session.h"
#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

const std::string kPolicyModel = R"(
local moe = require "moe"
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 32,
  batch_per_device = 2, experts_per_device = 1 }
local cluster = moe.cluster.p4de { nodes = 1 }
local function plan(pass)
  return moe.plan { model = model, cluster = cluster, system = moe.system "mine" { pass } }
end
local function schedule(apply)
  return plan(moe.policy.schedule { name = "mine", apply = apply } {})
end
local function step_pass(apply)
  return plan(moe.policy.pass { name = "mine", at = "step", apply = apply } {})
end
local function contains(list, name)
  for i, n in ipairs(list) do if n == name then return i end end
end
)";

void good_policy(const std::string& text) {
  const std::string message = message_of(kPolicyModel + text);
  CHECK(message == "(no error)");
}

std::string bad_policy(const std::string& text) {
  return message_of(kPolicyModel + text);
}

int nothing(lua_State*) {
  return 0;
}

}  // namespace

TEST_CASE("ops are found by what they are") {
  good_policy(R"(schedule(function(s, g)
    local all = g:ops()
    local fwd = g:ops { kind = "all_to_all", phase = "forward" }
    assert(#fwd == 4, #fwd)
    assert(#g:ops { kind = "all_to_all", phase = "forward", layer = 2 } == 2)
    assert(#g:ops { kind = "all_to_all", layer = 1 } == 0)
    for _, op in ipairs(g:ops { dw = true }) do assert(op.dw and op.phase == "backward") end
    local heavy = g:ops { where = function(op) return op.flops > 1e6 end }
    assert(#heavy > 0 and #heavy < #all)
    local a2a = fwd[1]
    assert(a2a == g:op(a2a.name) and a2a == g:op { name = a2a.name })
    assert(a2a.lane == "comm" and a2a.seg == "dispatch" and a2a.layer == 2 and a2a.part == nil)
    assert(a2a.cost_ms > 0 and a2a.bytes > 0 and not a2a.dw and tostring(a2a) == a2a.name)
    local p = a2a:producers()
    assert(#p >= 1 and contains(p, p[1]))
    for _, op in ipairs(p) do assert(contains(op:consumers(), a2a)) end
    assert(#a2a.outputs[1].shape == 4 and a2a.outputs[1].bytes > 0)
    assert(a2a:attr "to" == "expert" and a2a:attr "no" == nil)
  end))");
}

TEST_CASE("wrong questions about ops are answered at their line") {
  CHECK_THAT(bad_policy("schedule(function(s, g)\n g:ops { knd = 'gate' } end)"),
             Contains("recipe.lua:19: g:ops: unknown key 'knd'") && Contains("'kind'"));
  CHECK_THAT(bad_policy("schedule(function(s, g) g:ops { kind = 'gat' } end)"), Contains("'gate'"));
  CHECK_THAT(bad_policy("schedule(function(s, g) g:ops { seg = 'atn' } end)"), Contains("'attn'"));
  CHECK_THAT(bad_policy("schedule(function(s, g) g:ops { phase = 'back' } end)"),
             Contains("backward"));
  CHECK_THAT(bad_policy("schedule(function(s, g) g:op 'nothing' end)"),
             Contains("the graph has no op 'nothing'"));
  CHECK_THAT(bad_policy("schedule(function(s, g) return g:ops()[1].cost end)"),
             Contains("unknown field of an op 'cost'"));
  CHECK_THAT(bad_policy("schedule(function(s, g) s:before(g:ops()[1]) end)"),
             Contains("argument 2: nothing is given, but an op is needed"));
  CHECK_THAT(bad_policy("schedule(function(s, g) g:remove(g:ops()[1]) end)"),
             Contains("a schedule policy cannot edit the graph"));
}

TEST_CASE("handles are refused once the policy's call is over") {
  CHECK_THAT(
      bad_policy("local kept\nschedule(function(s, g) kept = g:ops()[1] end)\nprint(kept.name)"),
      Contains("recipe.lua:20: this handle is from a call of a policy that has ended"));
  CHECK_THAT(bad_policy("local kept\nschedule(function(s, g) kept = g end)\nkept:ops()"),
             Contains("has ended"));
  CHECK_THAT(bad_policy("local kept\nschedule(function(s, g) kept = s end)\nkept:lane()"),
             Contains("has ended"));
}

TEST_CASE("before, sequence and under order the lanes; free sees data and order edges") {
  good_policy(R"(
    local first, second, hidden, a2a
    local p = schedule(function(s, g, ctx)
      local back = g:ops { kind = "all_to_all", phase = "backward" }
      a2a = back[1].name
      local free = g:ops { dw = true, where = function(op) return s:free(op, back[1]) end }
      assert(#free > 1)
      for _, op in ipairs(back[1]:producers()) do assert(not s:free(op, back[1])) end
      assert(not s:free(back[1], back[1]))
      s:under(free[1], back[1])
      assert(s:free(free[1], back[1]), "under leaves the two side by side")
      hidden = free[1].name
      local a, b = free[2], free[3]
      if s:free(a, b) then
        s:before(b, a)
        assert(not s:free(a, b) and not s:free(b, a))
        first, second = b.name, a.name
      end
      ctx.log(free[1], "longest")
      ctx:log(free[2], "again")
      assert(ctx.cost_ms(free[1]) == free[1].cost_ms and ctx:cost_ms(free[1]) > 0)
      assert(ctx.model.layers == 4 and ctx.cluster.devices == 8)
    end)
    local order = p:order "compute"
    if first then assert(contains(order, first) < contains(order, second)) end
    assert(p:explain().text:find(hidden .. "  [mine]  longest", 1, true), p:explain().text)
  )");
}

TEST_CASE("an op goes only onto a lane that runs its kind") {
  CHECK_THAT(bad_policy("schedule(function(s, g)\n s:lane(g:op { kind = 'gate' }, 'comm') end)"),
             Contains("recipe.lua:19: illegal schedule") && Contains("lane 'comm'") &&
                 Contains("(in schedule 'mine')"));
  CHECK_THAT(bad_policy("schedule(function(s, g) s:lane(g:op { kind = 'gate' }, 'com') end)"),
             Contains("comm"));
  CHECK_THAT(bad_policy("schedule(function(s, g) s:under(g:ops()[1], g:ops()[2]) end)"),
             Contains("is not a collective"));
}

TEST_CASE("a pass may insert, redirect and remove") {
  good_policy(R"(
    local p = step_pass(function(g)
      local op = g:op { kind = "gelu", phase = "forward", layer = 1 }
      local again = g:insert { kind = "gelu", name = "mine.gelu", inputs = op.inputs,
        phase = "forward", seg = op.seg, layer = op.layer }
      assert(again.name == "mine.gelu" and again.layer == op.layer and again.seg == op.seg)
      g:redirect(op, again)
      g:remove(op)
    end)
    assert(contains(p:order "compute", "mine.gelu"))
  )");
  CHECK_THAT(
      bad_policy("step_pass(function(g) local op = g:ops()[1] g:remove(op) print(op.name) end)"),
      Contains("was removed from the graph"));
  CHECK_THAT(
      bad_policy("step_pass(function(g) g:insert { kind = 'ad', name = 'x', inputs = {} } end)"),
      Contains("Did you mean 'add'?"));
  for (const char* const factor : {"true", "0 / 0", "1 / 0", "{}", "print"}) {
    const std::string with = std::string("attrs = { factor = ") + factor + " } } end)";
    CHECK_THAT(bad_policy("step_pass(function(g) g:insert { kind = 'scale', name = 'x', inputs = "
                          "{ g:ops()[1] }, " +
                          with),
               Contains("g:insert: attrs.factor: ") &&
                   Contains("is not allowed; give a finite number or a text"));
  }
}

TEST_CASE("attributes that are no table are refused") {
  CHECK_THAT(bad_policy("step_pass(function(g) g:insert { kind = 'gelu', name = 'x', inputs = "
                        "{ g:ops()[1] }, attrs = 'factor' } end)"),
             Contains("g:insert: attrs: a string is not allowed; give a table of attributes"));
}

TEST_CASE("an op without outputs is no tensor") {
  for (const char* const body :
       {"g:redirect(g:ops()[1], update)", "g:redirect(update, g:ops()[1])",
        "g:insert { kind = 'gelu', name = 'x', inputs = { update } }",
        "g:split({ update, g:ops()[1] }, { axis = 1, parts = 2, try = true })"}) {
    CHECK_THAT(
        bad_policy(std::string("step_pass(function(g) local update = g:op { kind = 'sgd' } ") +
                   body + " end)"),
        Contains("sgd' has no output, which is needed here"));
  }
}

TEST_CASE("a pass may split a chain into parts, or learn why not") {
  good_policy(R"(
    local p = step_pass(function(g)
      local op = g:op { kind = "gelu", phase = "forward", layer = 1 }
      local parts = assert(g:split({ op }, { axis = 2, parts = 4 }))
      assert(#parts == 4 and #parts[1] == 1 and parts[3][1].part == 3)
      assert(parts[1][1].outputs[1].shape[2] == 8)
      local again = g:split(parts[1], { axis = 2, parts = 2 })
      assert(again[2][1].name:match "%.p0%.p1$" and again[2][1].part == 2)
      local layer = g:ops { kind = "linear", phase = "forward", layer = 1 }
      local unlike = { layer[1], layer[2] }  -- the attention's input and output, of other widths
      local none, why = g:split(unlike, { axis = 3, parts = 2, try = true })
      assert(none == nil and type(why) == "string")
    end)
    local order = table.concat(p:order "compute", " ")
    local _, n = order:gsub("gelu%.p%d", "")
    assert(n == 7, n)  -- with the split and the concat of the part that is cut again
  )");
  CHECK_THAT(
      bad_policy("step_pass(function(g) g:split(g:ops { kind = 'gate' }, { axis = 9, parts = 2 }) "
                 "end)"),
      Contains("axis = 9"));
  for (const char* const sizes : {"axis = 2.9, parts = 2", "axis = 2^32 + 2, parts = 2",
                                  "axis = 2, parts = 2.9", "axis = 2, parts = '2'"}) {
    const std::string with = std::string("{ ") + sizes + " }) end)";
    CHECK_THAT(bad_policy("step_pass(function(g) g:split({ g:op { kind = 'gelu', phase = 'forward' "
                          "} }, " +
                          with),
               Contains("is not allowed; give 1 to"));
  }
  CHECK_THAT(
      bad_policy("step_pass(function(g) g:split(g:ops { kind = 'gelu' }, { axes = 1 }) end)"),
      Contains("g:split: unknown key 'axes'") && Contains("Did you mean 'axis'?"));
}

TEST_CASE("a pass in Lua runs after the passes that give what it needs, wherever it is listed") {
  good_policy(R"(
    local seen
    local mine = moe.policy.pass { name = "mine", at = "forward", needs = { "counts" },
      apply = function(g) seen = g:op("b1.moe.a2a_1"):attr "irregular" end }
    moe.plan { model = model, cluster = cluster,
      system = moe.system "mine" { mine {}, moe.pass.irregular_a2a {} } }
    assert(seen == 1, seen))");
  CHECK_THAT(bad_policy("moe.policy.pass { name = 'mine', at = 'forward', needs = { 'count' },\n"
                        "  apply = function(g) end }"),
             Contains("needs") && Contains("'count'") && Contains("counts"));
}

TEST_CASE("an inserted op is where its neighbours are, unless it is said or they differ") {
  good_policy(R"(
    step_pass(function(g)
      local dw = g:op { dw = true, phase = "backward", where = function(op) return op.layer end }
      local after = g:insert { kind = "gelu", name = "after.dw", inputs = { dw } }
      for _, field in ipairs { "phase", "seg", "layer", "dw" } do
        assert(after[field] == dw[field], field)
      end
      assert(after.dw and after.phase == "backward")
      local said = g:insert { kind = "gelu", name = "said", inputs = { dw }, phase = "update",
        seg = "update", layer = false, dw = false }
      assert(said.phase == "update" and said.seg == "update" and not said.layer and not said.dw)
      local gelu = g:op { kind = "gelu", phase = "forward", layer = 2 }
      local also = g:insert { kind = "gelu", name = "also", inputs = gelu.inputs }
      assert(also.phase == "forward" and also.layer == 2 and also.seg == gelu.seg)
    end)
  )");
  const auto refused = [](const std::string& fields) {
    return bad_policy(
        "step_pass(function(g)\n"
        "  local a = g:op { kind = 'gelu', phase = 'forward', layer = 1 }\n"
        "  local b = g:op { kind = 'gelu', phase = 'forward', layer = 2 }\n"
        "  g:insert { kind = 'add', name = 'x', inputs = { a, b }" +
        fields + " }\nend)");
  };
  CHECK_THAT(refused(", seg = 'mlp'"),
             Contains("recipe.lua:21: g:insert: 'x': layer is not given") && Contains("has 1") &&
                 Contains("2; give layer"));
  CHECK_THAT(refused(", seg = 'mlp', layer = 0"), Contains("layer 0 is not allowed; Lua counts"));
  CHECK_THAT(refused(", lyer = 1"), Contains("unknown key 'lyer'") && Contains("'layer'"));
}

TEST_CASE("a name that a handle does not have is answered with those it has") {
  CHECK_THAT(bad_policy("step_pass(function(g) g:opps {} end)"),
             Contains("unknown method of a graph 'opps'") && Contains("Did you mean 'ops'?"));
  CHECK_THAT(bad_policy("schedule(function(s) s:befor() end)"),
             Contains("unknown method of a schedule 'befor', have: before, chunk"));
  CHECK_THAT(bad_policy("step_pass(function(g) g:ops()[1]:consumer() end)"),
             Contains("unknown field of an op 'consumer'") && Contains("'consumers'"));
  CHECK_THAT(bad_policy("step_pass(function(g, ctx) ctx.rng:bellow(3) end)"),
             Contains("unknown method of a rng 'bellow'") && Contains("'below'"));
  CHECK_THAT(bad_policy("step_pass(function(g, ctx) ctx:lgo(g:ops()[1], 'x') end)"),
             Contains("unknown method of a policy context 'lgo'") && Contains("'log'"));
  CHECK_THAT(bad_policy("step_pass(function(g) g:ops()[1].name = 'x' end)"),
             Contains("an op cannot be changed by assigning to"));
  CHECK_THAT(bad_policy("step_pass(function(g) g:ops { layer = 0 } end)"),
             Contains("g:ops: layer 0 is not allowed; Lua counts from 1"));
}

TEST_CASE("what recipes get has the fields and the types that are documented") {
  const std::string text = moe::read_file(MOE_SOURCE_DIR "/tests/bindings/documented.lua");
  CHECK(message_of(text, [](HostOptions& options) { options.trust = true; }) == "(no error)");
}

TEST_CASE("no handle shows an address") {
  CHECK_THAT(bad_policy(R"(schedule(function(s, g, ctx)
    error(("%s, %s, %s, %s"):format(s, g, g:ops()[1].outputs[1], ctx.rng))
  end))"),
             Contains("schedule, graph, tensor, rng"));
}

TEST_CASE("what a policy's ctx has of the model and the cluster is what is documented") {
  std::string of_model;
  const auto names_of = [](const nlohmann::json& table) {
    std::string names;
    for (const auto& [name, value] : table.items()) names += (names.empty() ? "" : " ") + name;
    return names;
  };
  {
    LibraryState state;
    state.run(R"(require "moe"; documented = {}
    for _, t in ipairs(require("moe.topics").all()) do
      local names = {}
      for _, m in ipairs(t.members) do
        if not m.method then names[#names + 1] = m.name end
      end
      table.sort(names)
      documented[t.name] = table.concat(names, " ")
    end)");
    of_model = state.text_of("documented.context_model");
    CHECK(state.text_of("documented.context_cluster") == names_of(cluster_table({})));
  }
  good_policy(
      "local names = ' " + of_model +
      " '\nstep_pass(function(g, ctx)\n"
      "  for name in names:gmatch '%S+' do assert(ctx.model[name] ~= nil, name) end\n"
      "  for name in pairs(ctx.model) do assert(names:find(' ' .. name .. ' ', 1, true), name) "
      "end\n"
      "end)");
}

TEST_CASE("a type whose member has no doc, no type or no function is refused with its name") {
  LibraryState state;
  const auto message_of_type = [&](const Member& member) -> std::string {
    try {
      declare_type({"lamp", "lamp", "a light", std::span(&member, 1)});
    } catch (const moe::InternalError& e) {
      return e.what();
    }
    return "(no error)";
  };
  CHECK_THAT(message_of_type({"shine", "()", "", nothing}),
             Contains("'shine' of the table of members of a lamp has no doc"));
  CHECK_THAT(message_of_type({"shine", "", "gives light", nothing}),
             Contains("member 'shine' of a lamp: its type must not be empty"));
  CHECK_THAT(message_of_type({"shine", "()", "gives light", nullptr}),
             Contains("must not be null"));
  CHECK(message_of_type({"shine", "()", "gives light", nothing}) == "(no error)");
}

TEST_CASE("a policy that changes nothing says so, with the reason that it gives") {
  const auto reason = [](const std::string& policy, const std::string& is) {
    good_policy(
        "local p = " + policy +
        "\nlocal all = p:info().without_effect\n"
        "assert(#all == 1 and all[1].stage == 'mine', #all)\n"
        "assert(all[1].reason:find('" +
        is +
        "', 1, true), all[1].reason)\n"
        "assert(p:explain().text:find('without effect\\n  mine: ' .. all[1].reason, 1, true))");
  };
  reason("step_pass(function() end)", "function changed nothing in the graph");
  reason("schedule(function() end)", "function changed nothing in the schedule");
  reason("schedule(function(s, g, ctx) ctx:skip('too short') end)", "too short");
  reason("step_pass(function(g, ctx) ctx:skip('too short', g:ops()[1]) end)", ": too short");
  reason("schedule(function(s, g) s:priority(g:op { kind = 'all_to_all' }, 1) end)",
         "these ops are on lanes that run in order");
  reason("schedule(function(s, g) local a = g:ops() s:before(a[1], a[#a]) end)",
         "the simulated step is the same without it");
  good_policy(R"(
    local p = schedule(function(s, g) s:sequence(g:ops()) end)
    assert(#p:info().without_effect == 0)
    assert(p:info().stages[1].changes.order_edges > 10)
  )");
}

TEST_CASE("a policy's error names its line and the policy") {
  CHECK_THAT(bad_policy("schedule(function(s, g)\n local x = nil; x() end)"),
             Contains("recipe.lua:19: attempt to call") && Contains("(in schedule 'mine')"));
}

TEST_CASE("a policy that does not return is stopped at its line, and the run fails", "[signals]") {
  const Folder folder;
  const auto quick = [](HostOptions& o) { o.policy_deadline_s = 0.2; };
  for (const char* wait : {"while true do end", "while true do pcall(error) end"}) {
    const auto failure =
        run_recipe(folder, kPolicyModel + "schedule(function(s, g)\n " + wait + " end)", quick);
    REQUIRE(failure);
    CHECK(failure->kind == "run");
    CHECK_THAT(failure->message, Contains("recipe.lua:19: a call passed the deadline of 0.2 s") &&
                                     Contains("(in schedule 'mine')"));
  }
}

TEST_CASE("a policy's random numbers are the same on every run and follow the seed") {
  const std::string draw = "schedule(function(s, g, ctx) error(ctx.rng:uniform() .. '', 0) end)";
  const auto other = [](HostOptions& o) { o.seed = 2; };
  const std::string once = bad_policy(draw);
  CHECK_THAT(once, Contains("0.") && Contains("(in schedule 'mine')"));
  CHECK(bad_policy(draw) == once);
  CHECK(message_of(kPolicyModel + draw, other) != once);
}
