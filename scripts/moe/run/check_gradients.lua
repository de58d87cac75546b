-- moe.check_gradients{...}: the gradients of a model's parameters against central differences of
-- its loss, on real ranks in float64.
local core = require "moe.core"
local errors = require "moe.base.errors"
local model_lib = require "moe.spec.model"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"
local system_lib = require "moe.spec.system"
local target = require "moe.spec.target"
local train = require "moe.run.train"

local M = {}

M.FIELDS = schema.merged(schema.picked(train.TRAIN, { "model", "grid", "system", "ranks", "tokens",
  "text", "parameters" }), {
  step = { type = "number", lo = 1e-8, hi = 1, default = 1e-4,
    doc = "Euclidean norm of the change of a parameter, which is moved along one direction" },
})

schema.record("gradient", "g", "the gradient of a parameter", {
  { "parameter", "string", "name of the parameter" },
  { "gradient", "number", "the gradient along the direction, by the model's backward" },
  { "difference", "number", "by the central difference of the loss" },
  { "norm", "number", "Euclidean norm of the parameter's gradient" },
  { "error", "number", "the difference of the two, divided by the norm" },
})

-- Returns the norm of the direction in which a parameter of n elements is moved: element i by
-- i % 13 - 6.
local function direction_norm(n)
  local sum = 0
  for i = 0, 12 do
    sum = sum + (i - 6) ^ 2 * (math.floor(n / 13) + (i < n % 13 and 1 or 0))
  end
  return math.sqrt(sum)
end

-- Returns the loss of the first step with all that routers and MTP layers add to it.
local function loss_of(result)
  local loss = result.losses[1]
  for _, layer in ipairs(result.moe[1] or {}) do
    loss = loss + (layer.balance_loss or 0) + (layer.z_loss or 0)
  end
  for _, more in ipairs(result.mtp_losses[1]) do loss = loss + more end
  return loss
end

--- moe.check_gradients{...}: returns a list with one entry per parameter, the worst first, and the
--- largest error. A parameter whose gradient is 0 has the error 0 if the loss does not change.
M.check_gradients = schema.taking(M.FIELDS, "moe.check_gradients", function(c, at)
  errors.stop_in "policies"
  c.model = model_lib.on(c.model, c.grid)
  local fields = schema.merged(c, { executor = "cpu", precision = "f64", steps = 1,
    init = "reference", eval_batches = 0, checkpoint_every = 0, check_finite = true,
    timeout_s = 60 })
  local spec = target.real_spec("cpu", c.model, settings.ranks(c.ranks), nil,
    { name = "sgd", lr = 0, momentum = 0 }, "f64")
  spec.cost = { kind = "none" }
  local options = train.run_options("cpu", fields, spec, "moe.check_gradients", at)
  local system = c.system or system_lib.system "raf" {}
  local plan = target.plan_of(spec, system_lib.expand(system)[1][1], at)
  errors.stop_in "check"
  local function run(more)
    return errors.call(at, plan.run, plan, schema.merged(options, more))
  end
  local base = run { keep_grad_norms = true }
  local list = core.array {}
  for _, p in ipairs(model_lib.counts(c.model).parameters) do
    local length = direction_norm(p.elements)
    local by = c.step / math.max(length, 1)
    local up = loss_of(run { moved = { parameter = p.name, by = by } })
    local down = loss_of(run { moved = { parameter = p.name, by = -by } })
    local gradient, norm = base.grad_projection[p.name], base.grad_l2[p.name]
    local difference = (up - down) / (2 * by)
    local scale = norm * length
    list[#list + 1] = { parameter = p.name, gradient = gradient, difference = difference,
      norm = norm, error = math.abs(gradient - difference) / (scale > 0 and scale or 1) }
  end
  table.sort(list, function(a, b) return a.error > b.error end)
  return list, list[1] and list[1].error or 0
end)

return M
