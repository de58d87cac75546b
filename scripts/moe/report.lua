-- The tables on stdout.
local core = require "moe.core"
local results = require "moe.results"
local schema = require "moe.schema"

local M = {}

local function ms(v)
  if not v then return "-" end
  return v >= 100 and ("%.0f"):format(v) or v >= 10 and ("%.1f"):format(v) or ("%.2f"):format(v)
end

local function point_text(run)
  local parts = {}
  for _, k in ipairs(schema.keys_of(run.point or {})) do
    if k ~= "nodes" then parts[#parts + 1] = tostring(run.point[k]) end
  end
  return table.concat(parts, " ")
end

-- One block a point: systems down, times across; the speed-up is against the first system.
function M.simulated(R)
  local rows = { { "point", "GPUs", "system", "iteration ms", "exposed comm ms", "hidden comm ms",
    "speed-up", "bound ms", "peak GiB" } }
  for _, group in ipairs(R:groups()) do
    local base = group[1].iteration_ms
    for i, run in ipairs(group) do
      rows[#rows + 1] = { i == 1 and point_text(run) or "", i == 1 and run.devices or "",
        run.choice and ("%s (%s)"):format(run.system, run.choice) or run.system,
        ms(run.iteration_ms), ms(run.exposed_comm_ms), ms(run.hidden_comm_ms),
        ("%.2fx"):format(base / run.iteration_ms), ms(run.lower_bound_ms),
        ("%.1f%s"):format(run.peak_bytes / 2 ^ 30, run.out_of_memory and " OOM" or "") }
    end
  end
  return results.align(rows)
end

function M.executed(R)
  local rows = { { "system", "iteration ms", "spread", "predicted ms", "error", "exposed ms",
    "hidden ms", "of predicted", "loss", "dropped", "peak MiB", "digest" } }
  for run in R:each() do
    local p, samples = run.prediction, results.values { unpack(run.samples_ms, 2) }
    rows[#rows + 1] = { run.choice and ("%s (%s)"):format(run.system, run.choice) or run.system,
      ms(run.iteration_ms),
      #samples > 0 and ("%s..%s"):format(ms(samples:min()), ms(samples:max())) or "-",
      ms(p.iteration_ms), ("%+.1f%%"):format(100 * p.error), ms(run.exposed_comm_ms),
      ms(run.hidden_comm_ms),
      p.hidden_comm_ms > 0
        and ("%.0f%%"):format(100 * run.hidden_comm_ms / p.hidden_comm_ms) or "-",
      ("%.3f -> %.3f"):format(run.losses[1], run.losses[#run.losses]),
      tostring(run.drops[#run.drops]), ("%.1f"):format(run.executed_peak_bytes / 2 ^ 20),
      run.digest }
  end
  return results.align(rows)
end

local function loss_lines(R)
  local lines = {}
  for run in R:each() do
    local list = {}
    for i, loss in ipairs(run.losses) do list[i] = ("%.4f"):format(loss) end
    lines[#lines + 1] = ("  %-14s %s"):format(run.system, table.concat(list, " "))
  end
  return table.concat(lines, "\n")
end

-- Which systems computed the same bits.
local function identical(R)
  local by_digest, order = {}, {}
  for run in R:each() do
    local key = run.digest .. core.json_encode(run.losses)
    if not by_digest[key] then
      by_digest[key] = {}
      order[#order + 1] = by_digest[key]
    end
    table.insert(by_digest[key], run.system)
  end
  local lines = {}
  for _, names in ipairs(order) do
    lines[#lines + 1] = "  " .. table.concat(names, " = ")
  end
  return table.concat(lines, "\n")
end

local function claims_table(claims)
  local rows = { { "claim", "figure", "paper", "ours", "verdict" } }
  for _, c in ipairs(claims) do
    rows[#rows + 1] = { c.text, c.figure, ("%g %s"):format(c.paper, c.unit),
      c.ours and ("%.3g"):format(c.ours) or "-",
      c.reason and ("%s: %s"):format(c.verdict, c.reason) or c.verdict }
  end
  return results.align(rows)
end

local function executed_groups(R)
  local order, by_key = {}, {}
  for run in R:each() do
    local key = core.json_encode { run.parameters, run.devices, run.link or {} }
    if not by_key[key] then
      by_key[key] = { runs = {}, first = run }
      order[#order + 1] = by_key[key]
    end
    table.insert(by_key[key].runs, run)
  end
  return order
end

function M.print(e, R, claims)
  core.say(e.name .. (e.title ~= "" and ": " .. e.title or ""))
  local simulated = R:where { executor = "simulate" }
  if #simulated.runs > 0 then
    core.say "\nSimulated (a cost model; constants in the cluster files, assumed ones as bands)"
    core.say(M.simulated(simulated))
  end
  for _, group in ipairs(executed_groups(R:where { executor = "cpu" })) do
    local g, m = results.new(group.runs), group.first
    core.say(("\nExecuted on %d CPU ranks, %s: %d layers, hidden %d, seq %d, %d rows a rank, "
      .. "%d experts, %s gate"):format(m.devices, m.link and ("emulated link of %g MB/s and %g us")
      :format(m.link.bytes_per_s / 1e6, m.link.latency_us) or "no link",
      m.parameters.layers, m.parameters.hidden, m.parameters.seq, m.parameters.batch_per_device,
      m.parameters.experts, m.parameters.gate))
    core.say(("Provenance: %s. Medians over the steps after the first; predictions were frozen "
      .. "before each run, from ops profiled alone."):format(m.provenance))
    core.say(M.executed(g))
    core.say "Losses a step:"
    core.say(loss_lines(g))
    core.say "Same bits (losses and all parameters):"
    core.say(identical(g))
    local errs = results.values {}
    for run in g:each() do errs[#errs + 1] = math.abs(run.prediction.error) end
    core.say(("Median prediction error over %d runs: %.1f%%"):format(#errs, 100 * errs:median()))
    if m.eval_loss and m.unigram_entropy and m.eval_loss > 0 then
      core.say(("Held-out loss %.4f, unigram entropy of the corpus %.4f nats"):format(m.eval_loss,
        m.unigram_entropy))
    end
  end
  if #claims > 0 then
    core.say "\nClaims"
    core.say(claims_table(claims))
  end
  if core.out_dir then core.say(("\nResults and traces: %s"):format(core.out_dir)) end
end

return M
