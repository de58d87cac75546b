-- exit: 1
-- line: 7
-- says: moves: experts move with their state only between steps
local moe = require "moe"
local p = moe.policy.placement {
  name = "broken", at = "layer",
  moves = true, place = function() end }
