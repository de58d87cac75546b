-- Finds the line of a recipe's text on which a field is set: for example the line of
-- "experiment.run[2].link.bytes_per_s" in the call that starts on a known line. The search uses
-- only brackets and keys, not Lua's grammar. Where a part of the path is not found, the result is
-- the line of the last part that was found.
local M = {}

local OPENS = { ["{"] = true, ["("] = true, ["["] = true, ["function"] = true, ["do"] = true,
  ["if"] = true, ["repeat"] = true }
local CLOSES = { ["}"] = true, [")"] = true, ["]"] = true, ["end"] = true, ["until"] = true }

-- Returns the index of the last character of the quoted text that starts at i.
local function quoted_end(text, i)
  local stops = "[\\\n" .. text:sub(i, i) .. "]"
  local j = text:find(stops, i + 1)
  while j and text:sub(j, j) == "\\" do j = text:find(stops, j + 2) end
  return j or #text + 1
end

-- Returns the index of the last character, the kind ("text", "name" or "sign") and the text of the
-- token that starts at i. White space and comments have no kind (nil).
local function token_at(text, i)
  local _, e = text:find("^%s+", i)
  if e then return e end
  _, e = text:find("^[%w_]+", i)
  if e then return e, "name", text:sub(i, e) end
  local dashes, level = text:match("^(%-?%-?)%[(=*)%[", i)
  if level and dashes ~= "-" then
    _, e = text:find("]" .. level .. "]", i, true)
    return e or #text, dashes == "" and "text" or nil
  end
  _, e = text:find("^%-%-[^\n]*", i)
  if e then return e end
  if text:find("^[\"']", i) then
    e = quoted_end(text, i)
    return e, "text", text:sub(i + 1, e - 1)
  end
  _, e = text:find("^[=~<>]=", i)
  e = e or i
  return e, "sign", text:sub(i, e)
end

-- Returns the tokens of the text: { kind, text, line, depth }. depth counts the brackets around a
-- token; an opening token and its closing token have the depth outside that pair.
local function tokens_of(text)
  local tokens, line, depth, i = {}, 1, 0, 1
  while i <= #text do
    local e, kind, word = token_at(text, i)
    if kind then
      if kind ~= "text" and CLOSES[word] then depth = depth - 1 end
      tokens[#tokens + 1] = { kind = kind, text = word, line = line, depth = depth }
      if kind ~= "text" and OPENS[word] then depth = depth + 1 end
    end
    if kind ~= "name" and kind ~= "sign" then
      local _, breaks = text:sub(i, e):gsub("\n", "")
      line = line + breaks
    end
    i = e + 1
  end
  return tokens
end

-- Returns the indices of the first token of `line` and of the last token that belongs to it: the
-- end of the brackets that are opened on `line`.
local function region_of(tokens, line)
  local first, base, opened
  for i, t in ipairs(tokens) do
    if t.line >= line then
      first, base = first or i, math.min(base or t.depth, t.depth)
      if t.line > line and t.depth <= base and opened then return first, i end
      opened = opened or OPENS[t.text]
    end
  end
  return first or 1, first and #tokens or 0
end

-- Returns the index of the token where `key` is set (as `key =` or `["key"] =`) and the index of
-- the first token of its value; nothing if tokens first to last do not set it.
local function find_key(tokens, key, first, last)
  for i = first, last do
    local t, after = tokens[i], tokens[i + 1]
    if t.text == key and after then
      if t.kind == "name" and after.text == "=" then return i, i + 2 end
      if t.kind == "text" and after.text == "]" and tokens[i - 1].text == "["
        and tokens[i + 2] and tokens[i + 2].text == "=" then
        return i - 1, i + 3
      end
    end
  end
end

-- Returns the index of the last token of the expression that starts at token `first`: it ends
-- before a comma or semicolon at `depth`, or before a token outside `depth`.
local function value_end(tokens, first, last, depth)
  for i = first, last do
    local t = tokens[i]
    if t.depth < depth or (t.depth == depth and (t.text == "," or t.text == ";")) then
      return i - 1
    end
  end
  return last
end

-- Returns the index of the first token of entry n in the first list among tokens first to last, as
-- two equal results (find_key returns a key and a value); nothing without such an entry.
local function find_entry(tokens, n, first, last)
  while first <= last and tokens[first].text ~= "{" do first = first + 1 end
  if first >= last then return end
  local depth = tokens[first].depth + 1
  local at = first + 1
  for _ = 2, n do
    at = value_end(tokens, at, last, depth) + 2
    if at > last or tokens[at].depth < depth then return end
  end
  return at, at
end

--- Returns the line of the field that `path` names in the call that starts on `line`, or `line` if
--- the field is not found. Parts of the path that the call does not contain (its root, a value from
--- a variable) are skipped.
function M.line(text, line, path)
  local tokens = tokens_of(text)
  local first, last = region_of(tokens, line)
  local found, part, depth = nil, nil, 0
  for name in path:gmatch("[^.%[%]]+") do
    part, depth = name, depth + 1
    local index, key, value = tonumber(name), nil, nil
    if index and found then
      key, value = find_entry(tokens, index, first, last)
    elseif not index then
      key, value = find_key(tokens, name, first, last)
    end
    if key then
      found = tokens[key].line
      first, last = value, value_end(tokens, value, last, tokens[key].depth)
    end
  end
  if found or depth < 2 then return found or line end
  -- The field is not in the call: its table may have been made elsewhere, by a helper or in a
  -- variable. If the whole recipe sets the path's last key only once, that line is meant.
  local key, value = find_key(tokens, part, 1, #tokens)
  if key and not find_key(tokens, part, value, #tokens) then return tokens[key].line end
  return line
end

--- Returns the line of the recipe's last `return` outside all functions, or nil. A call in that
--- statement is a tail call, which leaves no frame of the recipe on the stack.
function M.last_return(text)
  local line
  for _, t in ipairs(tokens_of(text)) do
    if t.kind == "name" and t.text == "return" and t.depth == 0 then line = t.line end
  end
  return line
end

return M
