-- moebench run tests/bench/pipeline_predictions.lua --trust [--set seed=7] [--set meshes=12]: drawn
-- pipelines on up to eight paced ranks with an emulated link, or as many grids of two to four ranks
-- over tp, cp, pp and ep, predicted and executed. Seven minutes on two cores, which must be free:
-- the tables above the figures say where they were not.
local core = require "moe.core"
local moe = require "moe"

local MESHES = tonumber(core.args.set.meshes or 0)
local RUNS = MESHES > 0 and MESHES or 16
local RESOLVED = 0.05  -- pairs whose executed times differ by more are compared
local SCHEDULES = { "1f1b", "combined_1f1b", "dualpipev", "gpipe", "interleaved", "looped_bfs",
  "v_half", "v_min", "zb_h1", "zb_h2", "zb_v" }

local state = tonumber(core.args.set.seed or 7)
local function draw(from)
  state = (state * 1103515245 + 12345) % 2 ^ 31
  return from[math.floor(state / 2 ^ 16) % #from + 1]
end

local rows = { { "pipeline", "executed ms", "predicted ms", "error" } }
local errors, runs = {}, {}
for i = 1, RUNS do
  local pp, data = draw { 2, 4 }, draw { 1, 2 }
  local ep = data == 1 and 1 or draw { 1, 2 }
  local name, micro, bytes_per_s = draw(SCHEDULES), draw { 4, 8 }, draw { 5e7, 2e8, 1e9 }
  local tp, cp = 1, 1
  if MESHES > 0 then
    repeat
      tp, cp, pp, data = draw { 1, 2, 4 }, draw { 1, 2 }, draw { 1, 2 }, draw { 1, 2 }
    until tp * cp > 1 and tp * cp * pp * data <= 4
    name, ep = "1f1b", draw { 1, tp * cp * data }
  end
  local ranks = tp * cp * pp * data
  local done = moe.run(moe.experiment { name = "pipeline_" .. i,
    model = moe.model.gpt2_moe { vocab = 256, layers = 8, hidden = 128, heads = 4, seq = 128,
      batch_per_device = 2, experts = 4, gate = "switch", capacity_factor = 1.25, ep = ep },
    systems = { moe.system "serial" { moe.pass.serial {},
      pp > 1 and moe.pipeline[name] {} or nil } },
    optimizer = { lr = 0.02 }, grid = moe.grid { tp = tp, cp = cp, pp = pp, micro_batches = micro },
    run = { { "cpu", ranks = ranks, pace = math.max(2, math.ceil(0.6 * ranks)), steps = 8,
      link = { bytes_per_s = bytes_per_s, latency_us = 20 } } } })
  for run in done:each() do
    local executed, predicted = run.iteration_ms, run.prediction.iteration_ms
    rows[#rows + 1] = { ("%s, tp %d, cp %d, pp %d, dp %d, ep %d, %d micro-batches, %g MB/s"):format(
      name, tp, cp, pp, data, ep, micro, bytes_per_s / 1e6), ("%.1f"):format(executed),
      ("%.1f"):format(predicted),
      ("%+.1f%%"):format(100 * (predicted / executed - 1)) }
    errors[#errors + 1] = 100 * math.abs(predicted / executed - 1)
    runs[#runs + 1] = { executed, predicted }
  end
end

local resolved, right = 0, 0
for i, a in ipairs(runs) do
  for j = 1, i - 1 do
    local b = runs[j]
    if math.abs(a[1] / b[1] - 1) > RESOLVED then
      resolved = resolved + 1
      if (a[1] < b[1]) == (a[2] < b[2]) then right = right + 1 end
    end
  end
end
local sorted = moe.values(errors)
print("\n" .. moe.table(rows))
print(("error: median %.1f%%, largest %.1f%%; %d of %d pairs in order"):format(
  sorted:median(), sorted:quantile(1), right, resolved))
os.exit(0)
