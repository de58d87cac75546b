-- Figure 15 of Lancet: how long does it take to find Lancet's schedule, for different numbers of
-- layers and GPUs? P is the time of a range when it is cut into some number of parts, which the
-- partition's dynamic programme requests; an evaluation cuts the range and replays it. Also shown
-- is the best number of parts.
local moe = require "moe"

-- Returns, from the partition's lines in the log: how often P was requested, how often it was
-- evaluated, and the largest number of parts.
local function search_of(run)
  local asked, evaluated, most = 0, 0, 1
  for _, line in ipairs(run.log) do
    local a, e = line:match "(%d+) P asked, (%d+) evaluated"
    if a then asked, evaluated = tonumber(a), tonumber(e) end
    most = math.max(most, tonumber(line:match "' in (%d+) parts") or 1)
  end
  return asked, evaluated, most
end

local function show(R)
  local rows = { { "cluster", "model", "layers", "batch", "GPUs", "plan ms", "P asked",
    "P evaluated", "most parts", "ops" } }
  for run in R:each() do
    local asked, evaluated, most = search_of(run)
    rows[#rows + 1] = { run.cluster, run.model, run.parameters.layers,
      run.parameters.batch_per_device, run.devices,
      ("%.0f"):format(run.plan_ms), asked, evaluated, most, run.num_ops }
  end
  print(moe.table(rows))
end

local function most_parts(R)
  return R:map(function(run) return (select(3, search_of(run))) end):max()
end

return moe.experiment {
  name = "lancet_fig15", title = "time to optimise, lancet, Switch gate",
  over = { gpu = { "p4de", "p3dn" }, size = { "S", "L" }, nodes = { 2, 4, 8 } },
  params = { reading = "artifact" },
  case = function(p)
    return { model = moe.model.lancet { size = p.size, gpu = p.gpu, reading = p.reading },
      cluster = moe.cluster[p.gpu] { nodes = p.nodes }, systems = { moe.system "lancet" {} } }
  end,
  show = show,
  claims = {
    moe.claim { id = "lancet-041", not_comparable = "the paper's minutes go into timing kernels "
      .. "on a GPU; here a cost model answers, and the time is this machine's",
      value = function(R) return R:get "plan_ms":max() / 60e3 end },
    moe.claim { id = "lancet-023", value = function(R)
        local most = most_parts(R)
        return most and most <= 4
      end },
  },
}
