-- Whether what recipes get is what moe.topics says of it: every field that must be there is there,
-- each field has its type, and no other field is there. Run under --trust.
local moe = require "moe"
local topics = require "moe.topics"

local members = {}  -- class -> name -> member
for _, t in ipairs(topics.all()) do
  members[t.class or ""] = members[t.class or ""] or {}
  for _, m in ipairs(t.members) do members[t.class or ""][m.name] = m end
end

-- What type() gives for a value of the type.
local function kind_of(text)
  if text:find "^fun" then return "function" end
  if text:find '^"' then return "string" end
  if text:find "^moe%." or text:find "[%[{<]" then return "table" end
  return ({ integer = "number", ["true"] = "boolean" })[text] or text
end

local check

local function check_value(value, text, path)
  if value == nil and text:find "%?$" then return end
  text = text:gsub("%?$", "")
  local of = text:match "^(.*)%[%]$"
  local class = text:match "^moe%.[%w_.]+$"
  local kind = type(value) == "userdata" and "table" or type(value)
  assert(text == "any" or kind == kind_of(text), ("%s: a %s, not %s"):format(path, kind, text))
  for i, one in ipairs(of and value or {}) do check_value(one, of, ("%s[%d]"):format(path, i)) end
  -- What a recipe writes is documented as that, and is there in full.
  if class and members[class] and not class:find "Fields$" then check(class, value, path) end
end

--- partial: fields that are not documented may be there.
function check(class, value, path)
  for name, m in pairs(members[class]) do
    if not m.method and name:find "^%a" and not m.optional then
      check_value(value[name], m.type, path .. "." .. name)
    end
  end
  for name in pairs(type(value) == "table" and getmetatable(value) == nil and value or {}) do
    assert(type(name) == "number" or name == "timelines" or members[class][name],
      ("%s.%s is not documented"):format(path, name))
  end
end

local function model(more)
  local t = { vocab = 256, layers = 2, hidden = 32, heads = 4, seq = 16, batch_per_device = 8,
    experts_per_device = 2 }
  for k, v in pairs(more or {}) do t[k] = v end
  return moe.model.gpt2_moe(t)
end

local cluster = moe.cluster.p4de { nodes = 1 }
local gate = moe.policy.gate { name = "seen", scope = "batch", route = function(ctx, s)
  check("moe.GateContext", ctx, "ctx of a gate")
  ctx:fill(s:topk_rows(1))
end }
local pass = moe.policy.pass { name = "looks", at = "step", apply = function(g, ctx)
  check("moe.PolicyContext", setmetatable(ctx, nil), "ctx of a pass")
  check("moe.Op", g:ops()[1], "op")
  check("moe.Tensor", g:ops()[1].outputs[1], "tensor")
end }
local placement = moe.policy.placement { name = "places", place = function(ctx, _, p)
  check("moe.PlacementContext", ctx, "ctx of a placement")
  ctx:log "as it was"
  return p
end }

local plan = moe.plan { model = model(), cluster = cluster, system = moe.system "mine" { pass {} } }
for method, class in pairs { info = "PlanInfo", memory = "PlanMemory", simulate = "SimResult",
  explain = "Explanation", overlap = "Overlap" } do
  check("moe." .. class, plan[method](plan), "plan:" .. method)
end
check("moe.Span", plan:spans()[1], "span")

local trained = moe.train { model = model { gate = gate {} }, ranks = 2, steps = 2,
  system = moe.system "placed" { placement {} } }
check("moe.TrainResult", trained, "result of moe.train")
check("moe.InferResult", moe.infer { model = model(), ranks = 2 }, "result of moe.infer")

local systems = { moe.system "placed" { placement {} } }
for i, name in ipairs { "raf", "tutel", "pipemoe", "lina", "eplb" } do
  systems[i + 1] = moe.system(name) {}
end
local R = moe.run(moe.experiment { name = "documented", model = model(), cluster = cluster,
  systems = systems, claims = { moe.claim { id = "lancet-034", value = function() return 1 end } },
  run = { "simulate",
    { "cpu", ranks = 2, steps = 2, rehearse = 1, systems = { "placed" } } } })
for run in R:each() do check("moe.Run", run, "run of " .. run.system) end

check("moe.ResultsFile", (require("moe.results.results").load(require("moe.core").out_dir)),
  "results.json")
check("moe.CollectiveTimes", moe.collectives { cluster = cluster, link_use = true,
  ops = { { kind = "all_reduce", bytes = 1e6 } } }, "moe.collectives")
local counts = { routed = { { 5, 1 }, { 2, 2 } }, input_bytes = 1, expert_bytes = 1,
  bytes_per_s = 1, inputs_per_s = 1 }
check("moe.ProphetPlan", moe.prophet.plan(counts), "moe.prophet.plan")
counts.policy = "eplb"
check("moe.ProphetPlaced", moe.prophet.place(counts), "moe.prophet.place")
check("moe.ProphetPlaced", moe.prophet.place { policy = "echo", routed = counts.routed },
  "moe.prophet.place without rates")
local zipf = moe.workload "zipf" {}
check("moe.Popularity", moe.lina.popularity { routing = zipf, ranks = 8, tokens = 4, experts = 8,
  k = 1, layers = 2, batches = 1, path = 1 }, "moe.lina.popularity")
