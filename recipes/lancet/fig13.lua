-- Figure 13 of Lancet: a step on 4 nodes, divided into compute without communication, exposed
-- communication, and both at once. How much less communication is exposed than under RAF and under
-- Tutel? In the paper Lancet's total compute is slightly above RAF's; ours is below RAF's, since
-- our experts compute no padding.
local moe = require "moe"

local function show(R)
  local rows = { { "cluster", "model", "batch", "system", "compute alone ms", "both ms",
    "comm. alone ms", "step ms", "all compute ms", "all comm. ms" } }
  for _, group in R:by { "gpu", "size" } do
    if #rows > 1 then rows[#rows + 1] = {} end
    for run in group:each() do
      rows[#rows + 1] = { run.cluster, run.model, run.parameters.batch_per_device,
        run.choice and ("%s (%s)"):format(run.system, run.choice) or run.system,
        run.compute_ms - run.hidden_comm_ms, run.hidden_comm_ms, run.exposed_comm_ms,
        run.iteration_ms, run.compute_ms, run.comm_ms }
    end
  end
  print(moe.table(rows, { "", "", "", "", "%.1f", "%.1f", "%.1f", "%.1f", "%.1f", "%.1f" }))
end

-- Returns the largest reduction over the models, 1 - lancet / other, in percent.
local function reduction(R, other)
  local v = R:ratio { "exposed_comm_ms", of = "lancet", to = other }
  return v[1] and 100 * (1 - 1 / v:max())
end

local NOTE = {
  raf = "Lancet's all-reduces follow the backward and stand alone; and our V100s have more "
    .. "communication to a millisecond of compute than the paper's 40% (fig02).",
  tutel = "Tutel's all-reduces hide under its backward, lancet's follow it; the paper does not say "
    .. "how its systems reduce.",
}

local claims = {}
for _, row in ipairs { { "lancet-038-", "raf" }, { "lancet-039-", "tutel" } } do
  local id, other = unpack(row)
  for gpu, name in pairs { p4de = "A100", p3dn = "V100" } do
    claims[#claims + 1] = moe.claim { id = id .. name, neutral = 0, within = 0.25,
      note = NOTE[other], value = function(R) return reduction(R:where { gpu = gpu }, other) end }
  end
end

return moe.experiment {
  name = "lancet_fig13", title = "a step's parts on 4 nodes, Switch gate",
  over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" } },
  params = { reading = "artifact" },
  case = function(p)
    return { model = moe.model.lancet { size = p.size, gpu = p.gpu, reading = p.reading },
      cluster = moe.cluster[p.gpu] { nodes = 4 },
      systems = { moe.system "raf" {}, moe.system "deepspeed" { stack = "deepspeed_2021" },
        moe.system "tutel" { stack = "tutel_2022" }, moe.system "lancet" {} } }
  end,
  show = show, claims = claims,
}
