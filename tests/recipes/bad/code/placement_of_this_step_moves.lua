-- exit: 1
-- line: 7
-- says: moves: experts that move with their state come into force in the next step
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken", at = "layer",
  moves = true, place = function() end }
