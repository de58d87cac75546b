-- exit: 1
-- says: os
local moe = require "moe"
os.execute("true")
