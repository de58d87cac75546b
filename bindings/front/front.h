// What lets a session use this program: functions of core for requests (front.cpp), for processes
// of their own (child.cpp) and for lines that are typed (editor.cpp).
#pragma once

#include <lua.hpp>

namespace moe::lua {

/// Adds core.answer, guarded, load_text, merge_simulations, next_request, read_line, run_program
/// and text_hash to the table on top of the stack.
void open_front(lua_State* L);

/// ({argument, ...}, in, out): runs this program with these arguments, its stdin and stdout being
/// existing files -> the exit status (128 + the signal that ended it). What it writes to stderr is
/// printed as it comes. A request to stop is sent on as SIGINT.
int run_program(lua_State* L);
/// (prompt, history, complete) -> a line that the user types; nothing at the end of the input.
/// history: the file in which lines are kept, or ""; complete(text before the cursor) -> the words
/// that may stand at its end.
int read_line(lua_State* L);

}  // namespace moe::lua
