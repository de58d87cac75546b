-- moebench run tests/bench/composed_steps.lua --trust [--set plans=200] [--set seed=1]: how far
-- steps that are composed of turns (detail = "turns") are from whole simulations, over random
-- plans, and how long both take.
local moe = require "moe"

local set = moe.options { plans = 200, seed = 1, verbose = false }
local state = set.seed
local function pick(list)  -- a linear congruential generator (Numerical Recipes, 3rd ed., 7.1)
  state = (state * 1664525 + 1013904223) % 2 ^ 32
  return list[math.floor(state / 2 ^ 32 * #list) + 1]
end

local MODELS = {
  gpt2 = function(o)
    return moe.model.gpt2_moe { layers = o.layers, hidden = pick { 768, 1024 }, heads = 16,
      seq = 512, batch_per_device = pick { 1, 2, 4 }, experts_per_device = pick { 1, 2 },
      gate = pick { "switch", "top2" }, capacity_factor = 1.25 }
  end,
  mixtral = function(o)
    return moe.model.mixtral_8x7b { layers = o.layers, hidden = 1024, heads = 16, kv_heads = 4,
      head_dim = 64, expert_ffn = 3584, seq = 1024, batch_per_device = 1, ep = 4 }
  end,
}
local rows, equal, done, worst, times = {}, 0, 0, 0, {}
for n = 1, set.plans do
  local o = { layers = 16, model = pick { "gpt2", "mixtral" }, pp = pick { 2, 4 },
    micro = pick { 4, 6, 8, 12, 16, 20, 24, 32 }, system = pick { "raf", "lancet_dw", "megatron" },
    pipeline = pick { "1f1b", "interleaved", "zb_h1", "dualpipev" } }
  local fields = { model = MODELS[o.model](o), cluster = moe.cluster.a100 { nodes = pick { 2, 4 } },
    system = moe.system(o.system) { moe.pipeline[o.pipeline] {} },
    grid = moe.grid { pp = o.pp, micro_batches = o.micro } }
  local began = os.clock()
  local ok, whole = pcall(moe.plan, fields)
  local middle = os.clock()
  if ok then
    fields.detail = "turns"
    local step = moe.plan(fields):simulate()
    local again = os.clock()
    moe.plan(fields)
    local off = step.iteration_ms / whole.sim.iteration_ms - 1
    done = done + 1
    times[#times + 1] = { 1e3 * (middle - began), 1e3 * (again - middle),
      1e3 * (os.clock() - again) }
    -- Times in ms have 6 decimals.
    local same = math.abs(step.iteration_ms - whole.sim.iteration_ms) < 5e-7
    if same then equal = equal + 1 end
    worst = math.max(worst, math.abs(off))
    local key = ("%s %s %s"):format(o.model, o.system, o.pipeline)
    local row = rows[key] or { n = 0, equal = 0, worst = 0, peak = 0 }
    rows[key], row.n = row, row.n + 1
    row.equal = row.equal + (same and 1 or 0)
    row.worst = math.max(row.worst, math.abs(off))
    if step.peak_bytes then
      row.peak = math.max(row.peak, math.abs(step.peak_bytes / whole:memory().peak_bytes - 1))
    end
    if set.verbose then
      print(key, "pp", o.pp, "M", o.micro, "of", step.composed_of, ("%.4f%%"):format(100 * off))
    end
  elseif set.verbose then
    print("refused", tostring(whole.message or whole):sub(1, 200))
  end
end
local list, keys = { { "plans", "n", "equal", "largest difference", "of the peak" } }, {}
for key in pairs(rows) do keys[#keys + 1] = key end
table.sort(keys)
for _, key in ipairs(keys) do
  local r = rows[key]
  list[#list + 1] = { key, r.n, r.equal, ("%.3f%%"):format(100 * r.worst),
    ("%.3f%%"):format(100 * r.peak) }
end
print(moe.table(list))
local function median(i)
  local all = {}
  for k, t in ipairs(times) do all[k] = t[i] end
  return moe.values(all):median()
end
print(("%d of %d plans could be made; %d are equal to the nanosecond, the largest difference is "
  .. "%.3f%%; medians: whole %.0f ms, turns made anew or found %.0f ms, found again %.0f ms")
  :format(done, set.plans, equal, 100 * worst, median(1), median(2), median(3)))

-- A sweep over schedules and micro-batches, whose turns are made within it.
local began, points = os.clock(), 0
for _, name in ipairs { "1f1b", "interleaved", "zb_h1", "dualpipev" } do
  for micro = 8, 96, 8 do
    moe.plan { model = moe.model.gpt2_moe { layers = 24, hidden = 1024, heads = 16, seq = 512,
        batch_per_device = 4, experts_per_device = 2 }, cluster = moe.cluster.a100 { nodes = 4 },
      system = moe.system "raf" { moe.pipeline[name] {} }, detail = "turns",
      grid = moe.grid { pp = 4, micro_batches = micro } }
    points = points + 1
  end
end
print(("a sweep of %d points: %.0f ms of a core per point"):format(points,
  1e3 * (os.clock() - began) / points))
