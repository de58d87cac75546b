-- moe.prophet: Pro-Prophet's planner (Algorithm 1) with its performance model, and placement
-- policies, the engine's and those of techniques/balance, applied to counts that a recipe gives.
-- There is no model and no cluster, and nothing is simulated. Units: seconds, bytes, inputs (the
-- paper's word for routed rows).
local balance = require "moe.techniques.balance"
local core = require "moe.core"
local errors = require "moe.base.errors"
local layers = require "moe.techniques.balance.layer"
local optimum = require "moe.techniques.balance.optimum"
local schema = require "moe.base.schema"

local M = {}

local function at_least_0(doc, default)
  return { type = "number", lo = 0, hi = 1e30, doc = doc, default = default,
    required = default == nil }
end

local function above_0(doc, required)
  return { type = "number", lo = 1e-9, hi = 1e30, doc = doc, required = required }
end

local COUNT = { type = "integer", lo = 0, hi = 1e12, doc = "number of inputs" }

-- With their defaults equations 4 and 5 are the printed ones.
local RATES = schema.declared "placement_rates"

local ROUTED = { type = "list", of = { type = "list", of = COUNT, least = "number" },
  required = true, least = "row",
  doc = "routed[expert][device]: number of the device's inputs for the expert" }

-- The rates by which a layer takes time. needed: whether all must be given.
local function rates_of(needed)
  local function rate(field)
    field.required = needed
    return field
  end
  return {
    input_bytes = rate(at_least_0 "bytes of one input"),
    expert_bytes = rate(at_least_0 "bytes of one expert's parameters; its gradients have as many"),
    bytes_per_s = rate(above_0 "bytes per second that a device receives in an all-to-all (B)"),
    inputs_per_s = rate(above_0 "inputs per second through an expert's forward (t)"),
  }
end

local COUNTS = {
  routed = ROUTED,
  copy_bytes_per_s = above_0("bytes per second that a device receives while experts are copied; "
    .. "default: bytes_per_s"),
  equation = { type = "integer", default = 6,
    doc = "equation of the paper for the time: 6, copies block compute; 8, compute hides copies" },
  fnec_s = at_least_0("forward compute of the block before without its experts, beside which "
    .. "copies travel, seconds; for equation 8", 0),
  bnec_s = at_least_0("as fnec_s, for the backward; seconds, for equation 8", 0),
  experts_before_s = { type = "number", lo = 0, hi = 1e30,
    doc = "forward compute of the experts of the block before, seconds, for equation 8; default: "
      .. "that of this layer, as the paper prints it" },
  scatter_share = RATES.scatter_share,
  scatter_group = RATES.scatter_group,
}

M.PLAN = schema.merged(schema.merged(COUNTS, rates_of(true)), {
  alpha = at_least_0("the search stops when max H - min H is below alpha times the mean of H; H "
    .. "is the list of the numbers of inputs that devices compute", 1),
  n = { type = "any", default = "auto", as = 'integer|"auto"',
    doc = 'number of devices that get no copy of a selected expert; "auto": all devices '
      .. "without inputs for the expert" },
  max_selected = { type = "integer", lo = 0, hi = 1e6,
    doc = "largest number of experts that are copied; default: all" },
})

local RESIDENTS = { type = "integer", lo = 1, hi = 1e6,
  doc = "slots per device for residents; default: as many as needed for one of each expert" }

-- Says what policies there are beside the engine's, with their options.
local function methods()
  local texts = {}
  for _, name in ipairs(schema.keys_of(balance)) do
    local options = {}
    for _, option in ipairs(schema.keys_of(balance[name].options)) do
      local field = balance[name].options[option]
      options[#options + 1] = ("%s (%g), %s"):format(option, field.default, field.doc)
    end
    texts[#texts + 1] = balance[name].doc .. (#options > 0
      and "; options: " .. table.concat(options, "; ") or "")
  end
  return table.concat(texts, ". ")
end

M.PLACE = schema.merged(schema.merged(COUNTS, rates_of(false)), {
  policy = { type = "string", required = true,
    doc = "name of a placement policy: a pass of `moebench list passes` that places experts, or "
      .. table.concat(schema.keys_of(balance), ", ") .. ". " .. methods() },
  options = { type = "table", default = {}, doc = "the policy's options, which are numbers" },
  state_bytes = at_least_0("bytes of one expert's optimizer state", 0),
  residents = RESIDENTS,
  shadows = { type = "integer", lo = 0, hi = 1e6,
    doc = "slots per device for copies; default: one for each expert. eplb, flexmoe and laer lay "
      .. "out all slots, residents + shadows, and have no shadows by default" },
})

M.OPTIMUM = {
  routed = ROUTED,
  residents = RESIDENTS,
  shadows = { type = "integer", lo = 0, hi = 1e6, default = 0,
    doc = "slots per device for copies" },
  layout = { type = "boolean", default = false,
    doc = "whether all slots may hold any expert; otherwise owners keep their experts" },
}

-- Returns n, or nil for "auto". Raises a user error for another value.
local function check_n(n, devices, at)
  if n == "auto" then return nil end
  local fits = type(n) == "number" and n == math.floor(n) and n >= 0 and n < devices
  if fits then return n end
  schema.refuse("moe.prophet.plan.n", n, ("an integer from 0 to %d, or 'auto'"):format(
    devices - 1), at)
end

local function check_routed(routed, path, at)
  local devices = #routed[1]
  for e, row in ipairs(routed) do
    if #row ~= devices then
      errors.user(("%s[%d]: has %d numbers, but routed[1] has %d; give one for each device"):format(
        path, e, #row, devices), at)
    end
  end
  return devices
end

-- Checks the fields; returns them and the number of devices.
local function checked(fields, t, path, at)
  local c = schema.check(fields, t, path, at)
  if c.equation ~= 6 and c.equation ~= 8 then
    schema.refuse(path .. ".equation", c.equation, "6 or 8", at)
  end
  return c, check_routed(c.routed, path .. ".routed", at)
end

local function plan(t)
  local at = errors.here()
  local c, devices = checked(M.PLAN, t, "moe.prophet.plan", at)
  c.n = check_n(c.n, devices, at)
  return errors.call(at, core.prophet_plan, c)
end

-- Raises a user error unless all of the rates by which a layer takes time are given, or none.
local function check_rates(c, at)
  local given, missing
  for _, name in ipairs(schema.keys_of(rates_of(true))) do
    if c[name] then given = name else missing = missing or name end
  end
  if given and missing then
    errors.user(("moe.prophet.place.%s: is missing, although %s is given; give all four rates for "
      .. "times, or none"):format(missing, given), at)
  end
end

-- The policies of the engine that lay out all slots of a device, as `pooled` ones of `balance` do.
local POOLED = { eplb = true }

local function place(t)
  local at, path = errors.here(), "moe.prophet.place"
  local c, devices = checked(M.PLACE, t, path, at)
  check_rates(c, at)
  local method = balance[c.policy]
  local pooled = POOLED[c.policy] or method and method.pooled
  if pooled then
    -- A device holds an expert once, so slots beyond the number of experts stay empty.
    local own = c.residents or math.ceil(#c.routed / devices)
    c.residents = math.max(own, math.min(own + (c.shadows or 0), #c.routed))
    c.shadows = 0
  end
  c.shadows = c.shadows or #c.routed
  local layer = layers.new(c.routed, c.residents, c.shadows)
  if method then
    c.options = schema.check(method.options, c.options, path .. ".options", at)
    if layer.residents * devices < layer.experts then
      schema.refuse(path .. ".residents", layer.residents, ("at least %d, for %d experts on %d "
        .. "devices"):format(math.ceil(layer.experts / devices), layer.experts, devices), at)
    end
    local made = method.plan(layer, c.options)
    c.placed = { holders = made.holders, moves = made.moves }
  else
    for _, name in ipairs(schema.keys_of(c.options)) do
      schema.field({ type = "number" }, c.options[name], path .. ".options." .. name, at)
    end
  end
  local placed = errors.call(at, core.prophet_place, c)
  placed.bound, placed.replicas = optimum.bound(layer, pooled), -#placed.holders
  for _, holders in ipairs(placed.holders) do
    placed.replicas = placed.replicas + #holders
  end
  return placed
end

local MOST_CASES = 1e6

local least_load = schema.taking(M.OPTIMUM, "moe.prophet.optimum", function(c, at)
  local path = "moe.prophet.optimum"
  check_routed(c.routed, path .. ".routed", at)
  if c.layout then
    c.residents = (c.residents or math.ceil(#c.routed / #c.routed[1])) + c.shadows
  end
  local layer = layers.new(c.routed, c.residents, c.shadows)
  local cases = optimum.cases(layer, c.layout) * 2 ^ layer.devices
  if cases > MOST_CASES or layer.devices > 20 then
    errors.user(("%s: %.3g cases would be tried, at most %g are; give fewer experts, devices or "
      .. "slots"):format(path, cases, MOST_CASES), at)
  end
  return optimum.optimum(layer, c.layout)
end)

local DEVICES = {
  { "computed", "integer[]", "inputs that each device computes" },
  { "received", "integer[]", "inputs that each device receives" },
  { "computed_without", "integer[]", "`computed` without copies or moves" },
  { "received_without", "integer[]", "`received` without copies or moves" },
  { "balance", "number", "standard deviation of `computed`" },
  { "balance_without", "number", "standard deviation of `computed_without`" },
  { "rb", "number", "balance_without divided by balance" },
}

schema.record("prophet plan", "plan", "the devices to which experts are copied for one step", {
  { "selected", "{ expert: integer, devices: integer[] }[]",
    "the copied experts, each with the devices that get a copy, without the owner" },
  { "time_s", "number", "time of the layer" },
  { "time_without_s", "number", "time of the layer without copies" },
  unpack(DEVICES) })

schema.record("prophet placed", "placed",
  "a placement of experts for given counts; times are nil if no rates are given", {
  { "holders", "integer[][]", "for each expert its devices, the owner first" },
  { "replicas", "integer", "number of holders besides one per expert" },
  { "bound", "integer", "inputs that the device with most computes at least, by any policy with "
    .. "as many slots" },
  { "time_s", "number?", "time of the layer" },
  { "time_without_s", "number?", "time of the layer without copies or moves" },
  { "move_s", "number?", "time to move the residents that change devices" },
  { "break_even_steps", "number?", "number of steps until the gain exceeds move_s" },
  unpack(DEVICES) })

M.functions = schema.functions("moe.prophet", "function", {
  optimum = { least_load, M.OPTIMUM, "integer",
    "the least number of inputs that the device with most must compute, over all ways to fill the "
      .. "slots of a small layer and to share inputs among holders; tries them all" },
  place = { place, M.PLACE, "moe.ProphetPlaced", "applies a placement policy to the counts" },
  plan = { plan, M.PLAN, "moe.ProphetPlan",
    "plans with Pro-Prophet's planner which experts are copied to which devices for one step; the "
      .. "experts are owned by the devices in order, equally many by each" },
})

return M
