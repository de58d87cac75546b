// core.read_line: a line that the user edits, with a history and completion, by libedit; a plain
// line where stdin is no terminal, or without libedit.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#ifdef MOE_LIBEDIT
#include <editline/readline.h>
#endif

#include "bindings/front/front.h"
#include "bindings/host/convert.h"
#include "bindings/host/host.h"

namespace moe::lua {
namespace {

#ifdef MOE_LIBEDIT

lua_State* state = nullptr;  // of the read_line() that runs, whose third argument completes

// Returns the word number `i` of those that may stand at the end of the text before the cursor.
char* word_of(const char*, int i) {
  Failure failure;
  lua_pushvalue(state, 3);
  push_text(state, std::string_view(rl_line_buffer, static_cast<size_t>(rl_point)));
  char* word = nullptr;
  if (try_call(state, 1, 1, failure)) {
    lua_rawgeti(state, -1, i + 1);
    if (lua_isstring(state, -1) != 0) word = strdup(lua_tostring(state, -1));
    lua_pop(state, 2);
  }
  return word;
}

char** complete(const char* text, int, int) {
  rl_attempted_completion_over = 1;
  return rl_completion_matches(text, word_of);
}

bool read_edited(lua_State* L, const std::string& prompt, const std::string& history,
                 std::string& line) {
  if (state == nullptr) {
    rl_attempted_completion_function = complete;
    using_history();
    if (!history.empty()) read_history(history.c_str());
  }
  state = L;
  char* const text = readline(prompt.c_str());
  if (text == nullptr) return false;
  line = text;
  std::free(text);
  if (!line.empty()) add_history(line.c_str());
  if (!history.empty()) write_history(history.c_str());
  return true;
}

#endif

}  // namespace

int read_line(lua_State* L) {
  std::string line;
  const std::string prompt = text_argument(L, 1), history = text_argument(L, 2);
#ifdef MOE_LIBEDIT
  const bool edited = isatty(STDIN_FILENO) != 0;
  const bool found = edited ? read_edited(L, prompt, history, line)
                            : static_cast<bool>(std::getline(std::cin, line));
#else
  const bool found = static_cast<bool>(std::getline(std::cin, line));
#endif
  Host::of(L).go_on();
  if (!found) return 0;
  push_text(L, line);
  return 1;
}

}  // namespace moe::lua
