-- checks.lua with the reference model, on a GPU. run.sh runs it.
require "checks" { vocab = 509, layers = 4, hidden = 128, heads = 4, seq = 64, batch = 8,
  experts = 4, capacity_factor = 1.25 }
