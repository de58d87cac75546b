-- The fields of results.json that this program reads, with their types; "?" after a name marks a
-- field that may be absent. The file may have further fields. Fields of runs also have the types
-- that moe.Run documents.
local schema = require "moe.base.schema"
local shape = require "moe.results.page.shape"
local typed = require "moe.base.typed"

local M = {}

-- A search's mixes, and a run of its front.
local SEEN = { iteration_ms = "number", peak_bytes = "number", ["label?"] = "string" }
local FOUND = { iteration_ms = "number", compute_ms = "number", comm_ms = "number",
  exposed_comm_ms = "number", hidden_comm_ms = "number", peak_bytes = "number", system = "string",
  ["choice?"] = "string", ["oom?"] = "boolean" }
local MOVED = { { constant = "string", lo = "number", hi = "number", ["at_lo?"] = "number",
  ["at_hi?"] = "number" } }
local FOLDER = { version = "string", seed = "number", ["date?"] = "string", ["lines?"] = "number",
  machine = { cpu = "string", cores = "number", kernel_set = "string", ["git?"] = "string" },
  ["recipe?"] = { name = "string", hash = "string" },
  experiments = { { name = "string", ["title?"] = "string", ["set?"] = "table",
    ["planned?"] = "number",
    ["refused?"] = { { point = "table", system = "string", reason = "string" } } } },
  runs = { { experiment = "string", system = "string", executor = "string", cluster = "string",
    devices = "number", parameters = "table", lower_bound_ms = "number", peak_bytes = "number",
    ["packing?"] = { n = "number" }, ["assumed?"] = "table" } },
  claims = { { id = "string", figure = "string", text = "string", unit = "string",
    verdict = "string", paper = "number", ["ours?"] = "number", ["lo?"] = "number",
    ["hi?"] = "number", ["reason?"] = "string", ["label?"] = "string", ["note?"] = "string",
    sensitivity = MOVED } },
  ["sensitivities?"] = { { experiment = "string", name = "string", unit = "string", ours = "number",
    lo = "number", hi = "number", sensitivity = MOVED } },
  ["searches?"] = { { name = "string", front = { FOUND }, seen = { SEEN }, best = FOUND,
    plain = FOUND, top = { FOUND }, named = { FOUND },
    contributions = { { technique = "string", ["without_ms?"] = "number", best_ms = "number",
      ["without_bytes?"] = "number", ["oom?"] = "boolean", ["why?"] = "string" } },
    order = { { second = "string", holds = "boolean", changes = { "string" },
      ["not_seen?"] = "number" } },
    refused = { { techniques = "string", why = "string", n = "number" } },
    policies = { { policy = "string", n = "number", refused = "number", ["why?"] = "string",
      ["best_ms?"] = "number", ["techniques?"] = "string" } },
    ["beyond?"] = "string", ["bound_ms?"] = "number", ["least_bound_ms?"] = "number",
    searched_s = "number", ["not_simulated?"] = "number",
    ["budget_s?"] = "number", ["interrupted?"] = "boolean",
    model = "string", cluster = "string", devices = "number", memory_bytes = "number",
    steps = "number", cached = "number", took_s = "number", simulated = "number",
    no_rows = "number", ["no_room?"] = "string", excluded = "number",
    not_allowed = "number", too_large = "number", space = "number", exhaustive = "boolean" } },
}
local TIMES = { iteration_ms = "number", compute_ms = "number", comm_ms = "number",
  exposed_comm_ms = "number", hidden_comm_ms = "number" }
local ENDED = schema.merged(TIMES, { provenance = "string", samples_ms = { "number" } })
local SIMULATED = { point = "table" }
local OUT_OF_MEMORY = { model = "string", ["memory_bytes?"] = "number", holders = { "string" },
  ["peak_parts?"] = { { what = "string", bytes = "number" } } }
local EXECUTED = { points = { "table", least = 1 }, losses = { "number", least = 1 },
  drops = { "number", least = 1 }, ["executed_peak_bytes?"] = "number",
  ["launches_per_step?"] = "number",
  prediction = schema.merged(TIMES, { error = "number", ["disturbed_ops?"] = "number" }),
  ["link?"] = { bytes_per_s = "number", latency_us = "number", ["share?"] = "string",
    ["sharing_efficiency?"] = "number" }, ["eval_loss?"] = "number",
  ["unigram_entropy?"] = "number",
  parameters = { layers = "number", hidden = "number", seq = "number", experts = "number",
    batch_per_device = "number", gate = "string", capacity_factor = "number" } }
local CONSTANT = { value = "number", lo = "number", hi = "number", why = "string",
  ["source?"] = "string" }

local function check_ended(run, file, path)
  shape.check(run, ENDED, file, path)
  shape.check(run, run.provenance ~= "simulated" and EXECUTED or SIMULATED, file, path)
  if run.oom then shape.check(run, OUT_OF_MEMORY, file, path) end
  for name, constant in pairs(run.assumed or {}) do
    shape.check(constant, CONSTANT, file, path .. ".assumed." .. name)
  end
end

local function check_run(run, file, path)
  if run.iteration_ms then check_ended(run, file, path) end
  local name, wanted = typed.wrong(run, "moe.Run", {}, true)
  if name then
    shape.fail(file, path .. "." .. name, "is not of the type that is written, " .. wanted)
  end
end

--- Raises a user error that names the file and the first field that does not have the form in which
--- moebench writes it.
function M.check(data, file)
  shape.check(data, FOLDER, file)
  for i, run in ipairs(data.runs) do check_run(run, file, ("runs[%d]"):format(i)) end
  for i, claim in ipairs(data.claims) do
    if claim.ours then
      shape.check(claim, { lo = "number", hi = "number" }, file, ("claims[%d]"):format(i))
    end
  end
end

return M
