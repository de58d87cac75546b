-- Figure 2 of Lancet: how long are all-to-alls compared with the experts, and what can hiding gain?
-- Orig is the sum of all ops; Curr hides the experts under the all-to-alls, which is the most that
-- cutting along the capacity can do; Opt hides the all-to-alls under all compute.
local moe = require "moe"

-- Returns the times of a run's ops, each alone: all-to-alls, experts, and the rest.
local function parts_of(run)
  local a2a, expert, rest = run.alone_ms.all_to_all, run.alone_ms.expert, 0
  for _, ms in pairs(run.alone_ms) do rest = rest + ms end
  return a2a, expert, rest - a2a - expert
end

local function ratio(run)
  local a2a, expert = parts_of(run)
  return a2a / expert
end

local function share(run)
  local a2a, expert, rest = parts_of(run)
  return 100 * a2a / (a2a + expert + rest)
end

local function show(R)
  local rows = { { "model", "GPUs", "system", "rest ms", "experts ms", "all-to-all ms",
    "a2a/experts", "a2a share", "Orig ms", "Curr ms", "Opt ms" } }
  for run in R:each() do
    local a2a, expert, rest = parts_of(run)
    rows[#rows + 1] = { run.model, run.devices, run.system, rest, expert, a2a, ratio(run),
      share(run), a2a + expert + rest, math.max(a2a, expert) + rest, math.max(a2a, expert + rest) }
  end
  print(moe.table(rows, { "", "", "", "%.0f", "%.1f", "%.1f", "%.2fx", "%.1f%%", "%.0f", "%.0f",
    "%.0f" }))
end

-- The paper does not say on how many GPUs its largest value was found, or whether it is over
-- several numbers. So there are two claims: on 16 GPUs, and the largest over all numbers.
local function at_most(id, neutral, value, note)
  local claims = {}
  for i, nodes in ipairs { { 2 }, { 2, 4, 8 } } do
    claims[i] = moe.claim { id = id, label = #nodes == 1 and "16 GPUs" or "16 to 64", within = 0.25,
      neutral = neutral, note = note,
      value = function(R) return R:where { nodes = nodes }:map(value):max() end }
  end
  return unpack(claims)
end

local a, b = at_most("lancet-027", 1, ratio, "No constant is fitted to it. The figure's number "
  .. "of GPUs is not in the paper: all-to-alls grow with it, the experts' time a GPU does not.")
local c, d = at_most("lancet-026", 0, share, "Of all ops' time one after another, on V100s; the "
  .. "paper does not say where its 40% were seen, and on A100s ours are lower.")

return moe.experiment {
  name = "lancet_fig02", title = "where a step's time goes, V100, Switch gate",
  over = { size = { "S", "L" }, nodes = { 2, 4, 8 } },
  params = { reading = "artifact" },
  case = function(p)
    return { model = moe.model.lancet { size = p.size, gpu = "p3dn", reading = p.reading },
      cluster = moe.cluster.p3dn { nodes = p.nodes },
      systems = { moe.system "deepspeed" { stack = "deepspeed_2021" },
        moe.system "tutel" { stack = "tutel_2022" } } }
  end,
  show = show, claims = { a, b, c, d },
}
