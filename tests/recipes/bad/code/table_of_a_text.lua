-- exit: 1
-- says: moe.table: 'x' is not allowed; give a list
local moe = require "moe"
moe.table "x"
