-- exit: 1
-- line: 5
-- says: modle
local moe = require "moe"
local t = modle.gpt2_moe {}
return t
