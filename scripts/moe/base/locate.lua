-- Where a field stands in a recipe's text: the line of "experiment.run[2].link.bytes_per_s" in the
-- call that starts on a known line. It reads brackets and keys, no more; what it cannot find it
-- leaves at the last line that it did find.
local M = {}

local OPENS = { ["{"] = true, ["("] = true, ["["] = true, ["function"] = true, ["do"] = true,
  ["if"] = true, ["repeat"] = true }
local CLOSES = { ["}"] = true, [")"] = true, ["]"] = true, ["end"] = true, ["until"] = true }

-- The end of the quoted text that starts at i.
local function quoted_end(text, i)
  local quote = text:sub(i, i)
  local j = i + 1
  while j <= #text do
    local c = text:sub(j, j)
    if c == "\\" then
      j = j + 1
    elseif c == quote or c == "\n" then
      return j
    end
    j = j + 1
  end
  return j
end

-- End, kind and text of the token that starts at i; no kind for white space and comments.
local function token_at(text, i)
  local dashes, level = text:match("^(%-?%-?)%[(=*)%[", i)
  if level and dashes ~= "-" then
    local _, e = text:find("]" .. level .. "]", i, true)
    return e or #text, dashes == "" and "text" or nil
  end
  local _, e = text:find("^%-%-[^\n]*", i)
  if not e then _, e = text:find("^%s", i) end
  if e then return e end
  if text:find("^[\"']", i) then
    e = quoted_end(text, i)
    return e, "text", text:sub(i + 1, e - 1)
  end
  _, e = text:find("^[%w_]+", i)
  if e then return e, "name", text:sub(i, e) end
  _, e = text:find("^[=~<>]=", i)
  e = e or i
  return e, "sign", text:sub(i, e)
end

-- Tokens of the text: { kind, text, line, depth }. An opening token and its closing one have the
-- depth of what stands around them.
local function tokens_of(text)
  local tokens, line, depth, i = {}, 1, 0, 1
  while i <= #text do
    local e, kind, word = token_at(text, i)
    if kind then
      if kind ~= "text" and CLOSES[word] then depth = depth - 1 end
      tokens[#tokens + 1] = { kind = kind, text = word, line = line, depth = depth }
      if kind ~= "text" and OPENS[word] then depth = depth + 1 end
    end
    local _, breaks = text:sub(i, e):gsub("\n", "")
    line, i = line + breaks, e + 1
  end
  return tokens
end

-- First and last token of `line` and of what it opens.
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

-- The token where `key` is set, as `key =` or `["key"] =`.
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

-- The last token of the expression that starts at token `first`, no deeper than `depth`.
local function value_end(tokens, first, last, depth)
  for i = first, last do
    local t = tokens[i]
    if t.depth < depth or (t.depth == depth and (t.text == "," or t.text == ";")) then
      return i - 1
    end
  end
  return last
end

-- Entry number n of the first list in the region.
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

--- The line of the field that `path` names in the call on `line`. Parts of the path that are not
--- in the text (its root, a value that came through a variable) are passed over.
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
  -- Not in the call: perhaps its table was made elsewhere, by a helper or in a variable.
  local key, value = find_key(tokens, part, 1, #tokens)
  if key and not find_key(tokens, part, value, #tokens) then return tokens[key].line end
  return line
end

--- The line of the last statement outside all functions where it is a return, or nil. A call made
--- there leaves no frame of the recipe on the stack.
function M.last_return(text)
  local line
  for _, t in ipairs(tokens_of(text)) do
    if t.kind == "name" and t.text == "return" and t.depth == 0 then line = t.line end
  end
  return line
end

return M
