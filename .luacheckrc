-- Recipes and the Lua library run in LuaJIT; a policy may leave arguments of its signature unused.
std = "luajit"
unused_args = false
max_line_length = 100
