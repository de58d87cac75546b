// A check against overflow of the C stack by nested calls. Lua's own limit covers only Lua's stack.
// A C function that calls Lua again (gsub, sort, the start of a coroutine, each function of ours)
// uses the thread's C stack, and the process crashes when that is exhausted. So each such function
// first checks that enough is left: ours on entry (protected.cpp), Lua's by
// scripts/moe/base/nesting.lua.
#pragma once

namespace moe::lua {

/// Throws UserError if this thread's stack has less space left than the engine may need until the
/// next check. The first call on a thread reads the stack's bounds; later calls take nanoseconds.
void check_stack();

}  // namespace moe::lua
