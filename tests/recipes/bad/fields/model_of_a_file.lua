-- exit: 1
-- says: model.qwen3_30b_a3b: 'config.json' is not allowed; give a table of the model's fields
local moe = require "moe"
moe.model.qwen3_30b_a3b "config.json"
