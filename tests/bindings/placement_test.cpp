#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "bindings/policy/placement.h"
#include "engine/placement/performance_model.h"
#include "engine/placement/quota.h"
#include "tests/bindings/fixture.h"

using namespace moe;
using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

/// A layer of 4 experts on 2 devices of a node each; expert 1 has most tokens.
struct PlacementTrial {
  PlacementTrial()
      : now({.experts = 4, .devices = 2, .residents = 3, .shadows = 1, .weighted = true}) {
    policy.name = "trial";
    policy.stage.moves_residents = true;
    policy.model = {{"layers", 2}};
    policy.cluster = {{"devices", 2}, {"devices_per_node", 1}};
    loads.rows = {10, 2, 3, 4, 30, 6, 7, 8};
  }
  PlaceInput input() const {
    return {.step = step, .layer = layer, .loads = loads, .now = now, .rates = rates};
  }

  LuaPlacement policy;
  ExpertCounts loads{2, 4};
  Placement now;
  PlacementRates rates{.input_bytes = 8,
                       .expert_bytes = 64,
                       .state_bytes = 32,
                       .a2a_bytes_per_s = 1000,
                       .copy_bytes_per_s = 500,
                       .inputs_per_s = 100,
                       .forward_other_s = 0,
                       .backward_other_s = 0};
  std::optional<Bytes> left;
  std::vector<std::string> log;
  std::function<double(const Placement&)> simulate_ms;
  int64_t step = 3, layer = 1;
};

/// Calls the Lua function text(ctx, load, p, o) on the trial.
Placement place(LibraryState& lua, PlacementTrial& trial, const std::string& body) {
  PlacementTables tables(lua.L(), trial.policy);
  const PlaceInput in = trial.input();
  lua.run("return function(ctx, load, p, o) " + body + " end", 1);
  const PlacementViews views(
      lua.L(),
      {&in, &trial.policy, trial.left, [&](const std::string& why) { trial.log.push_back(why); },
       trial.simulate_ms},
      tables);
  lua_newtable(lua.L());
  call(lua.L(), 4, 1);
  return views.result(lua.L(), -1);
}

Placement placed(const std::string& body) {
  LibraryState lua;
  PlacementTrial trial;
  return place(lua, trial, body);
}

std::string placement_error(const std::string& body, bool moves = true, bool weighted = true) {
  LibraryState lua;
  PlacementTrial trial;
  trial.policy.stage.moves_residents = moves;
  if (!weighted) trial.now = Placement({.experts = 4, .devices = 2, .residents = 3, .shadows = 1});
  try {
    place(lua, trial, body);
  } catch (const UserError& e) {
    return e.what();
  }
  return "(no error)";
}

}  // namespace

TEST_CASE("a policy sees loads, ctx and the cluster from 1") {
  LibraryState lua;
  PlacementTrial trial;
  CHECK_NOTHROW(place(lua, trial, R"(
    assert(load(1, 2) == 30 and load(1) == 40 and load:of_expert(4) == 12)
    assert(load:of_device(1) == 19 and load:total() == 70)
    assert(table.concat(load:by_expert(), ' ') == '40 8 10 12')
    assert(table.concat(load:by_device(), ' ') == '19 51')
    assert(table.concat(load:heaviest(), ' ') == '1 4 3 2')
    assert(ctx.step == 4 and ctx.layer == 2 and ctx.experts == 4 and ctx.devices == 2)
    assert(ctx.model.layers == 2 and ctx.workload == nil and ctx.rates.expert_bytes == 64)
    assert(ctx.cluster:node_of(2) == 2 and ctx.cluster:devices_of(2)[1] == 2)
    assert(ctx.placement:owner(3) == 2)
    ctx:log('seen')
    return p)"));
  CHECK(trial.log == std::vector<std::string>{"seen"});
}

TEST_CASE("edits of p are those of the engine") {
  PlacementTrial trial;
  Placement expected = trial.now;
  expected.add_shadow(0, 1);
  expected.add_resident(1, 1);
  expected.move_owner(2, 0);
  expected.swap_owners(2, 3);
  expected.set_sharing(0, Sharing::kEven);
  CHECK(placed("return p:shadow(1, 2):replicate(2, 2):migrate(3, 1):swap(3, 4):share(1, 'even')") ==
        expected);
  CHECK(placed("p:shadow(1, 2) p:drop(1, 2) p:shadow(2, 2) p:clear_shadows() return p") ==
        trial.now);
  CHECK(placed("local q = p:copy() q:shadow(1, 2) return p") == trial.now);
  CHECK(placed("p:shadow(1, 2) return ctx.placement") == trial.now);
  expected = trial.now;
  expected.add_shadow(0, 1);
  expected.set_sharing(0, Sharing::kWeighted);
  for (const int64_t source : {0, 1}) {
    expected.set_weight(source, 0, 0, source == 0 ? 1 << 20 : 1 << 19);
    expected.set_weight(source, 1, 3, 1 << 20);
  }
  CHECK(placed("p:shadow(1, 2) return p:share(1, function(src, d)\n"
               "return (src == 1 or d == 2) and 0.5 or 0.25 end)") == expected);
}

TEST_CASE("quotas of p are those of the engine, and the owner computes the rest") {
  PlacementTrial trial;
  Placement expected = trial.now;
  expected.add_shadow(0, 1);
  share_by_quota(expected, 0, trial.loads, {{0, 7}, {1, 33}});
  CHECK(placed("return p:shadow(1, 2):quota(1, { [2] = 33 })") == expected);
  CHECK(device_loads(expected, trial.loads).computed == std::vector<int64_t>{7 + 8, 33 + 22});
  CHECK_THAT(placement_error("p:quota(1, { [2] = 1 })"),
             Contains("device 2 does not hold expert 1"));
  CHECK_THAT(placement_error("p:quota(1, { [1] = 1 })"), Contains("device 1 owns expert 1"));
  CHECK_THAT(placement_error("p:quota(1, { [3] = 1 })"), Contains("device 3 is not allowed"));
  const std::string copied = "p:shadow(1, 2) ";
  CHECK_THAT(placement_error(copied + "p:quota(1, { [2] = 41 })"),
             Contains("41 tokens for device 2; give a whole number from 0 to the 40 of"));
  CHECK_THAT(placement_error(copied + "p:quota(1, { [2] = 0.5 })"),
             Contains("0.5 tokens for device 2"));
  CHECK_THAT(placement_error(copied + "p:quota(1, 3)"), Contains("table expected"));
  CHECK_THAT(placement_error(copied + "p:quota(1, { [2] = 3 })", true, false),
             Contains("needs weighted = true"));
}

TEST_CASE("p tells its holders, its rows, its times and what is free") {
  LibraryState lua;
  PlacementTrial trial;
  trial.left = 1000;
  Placement next = trial.now;
  next.add_shadow(0, 1);
  next.add_resident(2, 0);
  const double time = placement_s(TimeEquation::kBlocking, next, trial.loads, trial.rates) * 1e3;
  const double move = move_s(trial.now, next, trial.rates) * 1e3;
  CHECK_NOTHROW(place(lua, trial,
                      fmt::format(R"(
    assert(p:device_load(1) == 48 and p:device_load(2) == 22)
    p:shadow(1, 2) p:replicate(3, 1)
    assert(p:holds(3, 1) and not p:holds(2, 2))
    assert(table.concat(p:holders(1), ' ') == '1 2' and table.concat(p:holders(3), ' ') == '2 1')
    assert(p:device_load(1) == 10 + 8 + 3 and p:device_load(2) == 30 + 7 + 12)
    assert(math.abs(p:time_ms() - {:.17g}) < 1e-9 and math.abs(p:move_ms() - {:.17g}) < 1e-9)
    local shadows, residents = p:free_slots(2)
    assert(shadows == 0 and residents == 1)
    assert(p:free_bytes(1) == 1000 + 64 + 0 * 96 and p:free_bytes(2) == 1000 + 96)
    return p)",
                                  time, move)));
  trial.left.reset();
  CHECK_NOTHROW(place(lua, trial, "assert(p:free_bytes(1) == nil) return p"));
}

TEST_CASE("ctx:simulate tells the time of a step with the placement that it is given") {
  LibraryState lua;
  PlacementTrial trial;
  trial.simulate_ms = [](const Placement& p) { return p.holds(1, 0) ? 2.5 : 4.0; };
  CHECK_NOTHROW(place(lua, trial, R"(
    local q = p:copy():shadow(1, 2)
    assert(ctx:simulate(q) == 2.5 and ctx:simulate(p) == 4 and ctx:simulate(ctx.placement) == 4)
    local ok, message = pcall(ctx.simulate, ctx)
    assert(not ok and tostring(message):find 'placement', message)
    q:share(1, function(s, d) return d == 2 and 1 or 0 end):drop(1, 2)
    ok, message = pcall(ctx.simulate, ctx, q)
    assert(not ok and tostring(message):find 'was given a placement in which no holder of expert 1')
    return p)"));
}

TEST_CASE("ctx:simulate is refused where nothing is simulated") {
  CHECK_THAT(placement_error("return p, ctx:simulate(p)"),
             Contains("ctx:simulate is possible only while the plan is simulated") &&
                 Contains("use p:time_ms() there"));
}

TEST_CASE("a placement that loses an expert, has two owners or does not fit cannot be made") {
  CHECK_THAT(placement_error("p:drop(1, 1)"),
             Contains("device 1 owns expert 1, which would be lost"));
  CHECK_THAT(placement_error("p:drop(1, 2)"), Contains("device 2 does not hold expert 1"));
  CHECK_THAT(placement_error("p:replicate(1, 1)"), Contains("device 1 already holds expert 1"));
  CHECK_THAT(placement_error("p:shadow(1, 2) p:shadow(1, 2)"), Contains("already holds expert 1"));
  CHECK_THAT(placement_error("p:shadow(1, 2) p:shadow(2, 2)"),
             Contains("no free slot for a copy of expert 2 on device 2: its 1 slots for copies"));
  CHECK_THAT(placement_error("p:replicate(1, 2) p:migrate(2, 2)"),
             Contains("no free slot for expert 2 on device 2: its 3 slots for residents"));
  CHECK_THAT(placement_error("p:replicate(1, 2) p:swap(1, 3)"),
             Contains("experts 1 and 3 cannot be swapped"));
  CHECK_THAT(placement_error("ctx.placement:shadow(1, 2)"),
             Contains("ctx.placement cannot be edited"));
  for (const char* edit : {"p:migrate(1, 2)", "p:replicate(1, 2)", "p:swap(1, 3)"}) {
    CHECK_THAT(placement_error(edit, false), Contains("this policy may not move residents"));
  }
  const std::string weights = "p:shadow(1, 2) p:share(1, function() return 0 end)";
  CHECK_THAT(placement_error(weights),
             Contains("all weights of expert 1 for tokens of device 1 are 0"));
  CHECK_THAT(placement_error(weights, true, false), Contains("needs weighted = true"));
  CHECK_THAT(placement_error("p:share(1, function() return -1 end)"),
             Contains("is -1; give a number"));
  CHECK_THAT(placement_error("p:share(1, function() end)"),
             Contains("is nil; give a number from 0 to 1e12"));
  for (const char* edit : {"p:clear_shadows()", "p:drop(1, 2)", "p:share(1, 'even')"}) {
    INFO(edit);
    CHECK_THAT(placement_error("p:shadow(1, 2) p:share(1, function() " + std::string(edit) +
                               " return 1 end)"),
               Contains("the function of p:share cannot edit the placement"));
  }
  CHECK_THAT(placement_error("p:share(1, 'evn')"),
             Contains("'evn' is not allowed; give 'local', 'even'"));
  CHECK_THAT(
      placement_error("p:shadow(1, 2) p:share(1, function(s, d) return d == 2 and 1 or 0 end)\n"
                      "return p:drop(1, 2)"),
      Contains("in which no holder of expert 1 takes the tokens of device 1"));
}

TEST_CASE("ids outside of the layer and what is no placement are refused") {
  CHECK_THAT(placement_error("return p:owner(0)"),
             Contains("expert 0 is not allowed; Lua counts from 1: give 1 to 4"));
  CHECK_THAT(placement_error("return p:shadow(5, 1)"), Contains("expert 5 is not allowed"));
  CHECK_THAT(placement_error("return p:shadow(1, 3)"),
             Contains("device 3 is not allowed; give 1 to 2"));
  CHECK_THAT(placement_error("return load(1.5)"), Contains("expert 1.5 is not allowed"));
  CHECK_THAT(placement_error("return load(1, 3)"), Contains("device 3"));
  CHECK_THAT(placement_error("return ctx.cluster:node_of(3)"), Contains("device 3"));
  CHECK_THAT(placement_error("return ctx.stp"), Contains("Did you mean 'step'?"));
  CHECK_THAT(placement_error("return p.owner(1)"), Contains("is a ':' missing?"));
  CHECK_THAT(placement_error(""), Contains("place() returned nothing; return p"));
  CHECK_THAT(placement_error("return true"), Contains("place() returned a boolean; return p"));
  CHECK_THAT(placement_error("return load"), Contains("place() returned a userdata"));
}

TEST_CASE("what a placement policy keeps is blind once the call is over, ctx.state is not") {
  LibraryState lua;
  PlacementTrial trial;
  PlacementTables tables(lua.L(), trial.policy);
  const PlaceInput in = trial.input();
  {
    lua.run(
        "return function(ctx, load, p) kept = { ctx = ctx, load = load, p = p }\n"
        "ctx.state.n = (ctx.state.n or 0) + 1 seen = ctx.state.n return p end",
        1);
    const PlacementViews views(lua.L(), {&in, &trial.policy, {}, {}}, tables);
    call(lua.L(), 3, 1);
    views.result(lua.L(), -1);
  }
  for (const char* use : {"kept.load(1)", "return kept.ctx.step", "kept.p:owner(1)",
                          "kept.p:copy()", "kept.ctx:log('x')", "kept.load:heaviest()"}) {
    INFO(use);
    CHECK_THROWS_WITH(lua.run(use),
                      Contains("is from a call of a placement policy that has ended"));
  }
  lua.run("return function(ctx) ctx.state.n = ctx.state.n + 1 seen = ctx.state.n return kept.p end",
          1);
  const PlacementViews views(lua.L(), {&in, &trial.policy, {}, {}}, tables);
  call(lua.L(), 3, 1);
  CHECK_THROWS_WITH(views.result(lua.L(), -1), Contains("a placement of an earlier call"));
  CHECK_NOTHROW(lua.run("assert(seen == 2)"));
}

TEST_CASE("a placement's random numbers depend on step and layer alone") {
  LibraryState lua;
  const auto number = [&](int64_t step, int64_t layer) {
    PlacementTrial trial;
    trial.step = step;
    trial.layer = layer;
    place(lua, trial, "ctx:log(tostring(ctx.rng:below(1000000))) out = ctx.rng:uniform() return p");
    lua.run("return out", 1);
    return lua_tonumber(lua.L(), -1);
  };
  CHECK(number(0, 1) == number(0, 1));
  CHECK(number(0, 1) != number(1, 1));
  CHECK(number(0, 1) != number(0, 2));
}

namespace {

const std::string kPlacementHead = R"(local moe = require 'moe'
local function model(more)
  local t = { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 2,
    experts = 4, capacity = 'none', routing = moe.workload 'zipf' { s = 1.5, drift = 0.1 } }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.model.gpt2_moe(t)
end NODE = moe.cluster.p4de { nodes = 1, stack = false }
local function train(system, more)
  return moe.train { model = model(more), ranks = 2, steps = 4, tokens = 'reference',
    system = system }
end
)";

const std::string kTop1 = R"(local top = moe.policy.placement { name = 'top', at = 'layer',
  place = function(ctx, load, p)
    p:clear_shadows()
    local e = load:heaviest()[1]
    for d = 1, ctx.devices do if not p:holds(e, d) then p:shadow(e, d) end end
    ctx:log('expert ' .. e)
    return p
  end }
)";

}  // namespace

TEST_CASE("a Lua policy that copies the heaviest expert places, trains and simulates as top_k") {
  CHECK(message_of(kPlacementHead + kTop1 + R"(
local mine = moe.system 'mine' { top {}, moe.pass.serial {} }
local known = moe.system 'known' { moe.pass.top_k { k = 1, shadows = 1 }, moe.pass.serial {} }
local function same(a, b, experts, copies)
  assert(#a == 4 and #b == 4)
  for step = 1, 4 do
    for i, x in ipairs(a[step]) do
      local y = b[step][i]
      assert(x.layer == 2 and x.copies == copies and x.moves == 0 and x.max_load == y.max_load)
      assert(x.shadows[1].expert == y.shadows[1].expert)
      assert(#x.owners == experts and #x.replicas == 0)
      assert(x.shadows[1].devices[1] == y.shadows[1].devices[1])
      assert(x.max_load_plain == y.max_load_plain and x.log[1] == 'expert ' .. x.shadows[1].expert)
    end
  end
end
local a, b, plain = train(mine), train(known), train(moe.system 'raf' {})
same(a.placements, b.placements, 4, 1)
assert(a.digest == b.digest and a.stop_reason == nil)
for step = 1, 4 do assert(math.abs(a.losses[step] - plain.losses[step]) < 1e-5) end
local function simulate(system)
  return moe.plan { model = model { experts = 8 }, cluster = NODE,
    system = system }:simulate { steps = 4 }
end
local s, t = simulate(mine), simulate(known)
same(s.placements, t.placements, 8, 7)
for step = 1, 4 do assert(s.samples_ms[step] == t.samples_ms[step]) end
)") == "(no error)");
}

TEST_CASE("what ctx:simulate says is what the step takes, and it changes nothing in the run") {
  CHECK(message_of(kPlacementHead + R"(
local function policy(name, at, simulates)
  return moe.policy.placement { name = name, at = at, shadows = 2, place = function(ctx, load, p)
    p:clear_shadows()
    local before = simulates and ctx:simulate(p)
    local q, e = p:copy(), load:heaviest()[ctx.layer]
    for d = 1, ctx.devices do if not q:holds(e, d) then q:shadow(e, d) end end
    if simulates then
      ctx:log(('%.17g'):format(ctx:simulate(q)))
      assert(ctx:simulate(p) == before and ctx:simulate(q) ~= before)
    end
    return q
  end }
end
local function simulate(placement)
  return moe.plan { model = model { experts = 8, layers = 4, rows_bound = 8 },
    cluster = NODE,
    system = moe.system 'x' { placement, moe.pass.serial {} } }:simulate { steps = 3 }
end
local asks, does_not = {}, {}
for _, at in ipairs { 'step', 'layer' } do
  asks[at] = policy(at .. '_asks', at, true)
  does_not[at] = policy(at .. '_does_not', at, false)
end
for at in pairs(asks) do
  local a, b = simulate(asks[at] {}), simulate(does_not[at] {})
  for step = 1, 3 do
    assert(a.samples_ms[step] == b.samples_ms[step])
    -- The last layer of 'layer' knows all loads and placements of the step itself.
    local said = tonumber(a.placements[step][2].log[1])
    assert(at == 'step' or math.abs(said - a.samples_ms[step]) < 1e-9)
  end
end
)") == "(no error)");
}

TEST_CASE(
    "plan:spans shows the step that is asked for, with the copies planned in the one before") {
  CHECK_THAT(message_of(kPlacementHead + R"(
local heaviest = moe.policy.placement { name = 'heaviest', shadows = 1,
  place = function(ctx, load, p)
    p:clear_shadows()
    local e = load:heaviest()[1]
    for d = 1, ctx.devices do if not p:holds(e, d) then p:shadow(e, d) end end
    return p
  end }
local plan = moe.plan { model = model { experts = 8 }, cluster = NODE,
  system = moe.system 'heaviest' { heaviest {}, moe.pass.serial {} } }
local samples = plan:simulate { steps = 3 }.samples_ms
assert(samples[1] ~= samples[3])
for step = 1, 3 do
  local last, copies_ms = 0, 0
  for _, span in ipairs(plan:spans { step = step }) do
    last = math.max(last, span.end_ms)
    if span.kind == 'copy_experts' then copies_ms = copies_ms + span.end_ms - span.begin_ms end
  end
  assert(math.abs(last - samples[step]) < 1e-9, step)
  assert((copies_ms > 0) == (step > 1), step)
end
assert(#plan:spans() == #plan:spans { step = 1 })
local of_first, all = 0, plan:spans { all_ranks = true }
for _, span in ipairs(all) do of_first = of_first + (span.rank == 1 and 1 or 0) end
assert(of_first == #plan:spans() and #all == 8 * of_first)
plan:spans { step = 0 }
)"),
             Contains("spans.step: 0"));
}

TEST_CASE("a policy of the step moves owners every so many steps and shares by a function") {
  CHECK(message_of(kPlacementHead + R"(
local turn = moe.policy.placement { name = 'turn', every = 2, shadows = 1, weighted = true,
  place = function(ctx, load, p)
    ctx.state.calls = (ctx.state.calls or 0) + 1
    ctx:log('call ' .. ctx.state.calls)
    p:clear_shadows():swap(1, 4)
    local to = 3 - p:owner(2)
    return p:shadow(2, to):share(2, function(src, d) return d == src and 3 or 1 end)
  end }
local r = train(moe.system 'turn' { turn {} })
local plain = train(moe.system 'raf' {})
for step = 1, 4 do
  local p = r.placements[step][1]
  local turned = step == 2 or step == 3
  assert(p.owners[1] == (turned and 2 or 1) and p.owners[4] == (turned and 1 or 2))
  assert(p.moves == ((step == 2 or step == 4) and 2 or 0))
  assert(p.copies == (step == 1 and 0 or 1))
  assert((p.log and p.log[1]) == (step == 1 and 'call 1' or step == 3 and 'call 2' or nil))
  assert(math.abs(r.losses[step] - plain.losses[step]) < 1e-5)
end
)") == "(no error)");
}

// Trains in float64 on four ranks; plain: without a placement.
const std::string kInF64 = R"(
local function train(system)
  return moe.train { model = model { experts = 8, k = 2, gate = 'top_k' }, ranks = 4, steps = 4,
    tokens = 'reference', precision = 'f64', system = system }
end
local plain = train(moe.system 'raf_rows' {})
)";

TEST_CASE("the library's methods plan from the exact load of each layer, and change no result") {
  CHECK(message_of(kPlacementHead + kInF64 + R"(
for _, name in ipairs { 'ultraep', 'echo', 'llep', 'lplb', 'moonep' } do
  local options = name == 'llep' and { factor = 1, min_tokens = 1, ratio = 1 } or {}
  local r = train(moe.system(name) { moe.pass[name](options), moe.pass.serial {} })
  local copies = 0
  for step = 1, 4 do
    local p = r.placements[step][1]
    copies = copies + p.copies
    assert(p.moves == 0 and p.max_load <= p.max_load_plain, name)
    assert(math.abs(r.losses[step] - plain.losses[step]) < 1e-9, name)
  end
  assert(copies > 0, name .. ' copies nothing')
end
)") == "(no error)");
}

TEST_CASE("the methods' copies and rows are as many bytes executed as simulated, op by op") {
  CHECK(message_of(kPlacementHead + R"(
local function bytes(of, step)
  local sum = {}
  for _, s in ipairs(of:spans { step = step, all_ranks = true }) do
    local key = s.op .. ' of rank ' .. s.rank
    sum[key] = (sum[key] or 0) + s.bytes
  end
  return sum
end
for _, name in ipairs { 'ultraep', 'echo', 'moonep', 'llep', 'lplb', 'flexmoe', 'laer' } do
  local plan = moe.plan { model = model { experts = 8, k = 2, gate = 'top_k', dtype = 'f32' },
    system = moe.system(name) {}, cluster = moe.cluster.custom { nodes = 2, devices_per_node = 2,
      device = { gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e11 },
      intra = { bytes_per_s = 1e10, latency_us = 3 },
      nic = { bytes_per_s = 1e9, latency_us = 9 } } }
  local r = plan:run('cpu', { steps = 4, tokens = 'reference' })
  local moved = 0
  for step = 1, 4 do
    local ran, planned = bytes(r, step), bytes(plan, step)
    for key, n in pairs(ran) do
      assert(planned[key] == n, ('%s, step %d, %s: %s, planned %s'):format(name, step, key, n,
        planned[key]))
      if key:find 'copy' or key:find 'migrate' then moved = moved + n end
    end
  end
  assert(moved > 0, name)
end
)") == "(no error)");
}

TEST_CASE("copies of fixed shapes cost their padding in simulations, and are not executed") {
  CHECK(message_of(kPlacementHead + R"(
local function ms(options)
  return moe.plan { model = model { experts = 8, k = 2, gate = 'top_k', seq = 512 },
    cluster = moe.cluster.h100 { nodes = 1 }, system = moe.system 'echo' { moe.pass.echo(options) }
  }:simulate { steps = 1 }.iteration_ms
end
local small, large = ms { static_rows = 1000 }, ms { static_rows = 1000000 }
assert(small >= ms {} and large > 2 * small, small .. ' ' .. large)
local ok, err = pcall(train, moe.system 'x' { moe.pass.echo { static_rows = 64 } })
assert(err.kind == 'stop' or err.message:find('static_rows = 64 is possible in simulations only'),
  err.message)
ok, err = pcall(moe.pass.laer, { static_rows = 64 })
assert(err.message:find('static_rows: 64 has no effect with shadows = 0'), err.message)
)") == "(no error)");
}

TEST_CASE("the time of plans is charged to simulated steps, in the layer or at the end") {
  CHECK(message_of(kPlacementHead + R"(
local function ms(name, options)
  return moe.plan { model = model { experts = 8, k = 2, gate = 'top_k', layers = 2 },
    cluster = moe.cluster.h100 { nodes = 1 }, system = moe.system(name) { moe.pass[name](options),
      moe.pass.serial {} } }:simulate { steps = 1 }.iteration_ms
end
for name, options in pairs { echo = { shadows = 1 }, laer = { extra_residents = 1 },
    eplb = { extra_residents = 1 }, top_k = { shadows = 3 } } do
  local function at(us, every)
    return ms(name, { shadows = options.shadows, extra_residents = options.extra_residents,
      plan_us = us, every = every })
  end
  assert(at(1000) > at(0) and math.abs(at(1500) - at(1000) - 0.5 * (at(1000) - at(0))) < 1e-9, name)
  assert(math.abs(at(1000, 4) - at(250)) < 1e-9, name)
end
assert(math.abs(ms('echo', { plan_us = 90 }) - ms('echo', {})) < 1e-9, 'as long as UltraEP plans')
local ok, err = pcall(moe.pass.echo, { plan_us = -1 })
assert(err.message:find('plan_us = -1', 1, true) or err.message:find('plan_us: -1', 1, true),
  err.message)
)") == "(no error)");
}

TEST_CASE("the library's layouts move experts between steps, and change no result") {
  CHECK(message_of(kPlacementHead + kInF64 + R"(
for _, name in ipairs { 'flexmoe', 'laer' } do
  local r = train(moe.system(name) { moe.pass[name] {}, moe.pass.serial {} })
  local moves = 0
  for step = 1, 4 do
    local p = r.placements[step][1]
    moves = moves + p.moves
    assert(p.copies == 0 and (step > 1 or p.max_load == p.max_load_plain), name)
    assert(math.abs(r.losses[step] - plain.losses[step]) < 1e-9, name)
  end
  assert(moves > 0, name .. ' moves nothing')
end
)") == "(no error)");
}

TEST_CASE("a layout that does not fit names the expert or the device") {
  const auto refused = [](const std::string& holders) {
    return message_of(kPlacementHead + R"(
local p = moe.policy.placement { name = 'l', at = 'step', extra_residents = 1,
  place = function(ctx, load, p)
    return p:layout()" +
                      holders + R"() end }
train(moe.system 'x' { p {} })
)");
  };
  CHECK_THAT(refused("{}"), Contains("p:layout: expert 1 has no list of devices"));
  CHECK_THAT(refused("{ { 1 }, {} }"), Contains("p:layout: expert 2 has no list of devices"));
  CHECK_THAT(refused("{ { 1, 1 } }"), Contains("p:layout: expert 1 is on device 1 twice"));
  CHECK_THAT(refused("{ { 3 } }"), Contains("device 3"));
  CHECK_THAT(refused("{ { 1 }, { 1 }, { 1 }, { 1 } }"), Contains("p:layout: device 1 gets more"));
}

TEST_CASE("a run says how far the planner's model is from its spans, with every sample") {
  CHECK(message_of(kPlacementHead + R"(
local copies = moe.policy.placement { name = 'copies', shadows = 1, place = function(ctx, load, p)
  return p:clear_shadows():shadow(2, 3 - p:owner(2))
end }
local r = train(moe.system 'copies' { copies {} })
local expected = { a2a = 4, experts = 2, trans = 1, agg = 1 }  -- a step
for op, each in pairs(expected) do
  local e, sum, num = r.planner_error[op], 0, 0
  for i, step in ipairs(e.samples.step) do
    assert(e.samples.layer[i] == 2 and e.samples.phase[i]:match 'ward$')
    local estimated, real = e.samples.estimated_ms[i], e.samples.real_ms[i]
    if step > 1 then sum, num = sum + math.abs(estimated - real) / real, num + 1 end
  end
  assert(num == 3 * each and e.num == num and math.abs(e.error - sum / num) < 1e-9)
  local first = each > 1 and 1 or 2  -- no copies yet
  assert(e.samples.step[1] == first and #e.samples.step == (5 - first) * each)
end
assert(train(moe.system 'raf' {}).planner_error == nil)
)") == "(no error)");
}

TEST_CASE("a policy that fails in the middle of a run ends it with its line, after the step") {
  const std::string message = message_of(kPlacementHead + R"(
local p = moe.policy.placement { name = 'tired', place = function(ctx, load, p)
  if ctx.step == 3 then
    error 'oh no'
  end
  return p end }
local ok, err = pcall(train, moe.system 'x' { p {} })
assert(err.kind == 'stop' or err.kind == 'run' and #err.result.losses == 3)
assert(err.kind == 'stop' or err.result.stop_reason == err.message)
error(err, 0)
)");
  CHECK_THAT(message, Contains("placement 'tired', rank 0, step 2, layer 1: ") &&
                          Contains("recipe.lua:15: oh no"));
}

TEST_CASE("what place() returns is checked at the line where it stands") {
  CHECK_THAT(message_of(kPlacementHead + "local p = moe.policy.placement { name = 'nil', place =\n"
                                         "  function() end }\ntrain(moe.system 'x' { p {} })"),
             Contains("recipe.lua:13: place() returned nothing; return p"));
}

TEST_CASE("two placements are refused with their names") {
  CHECK_THAT(
      message_of(kPlacementHead + kTop1 + "train(moe.system 'x' { moe.pass.swap {}, top {} })"),
      Contains("stage 'swap' has already placed the experts") && Contains("'top'"));
}

TEST_CASE("a placement that ranks do not find is named as such") {
  CHECK_THAT(message_of(kPlacementHead + "train(moe.system 'raf' {})\n" + kTop1 +
                        "train(moe.system 'x' { top {} })"),
             Contains("placement 'top', rank") && Contains("is not defined where a rank"));
}

TEST_CASE("a simulation's times are means over its steps, so that moves of experts count") {
  CHECK(message_of(kPlacementHead + R"(
local moving = moe.policy.placement { name = 'moving', shadows = 1,
  place = function(ctx, load, p)
    p:clear_shadows()
    local e = load:heaviest()[1]
    for d = 1, ctx.step % 4 == 0 and ctx.devices or 0 do
      if not p:holds(e, d) then p:shadow(e, d) end
    end
    return p
  end }
local p = moe.plan { model = model { experts = 8 }, cluster = NODE,
  system = moe.system 'moving' { moving {}, moe.pass.serial {} } }
for _, steps in ipairs { 1, 8, 9 } do
  local sim = p:simulate { steps = steps }
  local samples, sum = sim.samples_ms, 0
  for _, ms in ipairs(samples) do sum = sum + ms end
  assert(math.abs(sim.iteration_ms - sum / steps) < 2e-6, sim.iteration_ms)
  assert(sim.compute_ms + sim.exposed_comm_ms < sim.iteration_ms + 2e-6)
  assert(sim.lower_bound_ms <= sim.iteration_ms and sim.statistic == 'mean')
  assert((steps == 1) == (sim.median_ms == sim.iteration_ms))
  assert(sim.load_imbalance > 1)
end
)") == "(no error)");
}
