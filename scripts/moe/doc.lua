-- `moebench doc [topic]`: prints the docs of fields, methods and functions for a terminal of 100
-- columns. The content is from moe.topics and moe.list, not from here.
local aligned = require "moe.base.aligned"
local constants = require "moe.spec.constants"
local core = require "moe.core"
local errors = require "moe.base.errors"
local list = require "moe.list"
local number_bytes = require "moe.results.number_bytes"
local routing = require "moe.spec.routing"
local schema = require "moe.base.schema"
local settings = require "moe.run.settings"
local topics = require "moe.topics"

local M = {}

local WIDTH = 100

-- Kinds of `moebench list` whose entries are topics -> the first part of the topics' names.
local BUILT_IN = { gates = "gate", systems = "system", workloads = "workload", ops = "op",
  executors = "executor", claims = "claim" }

-- Returns the text broken into lines of at most `width` characters; all lines except the first
-- begin with `indent`, which does not count.
local function wrapped(text, width, indent)
  return table.concat(aligned.wrapped(text, width, string.len), "\n" .. indent)
end

-- Returns type, unit and range of a member, for example "integer, ms, 1 to 8".
local function kind_text(m)
  return table.concat({ m.type, m.unit or m.range, m.unit and m.range }, ", ")
end

local function doc_text(m)
  if m.required then return m.doc .. " (required)" end
  return m.default and ("%s (default %s)"):format(m.doc, m.default) or m.doc
end

-- Appends one row per field in three columns: name, kind, doc. If name and kind are too wide for
-- their columns, the doc begins on the next line.
local function fields_text(lines, members)
  local widths = { 8, 8 }
  for _, m in ipairs(members) do
    for i, cell in ipairs { m.name, kind_text(m) } do
      if #cell <= (i == 1 and 24 or 30) then widths[i] = math.max(widths[i], #cell) end
    end
  end
  local begin = 2 + widths[1] + 2 + widths[2] + 2
  for _, m in ipairs(members) do
    local head = "  " .. m.name .. (" "):rep(widths[1] - #m.name) .. "  " .. kind_text(m)
    local indent = (" "):rep(begin)
    local fits = #head + 2 <= begin
    if not fits then
      lines[#lines + 1] = wrapped(head:sub(3), WIDTH - 2, "    "):gsub("^", "  ")
      if #head <= WIDTH then lines[#lines] = head end
    end
    lines[#lines + 1] = (fits and head .. (" "):rep(begin - #head) or indent)
      .. wrapped(doc_text(m), WIDTH - begin, indent)
  end
end

-- Appends the signature and the doc of each method.
local function methods_text(lines, as, members)
  for _, m in ipairs(members) do
    local call = m.name == "()" and as .. m.type or ("%s:%s%s"):format(as, m.name, m.type)
    lines[#lines + 1] = "  " .. wrapped(call, WIDTH - 4, "    ")
    lines[#lines + 1] = "      " .. wrapped(m.doc, WIDTH - 6, "      ")
  end
end

-- Returns a line on how the function of a topic is called.
local function call_text(t)
  return ("moe.%s%s: %s"):format(t.name, t.takes or " { fields }", t.call.gives)
end

-- Returns, sorted, the names of the topics of those types that the topic's call or members mention.
local function mentioned(t)
  local text, names = { t.call and call_text(t) or "" }, {}
  for _, m in ipairs(t.members) do text[#text + 1] = m.type end
  local by_class = {}
  for _, other in ipairs(topics.all()) do
    if other.class then by_class[other.class] = by_class[other.class] or other.name end
  end
  for class in table.concat(text, " "):gmatch "moe%.[%w_.]*%w" do
    local name = by_class[class]
    if name and name ~= t.name then names[name] = true end
  end
  return schema.keys_of(names)
end

-- Appends the numbers of a built-in cluster of one node, with bands and sources.
local function numbers_text(lines, cluster)
  for i, row in ipairs(constants.of_cluster(cluster)) do
    if i == 1 then lines[#lines + 1] = "  numbers of one node (SI; bytes_per_s are one way):" end
    local band = row.lo and (", %.6g to %.6g"):format(row.lo, row.hi) or ""
    lines[#lines + 1] = "    " .. wrapped(("%s: %s%s (%s)"):format(row.name, row.value, band,
      row.source or row.why or "no source"), WIDTH - 6, "      ")
  end
end

local function topic_text(t)
  local head = t.call and call_text(t) or t.class and ("%s (%s)"):format(t.as or t.name, t.class)
    or t.name
  local lines = { wrapped(head, WIDTH, "    "), "    " .. wrapped(t.doc, WIDTH - 4, "    ") }
  local fields, methods = {}, {}
  for _, m in ipairs(t.members) do table.insert(m.method and methods or fields, m) end
  fields_text(lines, fields)
  methods_text(lines, t.as, methods)
  if t.call and t.call.example then
    lines[#lines + 1] = "  example:\n    " .. t.call.example:gsub("\n", "\n    ")
  end
  numbers_text(lines, t.name:match "^cluster%.(.*)$")
  for _, line in ipairs(t.name == "optimizer" and number_bytes.all() or {}) do
    lines[#lines + 1] = "  " .. line
  end
  local names = mentioned(t)
  if #names > 0 then
    lines[#lines + 1] = "  see also: " .. wrapped(table.concat(names, ", "), WIDTH - 12, "    ")
  end
  return table.concat(lines, "\n")
end

local function gate_doc(row)
  return ("%s (scope %s, scores %s, weight %s, %s)"):format(row.doc, row.scope, row.scores,
    row.weight, row.k > 0 and "k = " .. row.k or "k of the model")
end

-- Returns the entries of the kinds in BUILT_IN as topics.
local function built_in()
  local out = {}
  for _, kind in ipairs(schema.keys_of(BUILT_IN)) do
    for _, row in ipairs(list.rows(kind)) do
      out[#out + 1] = { name = BUILT_IN[kind] .. "." .. row.name, built_in = kind,
        doc = kind == "gates" and gate_doc(row)
          or row.doc .. (row.parts and ": " .. row.parts or ""),
        members = kind == "workloads" and topics.members_of(routing.workload_fields(row), row.name)
          or {} }
    end
  end
  return out
end

local function every_topic()
  local out = {}
  for _, t in ipairs(topics.all()) do out[#out + 1] = t end
  for _, t in ipairs(built_in()) do out[#out + 1] = t end
  out[#out + 1] = settings.TOPIC
  return out
end

-- Returns the topics for the overview, sorted by name. The topics of each kind in BUILT_IN are
-- replaced by one row, and so are those of the passes.
local function overview()
  local rows, kinds = {}, {}
  for _, t in ipairs(every_topic()) do
    local kind = t.built_in or t.name:match "^pass%." and "passes"
    if not kind then rows[#rows + 1] = t end
    if kind and not kinds[kind] then
      kinds[kind] = true
      rows[#rows + 1] = { name = t.name:gsub("%..*", ".<name>"),
        doc = ("one of `moebench list %s`"):format(kind) }
    end
  end
  table.sort(rows, function(a, b) return a.name .. "\0" .. a.doc < b.name .. "\0" .. b.doc end)
  return rows
end

local function overview_text(lines, rows)
  for _, t in ipairs(rows) do
    local name = t.name .. (t.as and t.as ~= t.name and (" (%s)"):format(t.as) or "")
    local line = ("  %-27s  %s"):format(name, t.doc)
    if #line > WIDTH then line = line:sub(1, WIDTH - 4):gsub("%s%S*$", "") .. " ..." end
    lines[#lines + 1] = line
  end
end

-- Returns how well the topic matches the name `asked`: 1 if that is the topic's name or class, 2 if
-- it is the name (t.as) of a value of the topic's type in examples, 3 if it is the last part of the
-- topic's name, 4 if it is the first part; nil if the topic does not match.
local function rank_of(t, asked)
  local class, name = (t.class or ""):lower(), "moe." .. asked:lower()
  if t.name == asked or class == name or class == name .. "fields" then
    return 1
  end
  if t.as == asked then return 2 end
  if t.name:sub(-#asked - 1) == "." .. asked then return 3 end
  local next_char = t.name:sub(1, #asked) == asked and t.name:sub(#asked + 1, #asked + 1)
  return (next_char == "." or next_char == "_") and 4 or nil
end

-- Returns two lists: the topics that are printed in full (those that match best, unless only first
-- parts of names match, and those with `also` == asked), and the other topics that match, of which
-- only the line of the overview is printed.
local function found(asked)
  local best, by_rank, also, whole, rest = 4, { {}, {}, {}, {} }, {}, {}, {}
  for _, t in ipairs(every_topic()) do
    local rank = rank_of(t, asked)
    table.insert(t.also == asked and also or by_rank[rank] or {}, t)
    best = math.min(best, rank or 4)
  end
  for rank, list_of in ipairs(by_rank) do
    local to = rank == best and rank < 4 and whole or rest
    for _, t in ipairs(list_of) do to[#to + 1] = t end
  end
  for _, t in ipairs(also) do whole[#whole + 1] = t end
  return whole, rest
end

-- Appends the fields of this name, of all topics, those with the same text once with the names of
-- all their topics; returns whether there are any.
local function field_text(lines, name)
  local texts, owners = {}, {}
  for _, t in ipairs(every_topic()) do
    for _, m in ipairs(t.members) do
      if m.name == name then
        local text = {}
        if m.method then methods_text(text, t.as, { m }) else fields_text(text, { m }) end
        text = table.concat(text, "\n")
        if not owners[text] then texts[#texts + 1], owners[text] = text, {} end
        table.insert(owners[text], t.as or t.name)
      end
    end
  end
  for _, text in ipairs(texts) do
    lines[#lines + 1] = wrapped(("'%s' of %s"):format(name, table.concat(owners[text], ", ")),
      WIDTH - 4, "    ")
    lines[#lines + 1] = text
  end
  return #texts > 0
end

local function refuse(topic)
  local names = {}
  for _, t in ipairs(every_topic()) do
    for _, name in ipairs { t.name, t.name:match "^[^._]*", t.name:match "[^.]*$", t.as } do
      names[#names + 1] = name
    end
  end
  local near = core.nearest(topic, names)
  errors.command(("doc: unknown topic '%s'%s; `moebench doc` lists them"):format(topic,
    near ~= "" and (". Did you mean '%s'?"):format(near) or ""))
end

--- Returns the text of the topics that match the name `topic` (see found()), or else of the fields
--- of this name, or the overview of all topics if `topic` is nil. Raises a command-line error if
--- nothing matches.
function M.text(topic)
  local lines = {}
  if not topic then
    overview_text(lines, overview())
    return table.concat(lines, "\n")
  end
  topic = topic:gsub("^moe%.", "")
  local exact, parts = found(topic)
  if #exact + #parts == 0 and not field_text(lines, topic) then refuse(topic) end
  if #lines > 0 then return table.concat(lines, "\n") end
  for _, t in ipairs(exact) do
    lines[#lines + 1] = topic_text(t)
    lines[#lines + 1] = ""
  end
  if #parts > 0 then
    lines[#lines + 1] = ("topics of %s"):format(topic)
    overview_text(lines, parts)
  else
    lines[#lines] = nil
  end
  return table.concat(lines, "\n")
end

--- Prints what M.text returns.
function M.doc(topic) core.say(M.text(topic)) end

return M
