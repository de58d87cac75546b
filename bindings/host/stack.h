// The C stack that nested calls use up. Lua's own limit counts Lua's stack alone; a function of C
// that calls Lua (gsub, sort, a coroutine's start, every function of ours) takes a piece of the
// thread's stack each time, and the process dies where that ends. So each such function looks first
// whether enough is left: ours where they enter (protected.cpp), Lua's through
// scripts/moe/base/nesting.lua.
#pragma once

namespace moe::lua {

/// Throws UserError where this thread's stack has less left than the engine may need between two
/// looks. A thread's first call asks for the stack's bounds; later ones take nanoseconds.
void check_stack();

}  // namespace moe::lua
