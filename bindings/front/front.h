// What lets a session use this program: the functions of core for requests (front.cpp), for
// processes of their own (child.cpp) and for a line that is edited (editor.cpp).
#pragma once

#include <lua.hpp>

namespace moe::lua {

/// Adds core.answer, guarded, load_text, merge_simulations, next_request, read_line, remove_output
/// and run_program to the table on top of the stack.
void open_front(lua_State* L);

/// ({argument, ...}, text): runs this program with these arguments and the text as its stdin ->
/// the exit status (128 + the signal that ended it) and what it wrote to stdout. What it writes to
/// stderr is printed as it comes. A request to stop is sent on as SIGINT.
int run_program(lua_State* L);
/// (prompt, history, complete) -> a line that the user edits; nothing at the end of the input.
/// history: the file in which lines are kept, or ""; complete(text before the cursor) -> the texts
/// that may follow its last `length` bytes, and length.
int read_line(lua_State* L);

}  // namespace moe::lua
