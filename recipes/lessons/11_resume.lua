-- Lesson 11. How do I stop a training and go on later? A run writes a checkpoint, another one
-- resumes from it: parameters, optimizer state and the place in the text go on, so that ten steps
-- and ten more are the same bits as twenty.
-- Run it: build/release/moebench run recipes/lessons/11_resume.lua  (under a second)
-- Try next: run only one of the two halves; another lr in the second one; moe.infer with parameters
-- = "half.ckpt" reads text that the training did not see.
local moe = require "moe"

local function train(fields)
  fields.model = moe.model.gpt2_moe { vocab = 256, layers = 2, hidden = 64, heads = 4, seq = 64,
    batch_per_device = 4, experts = 4 }
  fields.ranks, fields.optimizer = 2, { name = "adamw", lr = 0.003 }
  return moe.train(fields)
end

local whole = train { steps = 20 }
local first = train { steps = 10, checkpoint_to = "half.ckpt" }
local second = train { steps = 10, resume_from = "half.ckpt" }

print(("twenty steps at once: loss %.2f at step 1, %.2f at step 11, %.2f at step 20"):format(
  whole.losses[1], whole.losses[11], whole.losses[20]))
print(("ten and ten more:     loss %.2f at step 1, %.2f at step 11, %.2f at step 20"):format(
  first.losses[1], second.losses[1], second.losses[10]))
print("the same parameters, bit by bit: " .. (whole.digest == second.digest and "yes" or "no"))
