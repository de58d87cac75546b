-- moe.train{...} and moe.plan{...}: one run or one plan from a script.
local core = require "moe.core"
local cluster_lib = require "moe.cluster"
local errors = require "moe.errors"
local model_lib = require "moe.model"
local schema = require "moe.schema"
local system_lib = require "moe.system"
local target = require "moe.target"

local M = {}

local function typed(value, mt, path, what, at)
  if type(value) ~= "table" or getmetatable(value) ~= mt then
    errors.user(("%s: %s is not allowed; give %s"):format(path, schema.show(value), what),
      path:match("([%w_]+)$"), at)
  end
  return value
end
M.typed = typed

function M.check_model(value, path, at)
  return typed(value, model_lib.mt, path, "a model, as moe.model.gpt2_moe {...}", at)
end
function M.check_system(value, path, at)
  return typed(value, system_lib.mt, path, 'a system, as moe.system "raf" {}', at)
end
function M.check_cluster(value, path, at)
  return typed(value, cluster_lib.mt, path, "a cluster, as moe.cluster.p4de { nodes = 2 }", at)
end

--- Fields of a real run, in moe.train and in the executor entries of an experiment.
M.RUN_FIELDS = {
  ranks = { type = "integer", lo = 1, hi = 4096, default = 1,
    doc = "ranks; threads of this process" },
  steps = { type = "integer", lo = 1, hi = 1e9, default = 1, doc = "training steps" },
  precision = { type = "string", enum = { "f32", "f64" }, default = "f32" },
  init = { type = "string", enum = { "reference" }, default = "reference" },
  tokens = { type = "string", enum = { "text", "reference" }, doc = "where tokens come from" },
  text = { type = "string", doc = "a UTF-8 file or folder; a corpus of this machine" },
  link = { type = "table", doc = "{ bytes_per_s =, latency_us = }: the emulated link" },
  optimizer = { type = "table", doc = "{ name =, lr =, momentum = }" },
  eval_batches = { type = "integer", lo = 0, hi = 1e6, default = 0,
    doc = "held-out batches after training" },
  resume_from = { type = "string", doc = "a checkpoint of the same model" },
  checkpoint_to = { type = "string", doc = "written atomically" },
  checkpoint_every = { type = "integer", lo = 0, hi = 1e9, default = 0,
    doc = "steps; 0: at the end" },
  timeout_s = { type = "number", lo = 0.01, hi = 1e6, default = 60,
    doc = "how long a collective waits for a peer" },
}

--- The core's run options from checked fields.
function M.run_options(t, resolved, at)
  local tokens = t.tokens or "text"
  if tokens == "reference" and t.text then
    errors.user("text: tokens = 'reference' reads no text; give one of the two", "text", at)
  end
  if tokens == "text" and resolved.vocab < 256 then
    errors.user(("model.vocab: %d is too small for bytes of a text; give at least 256"):format(
      resolved.vocab), "vocab", at)
  end
  return {
    executor = "cpu", steps = t.steps, precision = t.precision, emulate_link = t.link ~= nil,
    timeout_s = t.timeout_s, init = t.init, eval_batches = t.eval_batches,
    data = tokens == "reference" and { kind = "reference" }
      or { kind = "text", path = t.text or core.default_corpus(), seed = core.args.seed or 1 },
    resume_from = t.resume_from, checkpoint_to = t.checkpoint_to,
    checkpoint_every = t.checkpoint_every,
  }
end

local function merged(a, b)
  local out = {}
  for k, v in pairs(a) do out[k] = v end
  for k, v in pairs(b) do out[k] = v end
  return out
end
M.merged = merged

local TRAIN = merged(M.RUN_FIELDS, {
  model = { type = "any", required = true, doc = "moe.model.gpt2_moe {...}" },
  system = { type = "any", doc = "moe.system; raf" },
  executor = { type = "string", enum = { "cpu" }, default = "cpu" },
})

--- Stops a rank's evaluation of the recipe before anything runs.
function M.stop_in_policy_mode()
  if core.mode == "policies" then error({ kind = "stop" }, 0) end
end

function M.train(t)
  local at = errors.here()
  local c = schema.check(TRAIN, t, "moe.train", at)
  local model = M.check_model(c.model, "moe.train.model", at)
  local system = c.system and M.check_system(c.system, "moe.train.system", at)
    or system_lib.system "raf" {}
  local link = c.link and schema.check(target.LINK, c.link, "moe.train.link", at)
  local optimizer = target.optimizer(c.optimizer, "moe.train.optimizer", at)
  M.stop_in_policy_mode()
  local spec = target.cpu_spec(model, c.ranks, link, optimizer, c.precision)
  local options = M.run_options(c, spec.model, at)
  options.keep_grad_norms = true
  -- Without a search nothing depends on times, so nothing need be profiled.
  local candidates = system_lib.expand(system)
  local timed = #candidates > 1
  for _, stage in ipairs(candidates[1].stages) do timed = timed or stage.name == "dw_schedule" end
  local plan
  if timed then
    plan = target.plan(spec, system)
  else
    spec.system = candidates[1]
    spec.cost = { kind = "roofline" }
    plan = errors.call(at, nil, core.plan, spec)
  end
  local r = errors.call(at, nil, plan.run, plan, options)
  r.plan = plan
  return r
end

local PLAN = {
  model = { type = "any", required = true }, cluster = { type = "any", required = true },
  system = { type = "any", required = true }, optimizer = { type = "table" },
}

local Plan = {}
Plan.__index = Plan

function Plan:order(lane) return errors.call(nil, nil, self.core.order, self.core, lane) end
function Plan:text() return self.core:text() end
function Plan:memory()
  local info = self.core:info()
  return { peak_bytes = info.peak_bytes, liveness_bytes = info.liveness_bytes,
    arena_bytes = info.arena_bytes, persistent_bytes = info.persistent_bytes,
    holders = info.holders }
end
function Plan:info() return self.core:info() end
function Plan:simulate() return self.sim end
--- The decisions of the passes, a line each: op, stage, why.
function Plan:explain()
  local lines = {}
  for _, d in ipairs(self.core:info().log) do
    lines[#lines + 1] = ("%s  [%s]  %s"):format(d.op, d.stage, d.why)
  end
  return table.concat(lines, "\n")
end

function M.plan(t)
  local at = errors.here()
  local c = schema.check(PLAN, t, "moe.plan", at)
  local model = M.check_model(c.model, "moe.plan.model", at)
  local cluster = M.check_cluster(c.cluster, "moe.plan.cluster", at)
  local system = M.check_system(c.system, "moe.plan.system", at)
  M.stop_in_policy_mode()
  local spec = target.cluster_spec(model, cluster, system,
    target.optimizer(c.optimizer, "moe.plan.optimizer", at))
  local plan, sim, choice = target.plan(spec, system)
  return setmetatable({ core = plan, sim = sim, choice = choice }, Plan)
end

return M
