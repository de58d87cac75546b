// The program itself: exit statuses, files, interrupts, ranks that evaluate the recipe again.
#include <signal.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

struct Outcome {
  int status;
  std::string text;
};

Outcome run(const std::string& arguments) {
  FILE* pipe = popen((std::string(MOEBENCH_BINARY) + " " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text};
}

Outcome run_text(const Folder& folder, const std::string& text, const std::string& more = "") {
  const std::string recipe = folder.write("recipe.lua", text);
  return run("run " + recipe + " --out " + folder.path("out") + " --cache :memory: " + more);
}

const std::string kTiny = R"(local moe = require "moe"
local function model(gate)
  return moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16,
    batch_per_device = 2, experts = 4, gate = gate or "switch" }
end
local function train(gate, steps)
  return moe.train { model = model(gate), ranks = 2, steps = steps or 3, tokens = "reference" }
end
)";

/// Starts the program and, `after_ms` after `file` is there, sends SIGINT as timeout does: twice.
Outcome interrupt(const std::vector<std::string>& arguments, const std::string& file, int after_ms,
                  const Folder& folder) {
  const std::string log = folder.path("log");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (freopen(log.c_str(), "w", stderr) == nullptr) _exit(99);
    std::vector<char*> argv = {const_cast<char*>(MOEBENCH_BINARY)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    execv(MOEBENCH_BINARY, argv.data());
    _exit(99);
  }
  using std::chrono::milliseconds;
  for (int i = 0; i < 6000 && !fs::exists(file); ++i) std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(milliseconds(after_ms));
  kill(child, SIGINT);
  std::this_thread::sleep_for(milliseconds(20));
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(log)};
}

}  // namespace

TEST_CASE("a recipe that does nothing at all is an error") {
  const Folder folder;
  for (const char* text :
       {"", "local x = 1", "local moe = require 'moe'", "return nil",
        "local moe = require 'moe'\nlocal m = moe.model.gpt2_moe { vocab = 256, layers = 2, "
        "hidden = 16, heads = 2, seq = 8, batch_per_device = 1, experts = 2 }"}) {
    const Outcome o = run_text(folder, text);
    INFO(text << "\n" << o.text);
    CHECK(o.status == 1);
    CHECK_THAT(o.text, Contains("recipe.lua") && Contains("return the experiment"));
  }
  const Outcome made = run_text(folder, kTiny +
                                            "local E = moe.experiment { name = 'mine', "
                                            "model = model(), systems = { moe.system 'raf' {} "
                                            "} }\nprint 'made'");
  INFO(made.text);
  CHECK(made.status == 1);
  CHECK_THAT(made.text, Contains("experiment 'mine'") && Contains("return it"));
  CHECK(run_text(folder,
                 "local moe = require 'moe'\nassert(moe.pipemoe.degree { alpha_a = 2e-4, "
                 "beta_a = 3e-10, n_d = 1e7, alpha_e = 1e-4, beta_e = 8e-14, n_e = 1e10, "
                 "max_degree = 64, method = 'exact' }.degree > 0)")
            .status == 0);
}

TEST_CASE("an error is printed once, with the recipe's name as it was typed") {
  const Folder folder;
  folder.write("recipe.lua", "\nerror 'mine'");
  const Outcome o = run("run " + folder.path("recipe.lua") + " --out " + folder.path("out"));
  CHECK_THAT(o.text, Contains("moebench: " + folder.path("recipe.lua") + ":2: mine"));
  CHECK(o.text.find("mine") == o.text.rfind("mine"));
}

TEST_CASE("an output folder that cannot be written is refused before the recipe runs") {
  const Folder folder;
  const std::string recipe = folder.write("recipe.lua", "print 'it ran'");
  const std::string file = folder.write("file", "");
  const Outcome o = run("run " + recipe + " --out " + file);
  CHECK(o.status == 1);
  CHECK_THAT(o.text, Contains("--out") && Contains(file) && !Contains("it ran"));
}

TEST_CASE("an experiment leaves results and traces that are JSON") {
  const Folder folder;
  const Outcome o = run_text(folder, kTiny + R"(
return moe.experiment { name = "tiny", model = model(), cluster = moe.cluster.custom {
    nodes = 2, devices_per_node = 1,
    device = { gemm_flops_per_s = 1e12, memory_bytes_per_s = 1e11 },
    intra = { bytes_per_s = 1e10 }, nic = { bytes_per_s = 1e9 } },
  systems = { moe.system "raf" {} },
  run = { "simulate", { "cpu", ranks = 2, steps = 2, tokens = "reference" } } })");
  INFO(o.text);
  REQUIRE(o.status == 0);
  const auto results = nlohmann::json::parse(read_file(folder.path("out/results.json")));
  CHECK(results["runs"].size() == 2);
  size_t traces = 0;
  for (const auto& entry : fs::directory_iterator(folder.path("out"))) {
    if (entry.path().filename().string().starts_with("trace-")) {
      CHECK(nlohmann::json::parse(read_file(entry.path())).is_object());
      ++traces;
    }
  }
  CHECK(traces == 2);
}

TEST_CASE("a Lua gate that routes as a built-in one trains to the same bits on every rank count") {
  CHECK(message_of(kTiny + R"(
local mine = moe.policy.gate { name = "mine", scope = "token", k = 1, params = { unused = 1 },
  route = function(ctx, s, o) assert(o.unused == 5) ctx:fill(s:argmax_rows()) end }
local a, b = train "switch", train(mine { unused = 5 })
assert(a.digest == b.digest and a.losses[3] == b.losses[3])
assert(a.moe[3][1].checksum == b.moe[3][1].checksum)
)") == "(no error)");
}

TEST_CASE("a Lua gate of scope batch sees the tokens of all ranks that share sequences") {
  CHECK(message_of("local moe = require 'moe'\n" + std::string(R"(
local late = moe.policy.gate { name = "late", scope = "batch", weight = "prob", k = 1,
  route = function(ctx, s)
    local best = s:argmax_rows()
    for t = ctx.tokens, 1, -1 do ctx:take(t, best(t)) end
  end }
local function run(tp, cp)
  return moe.train { ranks = tp * cp, steps = 2, precision = "f64", init = "reference",
    tokens = "reference", optimizer = { name = "sgd" }, grid = moe.grid { tp = tp, cp = cp },
    model = moe.model.gpt2_moe { vocab = 64, layers = 2, hidden = 16, heads = 2, seq = 16,
      batch_per_device = 2, experts = 4, gate = late {}, capacity_factor = 0.5 } }
end
local one = run(1, 1)
for _, many in ipairs { run(2, 1), run(1, 2) } do
  for name, x in pairs(one.grad_l2) do assert(math.abs(x - many.grad_l2[name]) < 1e-12) end
end
)")) == "(no error)");
}

const std::string kRareSecond = R"(
local rare = moe.policy.gate { name = "rare", scope = "token", weight = "prob", k = 2,
  route = function(ctx, s)
    local best = s:topk_rows(2)
    for t = 1, ctx.tokens do
      ctx:take(t, best(t, 1))
      if (ctx.first_token + t) % 100 == 0 then ctx:take(t, best(t, 2)) end
    end
  end }
local cluster = moe.cluster.p4de { nodes = 1, devices_per_node = 2 }
)";

TEST_CASE("a Lua gate is simulated with the rows that it routes, not with k per token") {
  CHECK(message_of("local moe = require 'moe'\n" + kRareSecond + R"(
local function comm_ms(gate)
  local p = moe.plan { cluster = cluster, system = moe.system "raf_rows" {},
    model = moe.model.gpt2_moe { layers = 4, hidden = 256, heads = 4, seq = 512, experts = 4,
      batch_per_device = 16, gate = gate } }
  return p:simulate().comm_ms, p:info().assumed_routing
end
local one, two = comm_ms "switch", comm_ms "top2"
local seldom, assumed = comm_ms(rare {})
assert(("%.2f"):format((seldom - one) / (two - one)) == "0.01")
assert(assumed.gate == "rare" and assumed.scores == "even" and assumed.dropped == 0)
assert(("%.2f"):format(assumed.choices) == "1.01", assumed.choices)
)") == "(no error)");
}

TEST_CASE("by the scores of a workload a Lua gate has the same counts simulated and executed") {
  CHECK(message_of("local moe = require 'moe'\n" + kRareSecond + R"(
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 32, heads = 4, seq = 32,
  batch_per_device = 8, experts = 8, gate = rare {}, capacity_factor = 0.7,
  routing = moe.workload "zipf" { s = 1.1, drift = 0.3 } }
local function of(t)
  t.model, t.batches = model, 3
  return moe.infer(t).moe
end
local simulated, executed = of { executor = "simulate", cluster = cluster }, of { ranks = 2 }
for step, layers in ipairs(executed) do
  for l, layer in ipairs(layers) do
    local same = simulated[step][l]
    assert(same.dropped == layer.dropped and same.dropped > 0)
    for i, n in ipairs(layer.counts) do assert(same.counts[i] == n) end
    for e, n in ipairs(layer.load) do assert(same.load[e] == n) end
  end
end
assert(#executed == 3 and #executed[1] == 2)
)") == "(no error)");
}

TEST_CASE("a Lua gate knows the nodes, and what it chooses is what a dispatcher moves") {
  CHECK(message_of(R"(
local moe = require 'moe'
local function gate(name, stays)  -- stays: a token's two choices are on one node of four
  return moe.policy.gate { name = name, scope = "token", weight = "renorm", k = 2,
    route = function(ctx, s)
      assert(ctx.devices == 32 and ctx.nodes == 4)
      local best = s:topk_rows(ctx.experts)
      for t = 1, ctx.tokens do
        local taken = 0
        for i = 1, ctx.experts do
          local e = best(t, i)
          assert(ctx:device_of(e) == e and ctx:node_of(e) == math.ceil(e / 8))
          if taken < 2 and (not stays or ctx:node_of(e) == ctx:node_of(best(t, 1))) then
            ctx:take(t, e)
            taken = taken + 1
          end
        end
      end
    end }
end
local one, any = gate("one", true), gate("any", false)
local function bytes(of, routing)
  local p = moe.plan { cluster = moe.cluster.h100 { nodes = 4 },
    model = moe.model.gpt2_moe { layers = 2, hidden = 1024, heads = 8, seq = 128,
      batch_per_device = 1, experts_per_device = 1, capacity = "none", gate = of {},
      routing = routing },
    system = moe.system "s" { moe.dispatcher.deepep_v1 {}, moe.pass.serial {} } }
  for _, span in ipairs(p:spans()) do
    local of_node = p:info().dispatcher.dispatch  -- the mean of four nodes of 8 ranks
    local said = (of_node.nic_bytes + of_node.nvlink_bytes) / 8
    if span.op == "b1.moe.a2a_1" then
      assert(math.abs(said / span.bytes - 1) < 0.05, said / span.bytes)
      return span.bytes
    end
  end
end
-- Rows of nodes: 1 and 1.77 per token, 3 of 4 to another node; of ranks: 2, 7 of 8 to another.
local expected = (0.75 + 2 * 7 / 8) / (0.75 * 1.77 + 2 * 7 / 8)
for _, routing in ipairs { false, moe.workload "zipf" { s = 0 } } do
  local ratio = bytes(one, routing or nil) / bytes(any, routing or nil)
  assert(math.abs(ratio / expected - 1) < 0.08, ratio)
end
)") == "(no error)");
}

TEST_CASE("an executed step is compared with the prediction for the routing of the run") {
  const Folder folder;
  const Outcome o = run_text(folder, "local moe = require 'moe'\n" + kRareSecond + R"(
local R = moe.run(moe.experiment { name = "x", systems = { moe.system "raf_rows" {} },
  model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 32,
    batch_per_device = 4, experts = 4, gate = rare {}, capacity = "none" },
  run = { { "cpu", ranks = 2, steps = 3, rehearse = 2,
    link = { bytes_per_s = 1e8, latency_us = 20 } } } })
local p = R.runs[1].prediction
assert(math.abs(p.error - (p.steady_ms / p.same_routing_ms - 1)) < 1e-9)
)");
  INFO(o.text);
  CHECK(o.status == 0);
  CHECK_THAT(o.text, Contains("for equal speed and for the routing of the runs"));
}

TEST_CASE("systems of different schedules are each compared at the speed of their own rehearsal") {
  const Folder folder;
  const Outcome o = run_text(folder, R"(local moe = require 'moe'
local function system(name)
  return moe.system(name) { moe.pass.serial {}, moe.pipeline[name] {} }
end
local R = moe.run(moe.experiment { name = "x", systems = { system "gpipe", system "interleaved" },
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 64,
    batch_per_device = 4, experts = 2, gate = "switch", capacity_factor = 1.25 },
  grid = moe.grid { pp = 2, micro_batches = 4 },
  run = { { "cpu", ranks = 2, steps = 4, rehearse = 3,
    link = { bytes_per_s = 1e8, latency_us = 20 } } } })
for _, run in ipairs(R.runs) do
  local p = run.prediction
  local as_expected = p.slower * p.iteration_ms  -- half of it where the ops' own times are taken
  assert(p.same_speed_ms > 0.7 * as_expected, run.system .. " " .. p.same_speed_ms)
end
)");
  INFO(o.text);
  CHECK(o.status == 0);
}

TEST_CASE("a plan says which share of a workload's choices its capacity drops") {
  CHECK(message_of("local moe = require 'moe'\n" + kRareSecond + R"(
local model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 32, heads = 4, seq = 32,
  batch_per_device = 8, experts = 8, gate = "switch", capacity_factor = 0.7,
  routing = moe.workload "zipf" { s = 1.1, drift = 0.3 } }
local simulated = moe.infer { executor = "simulate", cluster = cluster, model = model, batches = 1 }
local last = simulated.moe[1][2]
local assumed = moe.plan { cluster = cluster, system = moe.system "raf" {}, model = model }
  :info().assumed_routing
assert(assumed.choices_of:find "zipf" and assumed.choices == 1 and assumed.tokens == 256)
assert(last.dropped > 100 and math.abs(assumed.dropped - last.dropped / 512) < 1e-12)
)") == "(no error)");
}

TEST_CASE("bound gives a Lua gate's capacity") {
  const auto with_bound = [](const std::string& bound) {
    return kTiny + "local g = moe.policy.gate { name = 'mine', scope = 'token', k = 1,\n" +
           "  bound = function(C, o) return " + bound + " end, route = function(ctx, s)\n" +
           "  ctx:fill(s:argmax_rows()) end }\nassert(train(g {}).moe[1][1].capacity == 17)\n";
  };
  CHECK(message_of(with_bound("C + 7")) == "(no error)");
  CHECK_THAT(message_of(with_bound("0.5")), Contains("gate 'mine': bound() returned 0.5"));
}

TEST_CASE("a gate that raises ends the run with its name, rank, step, layer and line") {
  const Folder folder;
  const Outcome o = run_text(folder, kTiny + R"(local g = moe.policy.gate { name = "mine", k = 1,
  scope = "token", route = function(ctx, s) if ctx.step == 2 then s(0, 1) end
    ctx:fill(s:argmax_rows()) end }
train(g {}))");
  CHECK(o.status == 1);
  CHECK_THAT(o.text, Contains(": rank ") &&
                         Contains(", step 1, op b1.moe.gate: gate 'mine', layer 2: ") &&
                         Contains("recipe.lua:10: token 0 is not allowed; Lua counts from 1"));
  CHECK(o.text.find("rank ") == o.text.rfind("rank "));
  CHECK(o.text.find("gate '") == o.text.rfind("gate '"));
}

TEST_CASE("a gate that is defined after the recipe has begun to run is named as such") {
  const Folder folder;
  const Outcome o = run_text(folder, kTiny + R"(train "switch"
local g = moe.policy.gate { name = "late", k = 1, scope = "token", route = function() end }
train(g {}))");
  CHECK(o.status == 1);
  CHECK_THAT(o.text, Contains("gate 'late'") && Contains("define it at the top"));
}

TEST_CASE("check plans everything and writes nothing") {
  const Folder folder;
  const std::string recipe = folder.write("recipe.lua", kTiny + R"(
return moe.experiment { name = "tiny", model = model(), cluster = moe.cluster.p4de { nodes = 1,
  devices_per_node = 2 }, systems = { moe.system "raf" {}, moe.system "lancet" {} } })");
  const Outcome o = run("check " + recipe);
  INFO(o.text);
  CHECK(o.status == 0);
  CHECK_THAT(o.text, Contains("2 plans"));
  CHECK_FALSE(fs::exists(folder.path("out")));
}

TEST_CASE("ops alone add up to the lanes of a step without overlap, collectives by kind") {
  CHECK(message_of(kTiny + R"(
local s = moe.plan { model = model(), cluster = moe.cluster.p4de { nodes = 1,
  devices_per_node = 2 }, system = moe.system "raf" {} }:simulate()
local compute, comm = 0, 0
for key, ms in pairs(s.alone_ms) do
  if key:match "^all_" then comm = comm + ms else compute = compute + ms end
end
assert(s.alone_ms.all_to_all > 0 and s.alone_ms.expert > 0)
assert(math.abs(compute - s.compute_ms) < 1e-9 and math.abs(comm - s.comm_ms) < 1e-9)
)") == "(no error)");
}

TEST_CASE("a simulated plan says when its forward ends and what weight gradients can hide") {
  CHECK(message_of(kTiny + R"(
local function plan(system)
  return moe.plan { model = model(), cluster = moe.cluster.p4de { nodes = 1,
    devices_per_node = 2 }, system = moe.system(system) {} }
end
local raf = plan "raf"
local s, o = raf:simulate(), raf:overlap()
assert(s.forward_ms > 0.2 * s.iteration_ms and s.forward_ms < 0.5 * s.iteration_ms)
-- The backward's two all-to-alls, of four that are alike.
assert(o.num_a2a == 2 and math.abs(o.a2a_ms - s.alone_ms.all_to_all / 2) < 1e-6)
assert(o.greedy_ms > 0 and o.greedy_ms <= o.exact_ms and o.exact_ms <= o.bound_ms)
assert(o.bound_ms <= o.a2a_ms and o.bound_ms <= o.dw_ms)
-- Order that a schedule adds moves neither.
local of_lancet = plan "lancet_dw":overlap()
assert(of_lancet.num_a2a == 2 and of_lancet.num_dw == o.num_dw)
)") == "(no error)");
}

TEST_CASE("the parts of a plan's peak add up to it, and its numbers are those that it states") {
  CHECK(message_of(R"lua(
local moe = require 'moe'
local function plan(dtype, optimizer, zero)
  return moe.plan { cluster = moe.cluster.p4de { nodes = 1 }, optimizer = { name = optimizer },
    system = moe.system "raf" { zero = zero or 0 },
    model = moe.model.gpt2_moe { layers = 4, hidden = 256, heads = 4, seq = 128, vocab = 256,
      experts_per_device = 2, batch_per_device = 4, gate = "switch", dtype = dtype } }
end
local function parts(p)
  local sum, of = 0, {}
  for _, part in ipairs(p:memory().peak_parts) do
    sum, of[part.what] = sum + part.bytes, part.bytes
  end
  assert(sum == p:memory().peak_bytes)
  return of
end
for _, dtype in ipairs { "f16", "bf16", "f32" } do
  for _, optimizer in ipairs { "sgd", "adamw" } do
    local p = plan(dtype, optimizer)
    local said, of = p:text():match "^# Numbers: dtype ([^\n]*)", parts(p)
    local name, bytes, gradient, states = said:match "^(%w+), (%d+) bytes[^,]*, (%d+)[^,]*, (%d+)"
    assert(name == dtype and gradient == bytes and said:find(optimizer, 1, true), said)
    assert(of.parameters * states == of["optimizer states"] * bytes)
    assert(of["gradients of parameters"] <= of.parameters and of.activations > 0)
    assert(tonumber(bytes) == (dtype == "f16" and 2 or 4), said)
    assert(of.parameters / bytes == parts(plan("f16", "sgd")).parameters / 2)
  end
end
assert(parts(plan("f16", "sgd", 1))["optimizer states"]
  < parts(plan("f16", "sgd"))["optimizer states"])
)lua") == "(no error)");
}

TEST_CASE("a claim has its band from simulations with constants at their ends") {
  const Folder folder;
  const Outcome o = run_text(folder, kTiny + R"(
return moe.experiment { name = "tiny", model = model(), cluster = moe.cluster.p4de { nodes = 1,
  devices_per_node = 2 }, systems = { moe.system "raf" {} }, claims = {
  moe.claim { id = "lancet-026", neutral = 0, value = function(R)
    return R:map(function(run) return 1e3 * run.iteration_ms end):max() end } } })");
  INFO(o.text);
  CHECK(o.status == 0);
  CHECK_THAT(o.text, Contains("moves ours most") && Contains("cluster.stack.host_launch_us"));
}

TEST_CASE("Ctrl-C while loading ends at the recipe's line", "[signals]") {
  const Folder folder;
  const std::string recipe = folder.write("recipe.lua", "\nwhile true do end");
  const Outcome o = interrupt({"run", recipe, "--out", folder.path("out")}, recipe, 1500, folder);
  CHECK(o.status == 3);
  CHECK_THAT(o.text, Contains("recipe.lua:2: interrupted"));
}

TEST_CASE("a program whose Lua library is not there names the file that it cannot read") {
  HostOptions options = options_for("");
  options.scripts_dir = "/nonexistent";
  CHECK_THROWS_WITH(Host(options),
                    Contains("cannot be read; expected file: /nonexistent/moe/init.lua"));
}
