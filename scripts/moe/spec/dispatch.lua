-- moe.dispatch{...}: what a dispatcher moves for given choices, in bare numbers, without a model.
local core = require "moe.core"
local dispatcher = require "moe.spec.dispatcher"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local PATH = "moe.dispatch."

local function wire(doc, default)
  return { type = "string", enum = { "bf16", "fp8", "fp32" }, default = default, doc = doc }
end

-- Options of dispatchers, of which each has some.
local OPTIONS = {
  prob_dtype = wire "allgather: element type of probabilities; default: fp32",
  order = { type = "string", doc = "two_level: intra_first (the default) or inter_first" },
  algorithm = { type = "string", doc = "allgather: direct (the default), ring or two_level" },
  nvlink_ll = { type = "boolean",
    doc = "deepep_ll: whether rows inside a node take NVLink; default: true" },
  multiple_reduction = { type = "boolean",
    doc = "deepep_v2: whether nodes add what their ranks send back; default: true" },
}
for _, name in ipairs { "capacity", "max_tokens", "sms" } do
  OPTIONS[name] = schema.optional(schema.declared "route"[name])
end

local function size(doc, hi)
  return { type = "integer", lo = 1, hi = hi, required = true, doc = doc }
end

M.SIZES = {
  ranks = size("ranks that exchange rows", 65536),
  ranks_per_node = size("ranks of a node, or of an NVLink domain", 65536),
  experts = size("experts of all ranks", 1e6),
  topk = size("choices per token", 1024),
  hidden = size("numbers of a row", 1e7),
  max_nodes = { type = "integer", lo = 1, hi = 65536, doc = "nodes that a token may reach" },
}

M.FIELDS = schema.merged(schema.merged(M.SIZES, OPTIONS), {
  dispatcher = { type = "any", as = "string|moe.Dispatcher", required = true,
    doc = "a name (moebench list dispatchers), or a value such as moe.dispatcher.deepep_v1 {}" },
  choices = { type = "any", as = "integer[][][]", required = true,
    doc = "experts by [rank][token], topk each, from 1; 0: none" },
  expert_rank = { type = "list", of = { type = "integer" }, default = {},
    doc = "the rank of each expert, from 1; default: consecutive experts, as many on each rank" },
  dispatch = wire("element type on the way there", "fp8"),
  combine = wire("element type on the way back", "bf16"),
  weights = { type = "boolean", default = true,
    doc = "whether rows carry weights on the way there; false: as with a cached handle" },
  execute = { type = "boolean", default = false,
    doc = "whether threads, one per rank, at most 16, also move rows: small whole numbers x, which "
      .. "expert e (from 0) multiplies by e mod 3 + 1, all exact in bf16 and fp8" },
  combine_weights = { type = "boolean", default = false,
    doc = "whether rows carry weights on the way back, as in the backward of a dispatch" },
})

local LINKS = "{ nvlink: integer, nic: integer, local: integer }"
schema.record("rows by link", "way", "rows and bytes of one way of an exchange", {
  { "row_bytes", LINKS, "bytes of a row" },
  { "rows", LINKS, "number of rows; local: those that stay on their rank in the hop inside nodes" },
  { "nvlink_out", "integer[]", "bytes that each rank sends by NVLink; with nvlink_in, nic_out and "
    .. "nic_in for what it receives and for NICs" },
  { "nvlink_in", "integer[]", "bytes that each rank receives by NVLink" },
  { "nic_out", "integer[]", "bytes that each rank's NIC sends" },
  { "nic_in", "integer[]", "bytes that each rank's NIC receives" },
  { "nvlink_total", "integer", "bytes of all ranks by NVLink" },
  { "nic_total", "integer", "bytes of all NICs; published bandwidths mostly count more: node rows "
    .. "with those of the own node" },
  { "nvlink_port_max", "integer", "bytes of the fullest port" },
  { "nic_max", "integer", "bytes of the fullest NIC, one direction" },
  { "nvlink_bytes", "integer[][]?", "bytes by NVLink from rank to rank; up to 64 ranks" },
  { "sent", "integer[][]?", "bytes handed to the transport by rank and rank; with execute" },
  { "nic_bytes", "integer[][]?", "bytes by NICs from rank to rank; up to 64 ranks" },
})
schema.record("dispatch rows", "rows", "what a dispatcher moves for given choices", {
  { "dispatch", "moe.RowsByLink", "the way to the experts" },
  { "combine", "moe.RowsByLink", "the way back" },
  { "sent", "integer[][]?", "bytes handed to the transport by both ways; with execute = true" },
  { "fnv1a", "string?", "FNV-1a 64 of the sums of all tokens as int32; with execute = true" },
  { "control_bytes_per_peer", "integer?", "bytes to each peer before the rows, such as counts" },
  { "experts_computed", "{ rows: integer[], padded_rows: integer[], padded_rows_per_rank: "
    .. "integer[], received_rows_per_rank: integer[], choices_per_rank: integer[], choices: "
    .. "integer, rank_rows: integer, node_rows: integer, remote_node_rows: integer }",
    "rows per expert (padded: to 128) and rank, and sums of choices, of rows per rank and node" },
  { "buffers", "{ received: integer[], by_expert: integer[], library: integer? }",
    "bytes per rank: of received rows, of padded rows in bf16, and of the library's own buffers" },
})

--- Returns the name of a dispatcher and its options, with those of `set` in their place. c: fields
--- of the call at `path`, of which those that are options go into `set`.
function M.chosen(path, c, set, at)
  local value, name, options = c.dispatcher, nil, {}
  if schema.is_a("dispatcher", value, path .. ".dispatcher", at) then
    name, options = value.name, value.options
  elseif dispatcher.known[value] then
    name = value
  else
    schema.unknown(path .. ".dispatcher", "dispatcher", value, schema.keys_of(dispatcher.known), at)
  end
  local fields = dispatcher.known[name].fields
  for _, key in ipairs(schema.keys_of(OPTIONS)) do
    local usual = c[key] == nil or fields[key]
    if fields[key] and set[key] == nil then set[key] = c[key] end
    for _, def in pairs(dispatcher.known) do  -- another dispatcher's default changes nothing
      usual = usual or def.fields[key] and def.fields[key].default == c[key]
    end
    if not usual then
      errors.user(("%s.%s: is no option of the dispatcher '%s'; omit it"):format(path, key, name),
        at)
    end
  end
  return name, schema.check(fields, schema.merged(options, set), path, at)
end

local function most_tokens(choices)
  local most = 0
  for _, tokens in ipairs(type(choices) == "table" and choices or {}) do
    most = math.max(most, type(tokens) == "table" and #tokens or 0)
  end
  return most
end

--- moe.dispatch{...}: returns a record of the type "dispatch rows".
M.dispatch = schema.taking(M.FIELDS, "moe.dispatch", function(c, at)
  if type(c.choices) ~= "table" then
    schema.refuse(PATH .. "choices", c.choices, "a list per rank of lists of experts", at)
  end
  local name, options = M.chosen("moe.dispatch", c, { wire = c.dispatch, combine = c.combine }, at)
  local sizes = schema.picked(c, { "ranks", "ranks_per_node", "experts", "topk", "hidden" })
  sizes.max_nodes, sizes.tokens = c.max_nodes, most_tokens(c.choices)
  sizes.expert_rank = core.array(c.expert_rank)
  local route = dispatcher.route(name, sizes, schema.merged(options, { weights = c.weights,
    combine_weights = c.combine_weights }), dispatcher.MOST_SMS, "moe.dispatch", at)
  return dispatcher.call("moe.dispatch", at, core.dispatch, { exchange = sizes, route = route,
    execute = c.execute }, c.choices)
end)

return M
