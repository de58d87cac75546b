-- Whether the best mix of a search stays the best at the ends of the assumed constants' bands.
local core = require "moe.core"
local schema = require "moe.base.schema"

local M = {}

-- Returns the names of the assumed constants of a model and a cluster whose band has two ends.
local function constants_of(c)
  local names = {}
  for _, of in ipairs { c.model.assumed, c.cluster.assumed } do
    for _, constant in pairs(of) do
      if constant.lo < constant.hi then names[constant.name] = true end
    end
  end
  return schema.keys_of(names)
end

--- Returns { second, holds, changes } for the plain mix and for the best known system: whether the
--- best mix, if it is the faster one, is so too with each assumed constant at either end of its
--- band; changes: the ends at which it is not, as "name = lo". Of these two, one that was refused
--- or does not fit in memory is left out. The list is empty without assumed constants. second: the
--- record of the best known system, or nil. Ends when left() is false; not_seen: the number of
--- constants after that.
function M.of(c, tried, best, second, left)
  local list, others = core.array {}, {}
  local function add(name, system)
    local outcome = tried:outcome(system)
    if not outcome or outcome.oom then return end
    others[#others + 1] = { system = system, ms = outcome.iteration_ms }
    list[#list + 1] = { second = name, holds = true, changes = core.array {} }
  end
  local ours = tried.space:system(best, "best", tried.at)
  add("plain", tried.space:system(tried.space:plain(), "plain", tried.at))
  if second then add(second.system, tried.systems[1].system) end
  local names = constants_of(c)
  if #names == 0 then return core.array {} end
  local base = tried:ms_of(ours, tried:spec_of(best))
  for n, name in ipairs(names) do
    if not left() then
      for _, one in ipairs(list) do one.not_seen = #names - n + 1 end
      break
    end
    for _, part in ipairs { "lo", "hi" } do
      local ends = { [name] = part }
      local spec = tried:spec_of(tried.space:plain(), ends)
      local ms = tried:ms_of(ours, (tried:spec_of(best, ends)))
      for i, other in ipairs(others) do
        local now = tried:ms_of(other.system, spec)
        if now and ms and (base < other.ms) ~= (ms < now) then
          list[i].holds = false
          table.insert(list[i].changes, name .. " = " .. part)
        end
      end
    end
  end
  return list
end

return M
