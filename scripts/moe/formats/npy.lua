-- Arrays of numbers in NumPy's format (.npy, versions 1 to 3, C order), as nested lists.
local files = require "moe.formats.files"

local M = {}

M.MAGIC = "\147NUMPY"

local function little(text, first, n)
  local value = 0
  for i = n - 1, 0, -1 do value = value * 256 + text:byte(first + i) end
  return value
end

local function whole(text, first, n, signed)
  local value = little(text, first, n)
  return signed and text:byte(first + n - 1) >= 128 and value - 256 ^ n or value
end

-- A binary floating-point number with `mantissa` bits after the point in n bytes.
local function float(text, first, n, mantissa)
  local bits = little(text, first, math.min(n, 6))
  local exponents = 2 ^ (8 * n - 1 - mantissa)
  if n == 8 then  -- the highest two bytes apart: a double holds 53 bits
    local high = little(text, first + 6, 2)
    local exponent, rest = math.floor(high % 32768 / 16), high % 16 * 2 ^ 48 + bits
    local sign = high >= 32768 and -1 or 1
    if exponent == 2047 then return rest == 0 and sign * math.huge or 0 / 0 end
    return sign * (exponent == 0 and rest * 2 ^ -1074 or (2 ^ 52 + rest) * 2 ^ (exponent - 1075))
  end
  local exponent, rest = math.floor(bits / 2 ^ mantissa) % exponents, bits % 2 ^ mantissa
  local sign, bias = bits >= 2 ^ (8 * n - 1) and -1 or 1, exponents / 2 - 1
  if exponent == exponents - 1 then return rest == 0 and sign * math.huge or 0 / 0 end
  if exponent == 0 then return sign * rest * 2 ^ (1 - bias - mantissa) end
  return sign * (2 ^ mantissa + rest) * 2 ^ (exponent - bias - mantissa)
end

local MANTISSA = { [2] = 10, [4] = 23, [8] = 52 }

-- Returns the header's text, and the place behind it.
local function header(file)
  local text = file.text
  local length = text:byte(7) == 1 and 2 or 4
  if #text < 8 + length then files.fail(file.name, "its header is cut off") end
  local size = little(text, 9, length)
  if 8 + length + size > #text then files.fail(file.name, "its header is cut off") end
  return text:sub(9 + length, 8 + length + size), 9 + length + size
end

--- Returns the numbers of a file { name, text } as nested lists.
function M.lists(file)
  local head, at = header(file)
  local kind, size = head:match "'descr':%s*'[<|=]([iuf])(%d)'"
  local shape = head:match "'shape':%s*(%b())"
  size = tonumber(size)
  if not shape or not size or not MANTISSA[size] and size ~= 1 or kind == "f" and size == 1 then
    files.fail(file.name, "its numbers are not of a type <i, <u or <f: %s", files.shown(head))
  elseif head:find "'fortran_order':%s*True" then
    files.fail(file.name, "it is in Fortran's order; save it in C's (numpy.ascontiguousarray)")
  end
  local lengths, count = {}, 1
  for n in shape:gmatch "%d+" do
    lengths[#lengths + 1] = tonumber(n)
    count = count * lengths[#lengths]
  end
  if #lengths == 0 or count * size ~= #file.text - at + 1 then
    files.fail(file.name, "it has %d bytes of numbers, but its shape %s needs %.0f",
      #file.text - at + 1, shape, count * size)
  end
  local function build(axis)
    local out = {}
    for i = 1, lengths[axis] do
      if axis < #lengths then
        out[i] = build(axis + 1)
      else
        out[i] = kind == "f" and float(file.text, at, size, MANTISSA[size])
          or whole(file.text, at, size, kind == "i")
        at = at + size
      end
    end
    return out
  end
  return build(1)
end

return M
