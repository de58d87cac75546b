-- Executes the best mixes of a search and the plain one on CPU ranks, and says whether they are in
-- the order that was predicted for these ranks.
local core = require "moe.core"
local errors = require "moe.base.errors"
local experiment = require "moe.run.experiment"
local schema = require "moe.base.schema"
local train = require "moe.run.train"

local M = {}

M.FIELDS = {
  mixes = { type = "integer", lo = 1, hi = 20, default = 1,
    doc = "how many of the best mixes are executed beside the plain one" },
  ranks = { type = "integer", lo = 2, hi = 64, default = 2, doc = "number of ranks" },
  steps = { type = "integer", lo = 3, hi = 1e6, default = 25, doc = "number of steps" },
  pace = schema.optional(train.REAL_RUN.pace),
  link = { type = train.LINK, default = { bytes_per_s = 1e8, latency_us = 20 },
    doc = "the emulated link" },
  model = { type = "table",
    doc = "fields of the model that are replaced, since most models are too large for CPU ranks; "
      .. "default, for moe.model.gpt2_moe: at most 4 layers, hidden 128, seq 128, vocab 256, 8 "
      .. "sequences and 2 experts per rank" },
}

schema.record("search executed", "executed", "what the executed runs of a search say", {
  { "runs", "moe.Run[]", "the executed runs" },
  { "pairs", "{ a: string, b: string, predicted: number, executed: number, verdict: string, "
    .. "disturbed: boolean, held: boolean? }[]", "for each two of the executed mixes: their "
    .. "predicted and executed ratio of times, whether a run was disturbed, and whether the order "
    .. "is the predicted one; nil where a run was disturbed, the executed difference is not "
    .. "resolved or the predicted one is below 1%" },
  { "held", "integer", "number of pairs whose order is the predicted one" },
  { "compared", "integer", "number of pairs that are resolved and not disturbed" },
  { "refused", "{ mix: string, techniques: string, why: string }[]",
    "mixes that are not executed, since these ranks refuse their plans; the next best ones are" },
})

--- Returns the checked fields of `execute`: a number of mixes, or a table of FIELDS.
function M.check(given, at)
  if type(given) ~= "table" then
    given = { mixes = schema.field({ type = "integer", lo = 1, hi = 20 }, given,
      "moe.search.execute", at) }
  end
  return schema.check(M.FIELDS, given, "moe.search.execute", at)
end

local LARGEST = { layers = 4, hidden = 128, heads = 4, seq = 128, vocab = 256,
  batch_per_device = 8, experts_per_device = 2 }

-- Returns the fields of a small model of the same kind.
local function small(model, at)
  if model.root ~= "model.gpt2_moe" then
    errors.user(("moe.search.execute.model: is missing; give the fields of %s that make it small "
      .. "enough for CPU ranks, for example { layers = 2, ... }"):format(model.name), at)
  end
  local fields = {}
  for name, most in pairs(LARGEST) do
    fields[name] = math.min(model[name] or most, most)
  end
  return fields
end

local MOST_TRIED = 50  -- mixes that are tried on the ranks, the best first, until enough are found

local LEAST = 0.01  -- predicted differences below this are no order

--- Returns what two executed runs say, an entry of `pairs` of the type "search executed". d: their
--- difference (moe.results.paired).
function M.pair(d)
  local a, b = d.a, d.b
  local predicted = a.prediction.iteration_ms / b.prediction.iteration_ms
  local disturbed = (a.disturbed or b.disturbed) ~= nil
  local held
  if not disturbed and d.verdict ~= "not resolved" and math.abs(predicted - 1) >= LEAST then
    held = (predicted < 1) == (d.ratio < 1)
  end
  return { a = a.system, b = b.system, predicted = predicted, executed = d.ratio,
    verdict = d.verdict, disturbed = disturbed, held = held }
end

--- Executes the plain mix and the best ones that can be planned on these ranks; returns the type
--- "search executed". o: the checked fields of `execute`.
function M.run(c, o, space, tried, best, weight)
  local entry = { "cpu", ranks = o.ranks, steps = o.steps, link = o.link, pace = o.pace,
    model = o.model or small(c.model, tried.at) }
  local function executes(systems)
    return experiment.new { name = c.name .. "_executed", model = c.model,
      systems = systems, optimizer = c.optimizer, run = { entry }, band = "none" }
  end
  local systems = { space:system(space:plain(), "plain", tried.at) }
  local out = { runs = core.array {}, pairs = core.array {}, held = 0, compared = 0,
    refused = core.array {} }
  for i, mix in ipairs(tried:best_mixes(best, weight, MOST_TRIED)) do
    local system = space:system(mix, i == 1 and "best" or "mix_" .. i, tried.at)
    local refusal = #space:chosen(mix) > 0 and experiment.refusal(executes { system })
    if refusal then
      table.insert(out.refused, { mix = system.name, techniques = space:label(mix),
        why = tried:reason(refusal) })
    elseif #space:chosen(mix) > 0 then  -- the plain mix is executed anyhow
      systems[#systems + 1] = system
    end
    if #systems > o.mixes then break end
  end
  local R = experiment.run(executes(systems))
  out.runs = core.array(R.runs)
  for _, d in ipairs(R:differences()) do
    local pair = M.pair(d)
    table.insert(out.pairs, pair)
    if pair.held ~= nil then
      out.compared = out.compared + 1
      out.held = out.held + (pair.held and 1 or 0)
    end
  end
  return out
end

return M
