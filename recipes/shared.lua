-- What the recipes mix, mix_all, mix_balance and mix_mesh share.
local moe = require "moe"

local M = {}

--- Returns the systems that mix techniques: none of them ("base"), for each that one alone
--- ("only_x") and all others ("no_x"), and all. techniques: a list of { x, function(t) that returns
--- its passes }; t: has `bucket`, the bytes of a bucket of gradients; more(has): nil, or a function
--- that returns further passes of a system, where has[x] says which techniques it has. With
--- Pro-Prophet's placement only real rows travel and are computed anyway.
function M.systems(techniques, t, more)
  local function system(name, included)
    local has, passes = {}, {}
    for i, technique in ipairs(techniques) do has[technique[1]] = included(i) end
    if not has.prophet then passes = { moe.pass.irregular_a2a {}, moe.pass.used_rows {} } end
    passes.all_reduce = { lane = "comm_reduce", place = "ready", bucket_bytes = t.bucket }
    for _, p in ipairs(more and more(has) or {}) do passes[#passes + 1] = p end
    for _, technique in ipairs(techniques) do
      for _, p in ipairs(has[technique[1]] and technique[2](t) or {}) do passes[#passes + 1] = p end
    end
    return moe.system(name)(passes)
  end
  local all = { system("base", function() return false end) }
  for n, technique in ipairs(techniques) do
    all[#all + 1] = system("only_" .. technique[1], function(i) return i == n end)
    all[#all + 1] = system("no_" .. technique[1], function(i) return i ~= n end)
  end
  all[#all + 1] = system("all", function() return true end)
  return all
end

--- Returns the runs of results by point, then by system, and the points in their order.
function M.by_point(R, name_of)
  local points, order = {}, {}
  for run in R:each() do
    local key = name_of(run)
    if not points[key] then points[key], order[#order + 1] = {}, key end
    points[key][run.system] = run
  end
  return points, order
end

--- Returns the largest difference of a run's losses to those of another run.
function M.loss_difference(run, other)
  local off = 0
  for i, loss in ipairs(run.losses) do off = math.max(off, math.abs(loss - other.losses[i])) end
  return off
end

return M
