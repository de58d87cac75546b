-- exit: 1
-- line: 6
-- says: 'lancett'
-- says: Did you mean 'lancet'?
local moe = require "moe"
local s = moe.system "lancett" {}
return s
