-- Figure 15 of Lina: how large should a micro-op be? All-reduces and all-to-alls are cut into
-- micro-ops of 5 to 100 MB on 16 GPUs, without packing. Simulated; in addition to the time for its
-- bytes, each micro-op takes the start-up time of a collective.
local moe = require "moe"

local SIZES, MB = { "transformer_xl", "gpt2", "bert2gpt2" }, { 1, 2, 5, 10, 20, 30, 50, 75, 100 }

local function name_of(mb) return ("micro_%d"):format(mb) end

local systems = {}
for i, mb in ipairs(MB) do
  local bytes = mb * 1e6
  systems[i] = moe.system(name_of(mb)) { moe.pass.priority {}, moe.pass.chunked { bytes = bytes },
    moe.pass.micro_ops { bytes = bytes },
    all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = 0 } }
end

-- The step's time with micro-ops of `mb` MB divided by that with 30 MB, of one model or mean.
local function relative(R, mb, size)
  local group = size and R:where { size = size } or R
  return group:ratio { "iteration_ms", of = name_of(30), to = name_of(mb) }:mean()
end

local function best(R)
  local least, at
  for _, mb in ipairs(MB) do
    local t = relative(R, mb)
    if t and (not least or t < least) then least, at = t, mb end
  end
  return at
end

return moe.experiment {
  name = "lina_fig15", title = "step time over the size of a micro-op",
  over = { size = SIZES },
  case = function(p)
    return { model = moe.model.lina { size = p.size }, systems = systems,
      cluster = moe.cluster.lina { nodes = 4 } }
  end,
  show = function(R)
    local rows = { { "MB" } }
    for _, size in ipairs(SIZES) do rows[1][#rows[1] + 1] = size end
    for _, mb in ipairs(MB) do
      local row = { mb }
      for _, size in ipairs(SIZES) do
        row[#row + 1] = ("%.3f"):format(relative(R, mb, size))
      end
      rows[#rows + 1] = row
    end
    print "Step over that with 30 MB"
    print(moe.table(rows))
  end,
  claims = {
    moe.claim { id = "lina-082", within = 0.4, value = best },
    moe.claim { id = "lina-083", value = function(R)
      return relative(R, 75, "transformer_xl") > 1 and relative(R, 75, "bert2gpt2") > 1
    end },
    moe.claim { id = "lina-083-small", value = function(R)
      return relative(R, 5) > 1
    end, note = "In the simulator a cut costs a start-up per transfer and a launch per kernel, and "
      .. "pipelining gains more with every part; splitting and joining tensors is in the graph." },
  },
}
