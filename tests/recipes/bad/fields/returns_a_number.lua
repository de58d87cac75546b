-- exit: 1
-- says: the recipe returned a number that is neither an experiment nor a list of experiments
local moe = require "moe"
return 42
