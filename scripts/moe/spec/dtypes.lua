-- The types of the numbers of a training step, as named sets. A type that a set leaves out is
-- "plain": that of a model in one type, in which bf16 models have f32 for all but activations.
local schema = require "moe.base.schema"

local M = {}

--- Element types of activations, by the names of their rates.
M.DTYPES = { "f16", "bf16", "f32", "tf32" }

--- The sets. Megatron-LM's mixed precision (megatron/core/optimizer: bf16 parameters, fp32 main
--- parameters and moments; main gradients of fp32, or of bf16 by grad_reduce_in_bf16).
M.SETS = {
  megatron_bf16 = { activations = "bf16", weights = "bf16", gradients = "f32", moments = "f32",
    master = true, doc = "Megatron's: gradients, master copy and moments in f32" },
  megatron_bf16_reduce_bf16 = { activations = "bf16", weights = "bf16", gradients = "bf16",
    moments = "f32", master = true, doc = "the same with grad_reduce_in_bf16" },
  megatron_fp8 = { activations = "bf16", weights = "bf16", gradients = "f32", moments = "f32",
    master = true, products = "fp8", doc = "megatron_bf16 with linears and experts in fp8, one "
    .. "scale per tensor" },
  megatron_fp8_block = { activations = "bf16", weights = "bf16", gradients = "f32",
    moments = "f32", master = true, products = "fp8_block",
    doc = "the same with a scale per block of 128, as DeepSeek-V3" },
  bf16_f32 = { activations = "bf16", doc = "parameters and states in f32; what dtype = 'bf16' says "
    .. "and ranks with precision = 'bf16' have" },
  f16_16 = { activations = "f16", doc = "all in f16; what dtype = 'f16' says" },
  pure_f32 = { activations = "f32", doc = "all in f32; what dtype = 'f32' says" },
}

local FIELDS = schema.changed(schema.declared("model").dtypes.type, {
  activations = { type = "string", enum = M.DTYPES, default = "bf16",
    doc = "type of activations and of the products' operands" } })

local docs = {}
for _, name in ipairs(schema.keys_of(M.SETS)) do
  docs[#docs + 1] = ("%s (%s)"):format(name, M.SETS[name].doc)
end
M.FIELD = { type = "string", enum = schema.keys_of(M.SETS), by = FIELDS, as = "string|table",
  doc = "types of a step's numbers in place of dtype: a set's name, or a table of types: "
    .. table.concat(docs, "; ") .. ". Ranks that execute compute in the run's precision" }

--- Returns the element type and the other types, as the core takes them, of a checked model, or
--- where it states none those of the set `default`.
function M.of(model, default)
  if model.dtype then return model.dtype, {} end
  local given = model.dtypes or default
  local set = schema.merged(type(given) == "string" and M.SETS[given] or given, {})
  local activations = set.activations
  set.activations, set.doc = nil, nil
  return activations, set
end

--- Returns the name of the set with these types, or nil.
function M.name_of(dtype, dtypes)
  for name, set in pairs(M.SETS) do
    local same = set.activations == dtype
    for _, key in ipairs { "weights", "gradients", "moments", "products" } do
      same = same and (set[key] or "plain") == (dtypes[key] or "plain")
    end
    if same and (set.master or false) == (dtypes.master or false) then return name end
  end
end

return M
