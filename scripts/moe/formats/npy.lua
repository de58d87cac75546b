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

-- Bits of the exponent by the number of bytes.
local EXPONENT = { [2] = 5, [4] = 8, [8] = 11 }

-- A binary floating-point number in n bytes, of which the highest two are read apart: a double
-- holds 53 bits.
local function float(text, first, n)
  local high, low_bits = little(text, first + n - 2, 2), 15 - EXPONENT[n]
  local exponent = math.floor(high % 32768 / 2 ^ low_bits)
  local rest = high % 2 ^ low_bits * 256 ^ (n - 2) + little(text, first, n - 2)
  local sign, mantissa = high >= 32768 and -1 or 1, 8 * (n - 2) + low_bits
  local bias = 2 ^ (EXPONENT[n] - 1) - 1
  if exponent == 2 * bias + 1 then return rest == 0 and sign * math.huge or 0 / 0 end
  if exponent == 0 then return sign * rest * 2 ^ (1 - bias - mantissa) end
  return sign * (2 ^ mantissa + rest) * 2 ^ (exponent - bias - mantissa)
end

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
  if not shape or not size or not EXPONENT[size] and size ~= 1 or kind == "f" and size == 1 then
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
        out[i] = kind == "f" and float(file.text, at, size)
          or whole(file.text, at, size, kind == "i")
        at = at + size
      end
    end
    return out
  end
  return build(1)
end

return M
