-- exit: 1
-- line: 6
-- says: unknown pass 'dw_scheduel'
-- says: Did you mean 'dw_schedule'?
local moe = require "moe"
local s = moe.system "mine" { moe.pass.dw_scheduel {} }
return s
