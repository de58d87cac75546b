-- Lesson 12. How do I train with a process per rank? The recipe is as for one process; a launcher
-- starts it several times. Rank 0 alone prints.
-- Run it as threads of one process, or under mpirun:
--   build/release/moebench run recipes/lessons/12_processes.lua  (under a second)
--   mpirun -n 2 build/release/moebench run recipes/lessons/12_processes.lua  (under a second)
-- Try next: four ranks (--ranks 4, and -n 4); steps = 100000, then kill one of the
-- processes: the others name it and end.
local moe = require "moe"

local r = moe.train { ranks = 2, steps = 10, system = moe.system "lancet_dw" {},
  model = moe.model.gpt2_moe { vocab = 256, layers = 4, hidden = 64, heads = 4, seq = 64,
    batch_per_device = 4, experts = 4 } }
print(("loss %.2f -> %.2f, digest of the parameters %s"):format(r.losses[1], r.losses[10],
  r.digest))
