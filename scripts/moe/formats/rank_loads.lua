-- How many rows each rank computes: a CSV file whose first line names its columns, among them iter,
-- layer, rank and token_num, as the public artifact of LAER-MoE writes it (Hetu-Galvatron, branch
-- laer-moe). Where the file has further columns (method, model_name), `where` states the values of
-- the rows that count; columns that it does not mention must have one value. Iterations, layers and
-- ranks are those that occur, ascending. The trace has only counts and one expert per rank, or
-- experts_per_rank with equally many rows (but for one), which a token may choose at once: what the
-- rank computes, whichever experts it holds. The file does not say where rows come from: every rank
-- sends the same number of rows. `node` successive ranks are a node and compute rows of their own
-- node, from each of its ranks equally many (but for one); what a node computes beyond its own rows
-- comes in equal shares of its ranks from the nodes that compute less, in order. even: all experts
-- get as many rows, but for one. experts: those of the trace; 0: all, or node times
-- experts_per_rank, where every node has the same experts and computes only rows of its own (expert
-- groups of a node).
local choices = require "moe.formats.choices"
local core = require "moe.core"
local errors = require "moe.base.errors"
local files = require "moe.formats.files"

local M = {}

local COLUMNS = { "iter", "layer", "rank", "token_num" }
local HIGHEST = { iter = 1e9, layer = choices.HIGHEST_LAYER, rank = 1e9, token_num = 1e9 }

-- Returns what the first line says of the columns: names, the places of the four numbers (at), the
-- places and values of those that `where` states, and the places of all others.
local function columns_of(line, where, name, number)
  local names = files.cells(line)
  local c = { names = names, at = {}, where = {}, others = {}, seen = {} }
  local place = {}
  for i, column in ipairs(names) do place[column] = place[column] or i end
  local function find(column)
    if not place[column] then
      files.fail_at(name, number, "there is no column '%s'; the first line names %s", column,
        table.concat(names, ", "))
    end
    return place[column]
  end
  for i, column in ipairs(COLUMNS) do c.at[i] = find(column) end
  for column, value in pairs(where) do c.where[#c.where + 1] = { find(column), value } end
  for i, column in ipairs(names) do
    if not where[column] and not HIGHEST[column] then c.others[#c.others + 1] = i end
  end
  return c
end

-- Whether the row counts. Raises a user error where a column that `where` does not mention changes.
local function counts(row, c, name, number)
  for _, one in ipairs(c.where) do
    if row[one[1]] ~= one[2] then return false end
  end
  for _, i in ipairs(c.others) do
    c.seen[i] = c.seen[i] or row[i]
    if c.seen[i] ~= row[i] then
      files.fail_at(name, number, "column '%s' has '%s' and '%s'; choose the rows by where",
        c.names[i], c.seen[i], row[i])
    end
  end
  return true
end

local function number_of(cell, column, name, number)
  local value = cell:find "^%d+$" and tonumber(cell)
  if not value or value > HIGHEST[column] then
    files.fail_at(name, number, "%s = '%s', allowed: whole numbers from 0 to %d", column, cell,
      HIGHEST[column])
  end
  return value
end

-- Returns the rows by iteration, layer and rank, each with its number in the file, and the layers
-- and ranks that occur.
local function read(file, where)
  local loads, layers, ranks, c = {}, {}, {}, nil
  for line, number in files.lines(file.text) do
    if not c then
      c = columns_of(line, where, file.name, number)
    else
      local row, n = files.cells(line), {}
      if #row ~= #c.names then
        files.fail_at(file.name, number, "has %d cells, but the first line names %d columns", #row,
          #c.names)
      end
      if counts(row, c, file.name, number) then
        for i, column in ipairs(COLUMNS) do
          n[i] = number_of(row[c.at[i]], column, file.name, number)
        end
        local of_layer = files.at(files.at(loads, n[1]), n[2])
        if of_layer[n[3]] then
          files.fail_at(file.name, number, "iter %d, layer %d, rank %d is there twice", n[1], n[2],
            n[3])
        end
        of_layer[n[3]], layers[n[2]], ranks[n[3]] = n[4], true, true
      end
    end
  end
  if not next(loads) then files.fail(file.name, "no row has what `where` states") end
  return loads, choices.keys(layers), choices.keys(ranks)
end

-- Raises a user error for sizes that do not fit each other. t: the trace that is made.
local function check_sizes(t, node, given, where)
  if t.experts >= choices.NO_EXPERT or t.k > t.ranks then
    files.fail(where, "%d experts and k = %d; allowed: 1 to %d, k from 1 to the number of ranks",
      t.experts, t.k, choices.NO_EXPERT - 1)
  end
  if t.ranks % node ~= 0 then
    files.fail(where, "node = %d, allowed: a divisor of its %d ranks", node, t.ranks)
  end
  local held = t.experts / t.ranks * node
  if given ~= 0 and given ~= held and given ~= t.experts then
    files.fail(where, "experts = %d, allowed: %d, or %d, which each node of %d ranks has once",
      given, t.experts, held, node)
  end
end

-- Returns the rows of each expert in a layer, and their sum. The experts of a rank get equally many
-- rows, but for one; if `even`, all experts do.
local function rows_of(loads, step, layer, ranks, t, even, where)
  local rows, sum, each = {}, 0, t.experts / t.ranks
  for _, rank in ipairs(ranks) do
    local n = loads[step][layer] and loads[step][layer][rank]
    if not n then files.fail(where, "iter %d, layer %d, rank %d is missing", step, layer, rank) end
    for e = 1, each do rows[#rows + 1] = math.floor((n + each - e) / each) end
    sum = sum + n
  end
  if sum % (t.k * t.ranks) ~= 0 then
    files.fail(where, "iter %d, layer %d: the ranks compute %d rows, which is no multiple of %d "
      .. "ranks times k = %d", step, layer, sum, t.ranks, t.k)
  end
  for e = 1, even and t.experts or 0 do rows[e] = math.floor((sum + e - 1) / t.experts) end
  return rows, sum
end

-- Returns how many rows of each expert its own node sends: all, or, of a node that computes more
-- than the `each` rows that it has, in proportion.
local function own_rows(rows, held, each)
  local own = {}
  for first = 1, #rows, held do
    local all, sum, kept = 0, 0, 0
    for e = first, first + held - 1 do all = all + rows[e] end
    for e = first, first + held - 1 do
      sum = sum + rows[e]
      local upto = all <= each and sum or files.times_over(sum, each, all)
      own[e], kept = upto - kept, upto
    end
  end
  return own
end

-- Deals the rows of a layer's experts, `sum` in all, to their sources: each node's own rows to its
-- experts, then what is left of an expert from the nodes that have choices left. Appends the counts
-- of each source to `lists`.
local function deal(rows, sum, t, node, lists)
  local nodes, dealt, begin = t.ranks / node, {}, #lists
  local held, each = t.experts / nodes, sum / nodes
  for s = 1, t.ranks do
    local counts_of_source = {}
    for e = 1, t.experts do counts_of_source[e] = 0 end
    lists[begin + s] = counts_of_source
  end
  -- `many` choices of expert e, to the sources of node n in turn.
  local function from(n, e, many)
    local before, after = dealt[n] or 0, (dealt[n] or 0) + many
    for s = 1, node do
      local counts_of_source = lists[begin + (n - 1) * node + s]
      counts_of_source[e] = counts_of_source[e] + math.floor((after + node - s) / node)
        - math.floor((before + node - s) / node)
    end
    dealt[n] = after
  end
  local own, n = own_rows(rows, held, each), 1
  for e = 1, t.experts do from(math.ceil(e / held), e, own[e]) end
  for e = 1, t.experts do
    local left = rows[e] - own[e]
    while left > 0 do
      local moved = math.min(left, each - (dealt[n] or 0))
      from(n, e, moved)
      left = left - moved
      if left > 0 then n = n + 1 end
    end
  end
end

-- Makes the counts of nodes whose rows are all their own those of experts that each node has once.
-- Raises a user error for a row that leaves its node.
local function share_experts(lists, t, held, node, where)
  for i, list in ipairs(lists) do
    local first = math.floor((i - 1) % t.ranks / node) * held
    local own = {}
    for e, n in ipairs(list) do
      if e > first and e <= first + held then
        own[e - first] = n
      elseif n > 0 then
        files.fail(where, "nodes of %d ranks compute rows that are not their own, so that they "
          .. "cannot have %d experts each; omit experts", node, held)
      end
    end
    lists[i] = own
  end
  t.experts = held
end

--- Writes the trace of the file; returns its path. c: fields of moe.trace.import.
function M.import(c)
  local file = files.read(c.files[1])
  local loads, layers, ranks = read(file, c.where or {})
  local steps = choices.keys(loads)
  local t = { to = c.to, source = file.name, counted = true, steps = #steps, layers = #layers,
    ranks = #ranks, tokens = 0, experts = #ranks * (c.experts_per_rank or 1), k = c.k,
    blocks = layers }
  local node = c.node or t.ranks
  check_sizes(t, node, c.experts, file.name)
  local lists = {}
  for _, step in ipairs(steps) do
    for _, layer in ipairs(layers) do
      local rows, sum = rows_of(loads, step, layer, ranks, t, c.even, file.name)
      t.tokens = math.max(t.tokens, sum / (t.k * t.ranks))
      deal(rows, sum, t, node, lists)
    end
  end
  if c.experts ~= 0 and c.experts ~= t.experts then
    share_experts(lists, t, c.experts, node, file.name)
  end
  return errors.call(nil, core.trace_write, t, lists)
end

return M
