-- exit: 1
-- says: a recipe returns an experiment, a list of them, or nothing
local moe = require "moe"
return 42
