-- moe.prophet: Pro-Prophet's planner (Algorithm 1) with its performance model, and the placement
-- policies with which the paper compares it, applied to counts that a recipe gives. There is no
-- model and no cluster, and nothing is simulated. Units: seconds, bytes, inputs (the paper's word
-- for routed rows).
local core = require "moe.core"
local errors = require "moe.base.errors"
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

local COUNTS = {
  routed = { type = "list", of = { type = "list", of = COUNT }, required = true,
    doc = "routed[expert][device]: number of the device's inputs for the expert" },
  input_bytes = at_least_0 "bytes of one input",
  expert_bytes = at_least_0 "bytes of one expert's parameters; its gradients have as many",
  bytes_per_s = above_0("bytes per second that a device receives in an all-to-all (B)", true),
  copy_bytes_per_s = above_0("bytes per second that a device receives while experts are copied; "
    .. "default: bytes_per_s"),
  inputs_per_s = above_0("inputs per second through an expert's forward (t)", true),
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

M.PLAN = schema.merged(COUNTS, {
  alpha = at_least_0("the search stops when max H - min H is below alpha times the mean of H; H "
    .. "is the list of the numbers of inputs that devices compute", 1),
  n = { type = "any", default = "auto", as = 'integer|"auto"',
    doc = 'number of devices that get no copy of a selected expert; "auto": all devices '
      .. "without inputs for the expert" },
  max_selected = { type = "integer", lo = 0, hi = 1e6,
    doc = "largest number of experts that are copied; default: all" },
})

M.PLACE = schema.merged(COUNTS, {
  policy = { type = "string", required = true, doc = "the name of a placement policy" },
  options = { type = "table", default = {}, doc = "the policy's options, which are numbers" },
  state_bytes = at_least_0("bytes of one expert's optimizer state", 0),
  residents = { type = "integer", lo = 1, hi = 1e6,
    doc = "slots per device for residents; default: as many as needed for one of each expert" },
  shadows = { type = "integer", lo = 0, hi = 1e6,
    doc = "slots per device for copies; default: one for each expert" },
})

-- Returns n, or nil for "auto". Raises a user error for another value.
local function check_n(n, devices, at)
  if n == "auto" then return nil end
  local fits = type(n) == "number" and n == math.floor(n) and n >= 0 and n < devices
  if fits then return n end
  schema.refuse("moe.prophet.plan.n", n, ("an integer from 0 to %d, or 'auto'"):format(
    devices - 1), at)
end

local function check_routed(routed, path, at)
  if #routed == 0 then
    errors.user(path .. ": the list is empty; give a row for each expert", at)
  end
  local devices = #routed[1]
  if devices == 0 then
    errors.user(path .. "[1]: the list is empty; give a number for each device", at)
  end
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

local function place(t)
  local at = errors.here()
  local c = checked(M.PLACE, t, "moe.prophet.place", at)
  for _, name in ipairs(schema.keys_of(c.options)) do
    schema.field({ type = "number" }, c.options[name], "moe.prophet.place.options." .. name, at)
  end
  return errors.call(at, core.prophet_place, c)
end

local DEVICES = {
  { "time_s", "number", "time of the layer" },
  { "time_without_s", "number", "time of the layer without copies or moves" },
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
  unpack(DEVICES) })

schema.record("prophet placed", "placed", "a placement of experts for given counts", {
  { "holders", "integer[][]", "for each expert its devices, the owner first" },
  { "move_s", "number", "time to move the residents that change devices" },
  { "break_even_steps", "number", "number of steps until the gain exceeds move_s" },
  unpack(DEVICES) })

M.functions = schema.functions("moe.prophet", "function", {
  place = { place, M.PLACE, "moe.ProphetPlaced", "applies a placement policy to the counts" },
  plan = { plan, M.PLAN, "moe.ProphetPlan",
    "plans with Pro-Prophet's planner which experts are copied to which devices for one step; the "
      .. "experts are owned by the devices in order, equally many by each" },
})

return M
