-- When does Lancet not pay? Its step is compared with Tutel's step at the best degree over many
-- configurations: how often it is faster, by how much, and where it loses most. This is done with
-- each system's own all-reduce policy (lancet's all-reduces follow the backward, tutel's run during
-- it), and with tutel's policy for both. All run under the cluster's stack, since Tutel under a
-- slower one of its own loses everywhere: what differs here is the schedule.
local moe = require "moe"

local function text(run)
  local p = run.point
  return ("%s, %s, %s gate, %d GPUs, %d rows per GPU, capacity factor %g"):format(run.cluster,
    run.model, p.gate, run.devices, run.parameters.batch_per_device, p.capacity_factor)
end

-- Returns a row of the table about the speed-ups of lancet over tutel in a set of points.
local function line(label, R, system)
  local gains, wins, worst, at = R:ratio { "iteration_ms", of = system, to = "tutel" }, 0
  for gain, run in gains:each() do
    wins = wins + (gain > 1 and 1 or 0)
    if not worst or gain < worst then worst, at = gain, run end
  end
  return { label, #gains, 100 * wins / #gains, gains:mean(), gains:median(), gains:max(), worst },
    at, gains
end

local function show_of(R, system)
  print(("\n%s over tutel"):format(system))
  local rows = { { "of", "points", "wins", "mean gain", "median", "most", "least" } }
  local all, worst, gains = line("all", R, system)
  rows[2] = all
  for _, key in ipairs { "gpu", "size", "gate", "nodes", "rows", "capacity_factor" } do
    rows[#rows + 1] = {}
    for value, some in R:by(key) do rows[#rows + 1] = line(key .. " " .. value, some, system) end
  end
  print(moe.table(rows, { "", "", "%.0f%%", "%.3fx", "%.3fx", "%.3fx", "%.3fx" }))
  print(("Worst regret %.1f%%: %s."):format(100 * math.max(0, 1 / gains:min() - 1), text(worst)))
end

return moe.experiment {
  name = "lancet_regret", title = "lancet against tutel at its best degree",
  over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" }, gate = { "switch", "bpr", "top2" },
    nodes = { 1, 2, 8 }, rows = { 2, 8, 24 }, capacity_factor = { 1, 1.25, 2 } },
  case = function(p)
    local size = ({ S = { layers = 12, hidden = 768, heads = 12 },
      L = { layers = 24, hidden = 1024, heads = 16 } })[p.size]
    return {
      model = moe.model.gpt2_moe { name = "GPT2-" .. p.size .. "-MoE", layers = size.layers,
        hidden = size.hidden, heads = size.heads, seq = 512, batch_per_device = p.rows,
        experts_per_device = 2, gate = p.gate, capacity_factor = p.capacity_factor,
        attention = "unfused", dtype = "f16" },
      cluster = moe.cluster[p.gpu] { nodes = p.nodes },
      systems = { moe.system "tutel" {}, moe.system "lancet" {}, moe.system "lancet_ddp" {
        all_reduce = { lane = "comm_reduce", place = "ready" }, moe.pass.irregular_a2a {},
        moe.pass.used_rows {}, moe.pass.partition {}, moe.pass.dw_schedule {} } } }
  end,
  show = function(R)
    for _, system in ipairs { "lancet", "lancet_ddp" } do show_of(R, system) end
  end,
}
