-- moe.lane_times{...}: tasks of given lengths on lanes, in a given order or in the shortest that is
-- found; without a model.
local core = require "moe.core"
local errors = require "moe.base.errors"
local schema = require "moe.base.schema"

local M = {}

local PATH = "moe.lane_times."
local MOST = 4096  -- tasks of a search, whose time grows with their square
local TIME = { type = "number", lo = 0, hi = 1e15 }

M.TASK = {
  name = { type = "string", required = true, doc = "a name that no other task has" },
  lane = { type = "string", required = true, doc = "the lane, which runs one task at a time" },
  time = schema.merged(TIME, { required = true, doc = "how long it takes" }),
  after = schema.merged(TIME, { default = 0, doc = "it begins no earlier" }),
  needs = { type = "list", of = { type = "string" }, default = {},
    doc = "names of the tasks that must have ended" },
}

M.FIELDS = {
  tasks = { type = "list", of = { type = M.TASK }, required = true, least = "task",
    doc = "the tasks, at least 1" },
  order = { type = "any", as = "table<string, string[]>",
    doc = "by lane: the names of its tasks in order; default: the shortest that a search finds "
      .. "(Giffler and Thompson's active schedules, a beam of 64)" },
  compute = { type = "string", default = "compute",
    doc = "the lane under which the tasks of all others count as hidden" },
}

schema.record("lane times", "times", "when tasks on lanes begin and end", {
  { "length", "number", "when the last task ends" },
  { "begins", "table<string, number>", "by task" },
  { "ends", "table<string, number>", "by task" },
  { "busy", "table<string, number>", "by lane: the sum of its tasks" },
  { "hidden", "number?", "how long some other lane is busy beside the compute lane" },
  { "exposed", "number?", "how long some other lane is busy and the compute lane idle" },
  { "order", "table<string, string[]>", "by lane: its tasks in order" },
})

local function fail(field, text, ...) errors.user(PATH .. field .. ": " .. text:format(...)) end

-- Returns the numbers of tasks by name, and of lanes by name in the order in which they appear.
local function numbers_of(tasks)
  local of, lanes, names = {}, {}, {}
  for i, task in ipairs(tasks) do
    if of[task.name] then
      fail(("tasks[%d].name"):format(i), "'%s' is task %d already; give another name", task.name,
        of[task.name])
    end
    of[task.name] = i
    if not lanes[task.lane] then
      names[#names + 1] = task.lane
      lanes[task.lane] = #names
    end
  end
  return of, lanes, names
end

local function task_named(of, name, field)
  return of[name] or fail(field, "there is no task '%s'; give the name of a task", tostring(name))
end

-- Returns the given order in numbers of tasks, by number of lane.
local function order_of(c, of, lanes, names)
  if c.order == nil then return nil end
  if type(c.order) ~= "table" then schema.refuse(PATH .. "order", c.order, "a table of lanes") end
  for lane in pairs(c.order) do
    if not lanes[lane] then
      errors.user(schema.unknown_text(PATH .. "order", "lane", tostring(lane), names))
    end
  end
  local order, seen = core.array {}, 0
  for n, lane in ipairs(names) do
    local path, found, list = PATH .. "order." .. lane, {}, core.array {}
    for i, name in ipairs(schema.field(M.TASK.needs, c.order[lane] or {}, path)) do
      local t = task_named(of, name, ("order.%s[%d]"):format(lane, i))
      if found[t] or c.tasks[t].lane ~= lane then
        fail(("order.%s[%d]"):format(lane, i), found[t] and "'%s' is in it twice; give it once"
          or "'%s' is on lane '" .. c.tasks[t].lane .. "'; leave it out", name)
      end
      found[t], list[i], seen = true, t - 1, seen + 1
    end
    order[n] = list
  end
  if seen ~= #c.tasks then
    fail("order", "has %d of the %d tasks; give all of each lane", seen, #c.tasks)
  end
  return order
end

-- Returns how long some other lane is busy beside the compute lane, and without it.
local function overlap(c, out)
  local events = {}
  for _, task in ipairs(c.tasks) do
    local on = task.lane == c.compute and "compute" or "other"
    events[#events + 1] = { out.begins[task.name], 1, on }
    events[#events + 1] = { out.ends[task.name], -1, on }
  end
  table.sort(events, function(a, b) return a[1] < b[1] end)
  local busy, last, hidden, exposed = { compute = 0, other = 0 }, 0, 0, 0
  for _, e in ipairs(events) do
    local time = busy.other > 0 and e[1] - last or 0
    if busy.compute > 0 then hidden = hidden + time else exposed = exposed + time end
    last, busy[e[3]] = e[1], busy[e[3]] + e[2]
  end
  return hidden, exposed
end

--- moe.lane_times{...}: returns a record of the type "lane times".
M.lane_times = schema.taking(M.FIELDS, "moe.lane_times", function(c, at)
  local of, lanes, names = numbers_of(c.tasks)
  local order = order_of(c, of, lanes, names)
  if not order and #c.tasks > MOST then
    fail("tasks", "a search takes at most %d tasks, not %d; give order", MOST, #c.tasks)
  end
  local tasks = core.array {}
  for i, task in ipairs(c.tasks) do
    local needs = core.array {}
    for k, name in ipairs(task.needs) do
      needs[k] = task_named(of, name, ("tasks[%d].needs[%d]"):format(i, k)) - 1
    end
    tasks[i] = { lane = lanes[task.lane] - 1, time = task.time, after = task.after, needs = needs }
  end
  local found = errors.call(at, core.lane_times, { tasks = tasks, order = order })
  local out = { length = found.length, begins = {}, ends = {}, busy = {}, order = {} }
  for i, task in ipairs(c.tasks) do
    out.begins[task.name], out.ends[task.name] = found.begins[i], found.begins[i] + task.time
    out.busy[task.lane] = (out.busy[task.lane] or 0) + task.time
  end
  for n, lane in ipairs(names) do
    local list = {}
    for i, number in ipairs(found.order[n]) do list[i] = c.tasks[number + 1].name end
    out.order[lane] = list
  end
  if lanes[c.compute] then out.hidden, out.exposed = overlap(c, out) end
  return out
end)

return M
