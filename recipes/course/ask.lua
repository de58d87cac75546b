-- What the exercises share: their settings, the reader's guess among them, and how far it is off.
local moe = require "moe"
local M = {}
local set, others, guess, unit  -- own settings, what they can be as text; the guess, its unit

-- Prints a text in lines of about 90 characters.
local function say(text)
  print((text:gsub("%s+", " "):gsub("(" .. ("."):rep(86) .. "%S*) ", "%1\n")))
end

local function has(list, value)
  for _, one in ipairs(list) do if one == value then return true end end
end

--- Returns the settings of an exercise by name. own: of each the values that it can have, the
--- default first. Other values, and other settings of the command line, are refused.
function M.settings(own)
  local defaults, list = { guess = "" }, {}
  for name, values in pairs(own) do
    defaults[name], list[#list + 1] = values[1], name .. "=" .. table.concat(values, "|")
  end
  table.sort(list)
  others = "--set " .. table.concat(list, ", --set ")
  set = moe.options(defaults, function(name, value)
    if name == "guess" then return end
    if not own[name] then return "is not for this exercise; it has --set guess=N, " .. others end
    return not has(own[name], value) and "give one of " .. table.concat(own[name], ", ")
  end)
  return set
end

--- Prints the question. Returns the guess, a number of this unit or, with a list, one of its texts;
--- nil where there is none, after saying what to give.
function M.guess(question, of, list)
  local most = of:find "^%%" and 100 or 1000
  local what = list and "one of " .. table.concat(list, ", ") or ("0 to %g %s"):format(most, of)
  local text = moe.options({ guess = "" }, function(name, value)
    local n = tonumber(value)
    local good = list and has(list, value) or not list and n and n >= 0 and n <= most
    if name ~= "guess" then return end
    if most == 100 and good and n > 0 and n < 1 then return "give percent, such as 27" end
    return not good and "give " .. what
  end).guess
  say(question)
  guess, unit = list and text ~= "" and text or tonumber(text), of
  if guess then return guess end
  say("Your guess first, as --set guess=N: " .. what .. ". You can change: " .. others)
end

--- Prints the answer (a text, or a number and how far the guess is off), why it is so, a table of
--- texts and numbers, and what to try next (name=value: question), without what is already set.
function M.answer(answer, why, rows, next)
  if type(answer) == "number" then
    local percent = unit:find "^%%"
    local off = percent and guess - answer or 100 * (guess / answer - 1)
    off = math.abs(off) < 0.5 and "right" or ("%.0f%% %stoo %s"):format(math.abs(off),
      percent and "of all " or "", off < 0 and "low" or "high")
    answer = ("%.3g %s. Your guess, %g, is %s."):format(answer, unit, guess, off)
  end
  print("\nAnswer: " .. answer)
  say("Why: " .. why)
  for _, row in ipairs(rows) do
    for i, x in ipairs(row) do row[i] = tonumber(x) and x % 1 > 0 and ("%.1f"):format(x) or x end
  end
  if rows[1] then print(moe.table(rows)) end
  for i = #next, 1, -1 do
    local name, value = next[i]:match "^(%w+)=([%w.]+)"
    if tostring(set[name]) == value then table.remove(next, i) end
  end
  if not next[1] then return end
  say("Try next, with a new guess: --set " .. table.concat(next, " Then --set "))
end

--- Returns a plan of exercises 2 to 4; M.words is then the model in words. t: more of its fields.
function M.gpt2(nodes, system, t)
  t.layers, t.seq, t.batch_per_device, t.experts_per_device = 12, 512, 24, 2
  t.hidden, t.heads = t.hidden or 768, (t.hidden or 768) / 64
  local cluster = moe.cluster.p4de { nodes = nodes }
  M.words = ([[
GPT-2 in bf16 with 12 blocks of width %d; every second has experts, two per GPU, one for each token.
Each of %d A100 has 24 sequences of 512 tokens. A node has 8 A100 and a NIC of 100 Gb/s for each
two, of which collectives reach %.0f%%. ]]):format(t.hidden, 8 * nodes,
  100 * cluster.nic.bytes_per_s / 12.5e9)
  return moe.plan { system = system, cluster = cluster, model = moe.model.gpt2_moe(t) }
end

return M
