-- checks.lua in small, with the plugin that runs on the host.
require "checks" { vocab = 33, layers = 2, hidden = 16, heads = 2, seq = 8, batch = 4, experts = 4,
  capacity_factor = 1 }
