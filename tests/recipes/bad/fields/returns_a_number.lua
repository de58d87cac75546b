-- exit: 1
-- says: a recipe returns an experiment, a list of experiments, or nothing
local moe = require "moe"
return 42
