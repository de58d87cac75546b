-- `moebench calibrate`: measures this machine, prints the fitted times and the errors of the fits,
-- and writes the machine file that moe.machine reads.
local aligned = require "moe.base.aligned"
local core = require "moe.core"
local errors = require "moe.base.errors"
local lua_text = require "moe.base.lua_text"
local schema = require "moe.base.schema"
local values = require "moe.base.values"

local M = {}

local DEFAULT_RANKS = 2
local TABLES = { "all_to_all", "all_reduce" }

local function percent(share) return ("%.1f%%"):format(100 * share) end
local function us(value) return ("%.2f"):format(value) end

-- Returns the name of a row, one measured point of a fitted line: the op, or the number of bytes.
local function label(row)
  return row.what:match "=" and row.what or ("%d bytes"):format(row.x)
end

local function errors_of(fit, worst)
  return percent(fit.median_error), percent(fit.worst_error), worst, ("%.4f"):format(fit.r2)
end

local function fit_row(name, line, unit)
  local spreads = values.new {}
  for i, row in ipairs(line.rows) do spreads[i] = row.spread end
  return { name, #line.rows, percent(spreads:median()), us(line.alpha_us),
    ("%.2f %s"):format(line.per_s / 1e9, unit), errors_of(line, label(line.rows[line.worst_row])) }
end

local function fits_text(c)
  local rows = { { "t = start + work / rate", "sizes", "spread", "start us", "rate",
    "median error", "worst error", "of", "R2" }, fit_row("GEMMs", c.gemm, "GFLOP/s"),
    fit_row("memory-bound ops", c.memory, "GB/s") }
  for _, kind in ipairs(TABLES) do
    if c[kind] then rows[#rows + 1] = fit_row(kind, c[kind], "GB/s") end
  end
  rows[#rows + 1] = { "roofline of these", #c.gemm.rows + #c.memory.rows, "",
    us(c.device.launch_us), "", errors_of(c.roofline, "") }
  for _, kind in ipairs(TABLES) do
    local table_of = c[kind]
    if table_of then
      local worst = table_of.rows[table_of.interpolation.worst_row]
      rows[#rows + 1] = { kind .. ", interpolated", #table_of.rows - 2, "", "", "",
        errors_of(table_of.interpolation, label(worst)) }
    end
  end
  return aligned.text(rows)
end

local function tables_text(c)
  local rows = { { "bytes per rank" } }
  for _, kind in ipairs(TABLES) do
    for _, cell in ipairs { kind .. " us", "spread", "n" } do table.insert(rows[1], cell) end
    for i, row in ipairs(c[kind].rows) do
      rows[i + 1] = rows[i + 1] or { ("%d"):format(row.x) }
      for _, cell in ipairs { us(row.us), percent(row.spread), row.n } do
        table.insert(rows[i + 1], cell)
      end
    end
  end
  return aligned.text(rows)
end

-- Returns the table of how much longer compute takes while a transfer runs, or why there is none.
local function overlap_text(overlap)
  local rows = { { "during transfers of blocks", "GEMMs", "other compute" } }
  for i, row in ipairs(overlap.rows) do
    rows[i + 1] = { row.blocks, ("x%.3f"):format(row.gemm), ("x%.3f"):format(row.memory) }
  end
  if #rows > 1 then return aligned.text(rows) .. "\n" .. overlap.source end
  return "compute during transfers: " .. overlap.source
end

-- Returns a fitted line with its rows as { work, us, spread, n } and, for a compute op, its name.
local function residuals_of(line)
  local out = schema.merged(line, { rows = {} })
  for i, row in ipairs(line.rows) do
    out.rows[i] = { row.x, tonumber(us(row.us)), tonumber(("%.3f"):format(row.spread)), row.n,
      row.what:match "=" and row.what }
  end
  return out
end

--- Returns the table of the machine file: the fields that moe.machine reads, and under `residuals`
--- the measurements behind them.
function M.file_of(c)
  local out = { machine = c.machine, provenance = "measured", ranks = c.ranks, dtype = c.dtype,
    device = c.device, intra = c.intra,
    residuals = { gemm = residuals_of(c.gemm), memory = residuals_of(c.memory),
      roofline = c.roofline, spread = c.spread } }
  if c.overlap and #c.overlap.rows > 0 then
    out.overlap = { source = c.overlap.source, rows = {} }  -- the core's array is no plain table
    for i, row in ipairs(c.overlap.rows) do out.overlap.rows[i] = row end
  end
  for _, kind in ipairs(TABLES) do
    if c[kind] then
      out.collectives = out.collectives or {}
      out.collectives[kind] = {}
      for i, row in ipairs(c[kind].rows) do out.collectives[kind][i] = { row.x, row.us } end
      out.residuals[kind] = residuals_of(c[kind])
    end
  end
  return out
end

--- Returns the measured times as CSV, for moe.op_table.
function M.csv_of(c)
  local lines = { "op,dtype,m,n,k,ranks,bytes,us" }
  for _, row in ipairs(c.gemm.rows) do
    local size = row.gemm
    if size then
      lines[#lines + 1] = ("gemm,%s,%d,%d,%d,,,%.3f"):format(c.dtype, size.m, size.n, size.k,
        row.us)
    end
  end
  for _, kind in ipairs(TABLES) do
    for _, row in ipairs(c[kind] and c[kind].rows or {}) do
      lines[#lines + 1] = ("%s,,,,,%d,%d,%.3f"):format(kind, c.ranks, row.x, row.us)
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

local HEAD = [[
-- Measured by `moebench calibrate`; %s, %s.
-- In a recipe in the same folder:
--   cluster = moe.cluster.custom(moe.machine "%s")
-- The .csv file next to it has the measured times of GEMMs and collectives for moe.op_table.
-- collectives: rows { bytes per rank, us }. overlap: the factors by which compute takes longer
-- while a transfer of `blocks` CUDA blocks runs. residuals: measurements behind the fitted lines
-- t = alpha_us + work / per_s; a row is { flops or bytes, us, spread between quartiles, number of
-- samples, op }; worst_row counts from 1.
return %s
]]

-- Returns the part of the machine file's head that states on what each rank computed.
local function where(c)
  if c.executor ~= "cuda" then return "one thread per rank" end
  return core.processes and "one GPU per rank, collectives by NCCL"
    or "all ranks on one GPU, with copies between their buffers"
end

-- Returns the number of ranks to measure: one per process of a job, else --ranks or DEFAULT_RANKS.
local function num_ranks()
  local n, asked = core.processes, core.args.ranks
  if n and asked and asked ~= n then
    errors.user(("--ranks %d: differs from the number of started processes, %d, each of which is "
      .. "one rank; omit --ranks"):format(asked, n))
  end
  return n or asked or DEFAULT_RANKS
end

--- Measures this machine, prints the results and writes `file` and its CSV into the output folder.
function M.calibrate(file)
  if core.args.precision == "bf16" and core.args.device ~= "cuda" then
    errors.user("--precision bf16: is only possible with --device cuda; the CPU computes in f32")
  end
  local missing = core.args.device == "cuda" and core.executor_missing "cuda"
  if missing then errors.user("--device cuda: " .. missing) end
  local c = core.calibrate(num_ranks())
  core.say(("%s\n%d rank%s; spread: distance between the quartiles of an operation's samples, over "
    .. "their median"):format(c.machine, c.ranks, c.ranks == 1 and "" or "s at the same time"))
  core.say("\n" .. fits_text(c))
  if c.all_to_all then core.say("\n" .. tables_text(c)) end
  if c.overlap then core.say("\n" .. overlap_text(c.overlap)) end
  core.say("\nwritten: "
    .. core.write_output(file, HEAD:format(c.dtype, where(c), file,
      assert(lua_text.text(M.file_of(c), "", 9)))))
  core.say("written: " .. core.write_output(file:gsub("%.lua$", "") .. ".csv", M.csv_of(c)))
end

return M
