-- Documented numbers at the ends of their ranges, and random corners of them: a figure is finite
-- and not negative, communication is not exposed for longer than it takes and waits, a slower
-- machine is not faster; or the error is the user's and names a field that was set. Run by
-- test_ranges.cpp with the library's own field lists.
local cluster_lib = require "moe.spec.cluster"
local collectives_lib = require "moe.spec.collectives"
local model_lib = require "moe.spec.model"
local moe = require "moe"
local pipemoe_lib = require "moe.techniques.pipemoe"
local prophet_lib = require "moe.techniques.prophet"
local schema = require "moe.base.schema"

local M = {}

-- Park and Miller: the sandbox has no random numbers.
local state = 1
local function random(n)
  state = state * 16807 % 2147483647
  return state % n + 1
end

local function copy(t)
  if type(t) ~= "table" or getmetatable(t) then return t end
  local out = {}
  for k, v in pairs(t) do out[k] = copy(v) end
  return out
end

-- The numbers of a field list with a range, at any depth: { path = { "nic", "latency_us" }, field,
-- name }.
local function numbers(fields, path, out)
  path, out = path or {}, out or {}
  for _, name in ipairs(schema.keys_of(fields)) do
    local field = fields[name]
    local here = copy(path)
    here[#here + 1] = name
    if (field.type == "number" or field.type == "integer") and field.lo and field.hi then
      out[#out + 1] = { path = here, field = field, name = name }
    elseif type(field.type) == "table" then
      numbers(field.type, here, out)
    end
  end
  return out
end

local function set(t, path, value)
  for i = 1, #path - 1 do
    t[path[i]] = t[path[i]] or {}
    t = t[path[i]]
  end
  t[path[#path]] = value
end

-- From lo to hi in even steps of the logarithm.
local function ladder(field, steps)
  local out = {}
  for i = 0, steps do
    local low = field.lo > 0 and field.lo or field.hi * 1e-18
    local value = i == 0 and field.lo or i == steps and field.hi
      or low * (field.hi / low) ^ (i / steps)
    if field.type == "integer" and math.abs(value) < 1e15 then value = math.floor(value) end
    out[#out + 1] = math.min(math.max(value, field.lo), field.hi)
  end
  return out
end

local function text_of(changes)
  local parts = {}
  for i, c in ipairs(changes) do
    parts[i] = ("%s = %.17g"):format(table.concat(c.path, "."), c.value)
  end
  return table.concat(parts, ", ")
end

-- All numbers of a result, at any depth.
local function check_numbers(result, where)
  for key, value in pairs(result) do
    if type(value) == "table" then
      check_numbers(value, where .. "." .. tostring(key))
    elseif type(value) == "number" then
      -- A ratio whose lower part is 0.
      local may_be_infinite = key == "rb" or key == "break_even_steps"
      if not (value >= 0 and (value < math.huge or may_be_infinite)) then
        error(("%s.%s = %s"):format(where, tostring(key), tostring(value)), 0)
      end
    end
  end
end

-- A refusal names a field that was changed; or what no single field is to blame for: the op with
-- which a step is too long, or the tensors that are too large.
local function is_refusal(err, changes, subject)
  if type(err) ~= "table" or err.kind ~= "user" then return false end
  for _, field in ipairs(subject.names or {}) do
    if err.message:find(field, 1, true) then return true end
  end
  for _, c in ipairs(changes) do
    if err.message:find(c.path[#c.path], 1, true) then return true end
  end
  local clock = err.message:find "beyond the clock"
  return clock and err.message:find "op '" or clock and err.message:find "stage '"
    or err.message:find "tensor.*at most 2%^53"
end

-- Runs a subject with changes of its base; its figures, or nil where they are refused.
local function try(subject, changes)
  local t = copy(subject.base)
  for _, c in ipairs(changes) do set(t, c.path, c.value) end
  local what = ("%s with %s"):format(subject.name, text_of(changes))
  local ok, result = pcall(subject.run, t)
  if not ok then
    if is_refusal(result, changes, subject) then return nil end
    local message = type(result) == "table" and result.message or tostring(result)
    error(("%s: %s"):format(what, message), 0)
  end
  check_numbers(result, what)
  if subject.check then
    local wrong = subject.check(result)
    if wrong then error(("%s: %s"):format(what, wrong), 0) end
  end
  return result
end

-- Every failure counts; the first few are shown.
local failures
local function attempt(...)
  local ok, result = pcall(try, ...)
  if ok then return result end
  failures[#failures + 1] = tostring(result)
end

-- "falls" or "rises" with the field.
local function direction(name)
  if name:match "_per_s$" or name:match "efficiency$" then return "falls" end
  if name:match "_us$" or name:match "_s$" or name:match "^alpha" or name:match "^beta"
    or name:match "^start_ms" then
    return "rises"
  end
end

local function check_monotone(subject, number, seen)
  local way = direction(number.name)
  if not way or not subject.time then return end
  for i = 2, #seen do
    local a, b = seen[i - 1], seen[i]
    local before, after = subject.time(a.result), subject.time(b.result)
    if way == "falls" then before, after = after, before end
    if before > after * (1 + 1e-12) then
      failures[#failures + 1] = ("%s: %s = %g takes %.17g, %g takes %.17g"):format(subject.name,
        table.concat(number.path, "."), a.value, subject.time(a.result), b.value,
        subject.time(b.result))
    end
  end
end

local function skipped(subject, number)
  local path = table.concat(number.path, ".")
  for _, name in ipairs(subject.skip or {}) do
    if path == name then return true end
  end
end

local function ends(subject, all, steps)
  for _, number in ipairs(all) do
    local seen = {}
    for _, value in ipairs(ladder(number.field, steps)) do
      local result = attempt(subject, { { path = number.path, value = value } })
      if result then seen[#seen + 1] = { value = value, result = result } end
    end
    check_monotone(subject, number, seen)
    for _, bad in ipairs { 0 / 0, 1 / 0, -1 / 0, 1e308, -1e308 } do
      if attempt(subject, { { path = number.path, value = bad } }) then
        failures[#failures + 1] = ("%s: %s = %s passes"):format(subject.name,
          table.concat(number.path, "."), tostring(bad))
      end
    end
  end
end

local function corners(subject, all, count)
  for _ = 1, count do
    local changes, used = {}, {}
    for _ = 1, 1 + random(4) do
      local number = all[random(#all)]
      local steps = ladder(number.field, 4)
      if not used[number] then
        used[number] = true
        changes[#changes + 1] = { path = number.path, value = steps[random(#steps)] }
      end
    end
    attempt(subject, changes)
  end
end

--- The subjects' names, one per line.
function M.names() return table.concat(schema.keys_of(M.subjects), "\n") end

--- Runs one subject: each number in so many steps, and so many corners. What was wrong as text,
--- or "".
function M.run(name, steps, count)
  local subject = M.subjects[name]
  subject.name = name
  failures, state = {}, 1
  local all = {}
  for _, number in ipairs(numbers(subject.fields)) do
    if not skipped(subject, number) then all[#all + 1] = number end
  end
  assert(#all > 0, "no numbers")
  if attempt(subject, {}) == nil and #failures == 0 then error "the base is refused" end
  ends(subject, all, steps)
  corners(subject, all, count)
  if #failures == 0 then return "" end
  local shown = {}
  for i = 1, math.min(#failures, 12) do shown[i] = failures[i] end
  return ("%d failures\n%s"):format(#failures, table.concat(shown, "\n"))
end

M.subjects = {}

local CLUSTER = { nodes = 2, devices_per_node = 2, nics_per_node = 1,
  device = { gemm_flops_per_s = 1e14, vector_flops_per_s = 1e13, memory_bytes_per_s = 1e12,
    launch_us = 5 },
  intra = { bytes_per_s = 2e11, latency_us = 1 }, nic = { bytes_per_s = 2e10, latency_us = 3 } }
local MODEL = { layers = 2, hidden = 64, heads = 4, seq = 32, batch_per_device = 4, vocab = 128,
  experts_per_device = 2 }
-- Given with others, or in their place.
local PEAKS = { "device.peak_gemm_flops_per_s", "device.gemm_efficiency",
  "device.peak_memory_bytes_per_s", "device.memory_efficiency", "intra.peak_bytes_per_s",
  "intra.efficiency", "nic.peak_bytes_per_s", "nic.efficiency" }

local function step_check(r)
  local close = 1 + 1e-9
  if r.exposed_comm_ms > (r.comm_ms + r.wait_ms) * close + 1e-6 then
    return ("exposed %g of %g and %g"):format(r.exposed_comm_ms, r.comm_ms, r.wait_ms)
  end
  if r.hidden_comm_ms > r.comm_ms * close then return "more hidden than there is" end
  if r.iteration_ms < math.max(r.compute_ms, r.comm_ms) / close - 1e-6 then
    return "shorter than what it is made of"
  end
end

local function plan(model, cluster, system)
  local sim = moe.plan { model = moe.model.gpt2_moe(model), cluster = moe.cluster.custom(cluster),
    system = moe.system(system) {} }:simulate()
  return sim
end

for _, system in ipairs { "raf", "lina", "lancet", "prophet" } do
  local skip = copy(PEAKS)
  -- A placement of 65536 devices takes minutes, packing of 2048 one.
  if system == "prophet" then skip[#skip + 1] = "nodes" end
  if system == "prophet" or system == "lina" then skip[#skip + 1] = "devices_per_node" end
  M.subjects["cluster " .. system] = { fields = cluster_lib.FIELDS, base = CLUSTER, skip = skip,
    names = { "model.experts" },  -- as many as devices ask for
    run = function(t) return plan(copy(MODEL), t, system) end, check = step_check,
    -- Another order may be taken for other times.
    time = system == "raf" and function(r) return r.iteration_ms end or nil }
end

for _, system in ipairs { "raf", "lancet" } do
  M.subjects["model " .. system] = { fields = model_lib.FIELDS, base = MODEL,
    -- layers: 10^4 take a second each
    skip = { "layers", "batch", "experts" },
    run = function(t) return plan(t, copy(CLUSTER), system) end, check = step_check }
end

-- Two collectives that meet, of a kind each.
local function collectives_run(t)
  return moe.collectives { cluster = moe.cluster.custom(t.cluster), share = t.share,
    efficiency = t.efficiency, ops = { schema.merged(t.all_to_all, { kind = "all_to_all" }),
      schema.merged(t.all_reduce, { kind = "all_reduce" }) } }
end
for _, share in ipairs { "per_flow", "per_collective" } do
  M.subjects["collectives " .. share] = {
    fields = { cluster = { type = { intra = { type = cluster_lib.LINK },
        nic = { type = cluster_lib.LINK }, a2a_base_us = cluster_lib.FIELDS.a2a_base_us,
        a2a_per_peer_us = cluster_lib.FIELDS.a2a_per_peer_us,
        nodes = schema.merged(cluster_lib.FIELDS.nodes, { hi = 64 }) } },
      efficiency = collectives_lib.FIELDS.efficiency,
      all_to_all = { type = collectives_lib.OPS.all_to_all },
      all_reduce = { type = collectives_lib.OPS.all_reduce } },
    base = { share = share, cluster = CLUSTER, all_to_all = { bytes_per_pair = 1e6 },
      all_reduce = { bytes = 1e8 } },
    skip = { "all_to_all.channels", "all_to_all.priority", "all_reduce.priority",
      "all_reduce.after", "cluster.intra.efficiency",
      "cluster.intra.peak_bytes_per_s", "cluster.nic.efficiency", "cluster.nic.peak_bytes_per_s" },
    run = collectives_run,
    check = function(times)
      for i, op in ipairs(times) do
        if op.end_ms < op.begin_ms then return ("op %d ends before it begins"):format(i) end
        for _, ms in ipairs(op.rank_end_ms) do
          if ms > op.end_ms * (1 + 1e-9) then return ("a rank of op %d ends later"):format(i) end
        end
      end
    end }
end

local LINES = { alpha_a = 2e-4, beta_a = 3e-10, n_d = 1e7, alpha_e = 1e-4, beta_e = 8e-14,
  n_e = 1e10 }
local function seconds(r) return r.time_s end
for _, method in ipairs { "exact", "brute", "paper", "paper_fixed" } do
  M.subjects["pipemoe degree " .. method] = { fields = pipemoe_lib.DEGREE, base = LINES,
    time = method ~= "paper" and method ~= "paper_fixed" and seconds or nil,
    run = function(t) return moe.pipemoe.degree(schema.merged(t, { method = method })) end }
end
for _, by in ipairs { "closed_form", "recurrence" } do
  M.subjects["pipemoe time " .. by] = { fields = pipemoe_lib.TIME,
    base = schema.merged(LINES, { degree = 4 }), time = seconds,
    run = function(t) return { time_s = moe.pipemoe.time(schema.merged(t, { by = by })) } end }
end
local COUNTS = { input_bytes = 1e3, expert_bytes = 1e6, bytes_per_s = 1e10, inputs_per_s = 1e6 }
for _, equation in ipairs { 6, 8 } do
  for _, count in ipairs { 1, 1e12 } do
    local routed = { { count, 0 }, { count, count }, { 0, count }, { count, count } }
    local base = schema.merged(COUNTS, { equation = equation, routed = routed })
    M.subjects[("prophet plan %d %g"):format(equation, count)] = { fields = prophet_lib.PLAN,
      base = base, run = function(t) return moe.prophet.plan(t) end }
    for _, policy in ipairs { "fastermoe_shadowing", "eplb", "prophet", "swap", "ultraep", "echo",
      "moonep", "llep", "lplb", "laer", "flexmoe" } do
      M.subjects[("prophet place %s %d %g"):format(policy, equation, count)] = {
        fields = prophet_lib.PLACE, base = schema.merged(base, { policy = policy }),
        run = function(t) return moe.prophet.place(t) end }
    end
  end
end

return M
