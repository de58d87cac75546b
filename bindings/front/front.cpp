#include "bindings/front/front.h"

#include <poll.h>
#include <unistd.h>

#include <filesystem>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/host.h"
#include "bindings/sweep/simulation_cache.h"

namespace moe::lua {
namespace {

// (name, text) -> the function of a text of the session, which ranks that need a policy of the
// session evaluate again, in order. A text that is an expression returns its value.
int load_text(lua_State* L) {
  Host::of(L).push_session_text(L, {text_argument(L, 1), text_argument(L, 2)});
  return 1;
}

// (f, library) -> true and what f() returns, or false and its error. An interruption ends f alone,
// at lines of the recipe, or, with `library`, at any.
int guarded(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  const auto where = lua_toboolean(L, 2) != 0 ? Limits::Where::kAnywhere : Limits::Where::kRecipe;
  lua_settop(L, 1);
  lua_pushboolean(L, 1);
  lua_insert(L, 1);
  Failure failure;
  if (Host::of(L).guarded(L, where, failure)) return lua_gettop(L);
  lua_settop(L, 0);
  lua_pushboolean(L, 0);
  push_failure(L, failure);
  return 2;
}

// Returns the next line of standard input that is not blank; nothing at its end, or where a signal
// has asked the session to end.
std::optional<std::string> next_line() {
  constexpr int kPollMs = 100;  // how soon a request to end is seen
  static std::string text;      // what was read and not yet returned
  for (size_t from = 0; !must_end();) {
    const size_t end = text.find('\n', from);
    if (end != std::string::npos) {
      const std::string line = text.substr(0, end);
      text.erase(0, end + 1);
      from = 0;
      if (line.find_first_not_of(" \t\r") != std::string::npos) return line;
      continue;
    }
    from = text.size();
    pollfd in = {STDIN_FILENO, POLLIN, 0};
    if (poll(&in, 1, kPollMs) <= 0) continue;
    char block[1 << 16];
    const ssize_t got = read(STDIN_FILENO, block, sizeof block);
    if (got == 0 || (got < 0 && errno != EINTR)) return std::nullopt;
    if (got > 0) text.append(block, static_cast<size_t>(got));
  }
  return std::nullopt;
}

// () -> the line of the next request; nothing at the end of the input. Prints nothing as the
// request's first output, which says that from now on a request to stop concerns it; one that came
// before is withdrawn.
int next_request(lua_State* L) {
  Host& host = Host::of(L);
  const auto line = next_line();
  if (!line) return 0;
  const auto request = nlohmann::json::parse(*line, nullptr, false);
  host.set_id(request.is_object() ? request.value("id", nlohmann::json()).dump() : "null");
  host.go_on();
  host.print("");
  push_text(L, *line);
  return 1;
}

// (text): writes an answer, one line
int answer(lua_State* L) {
  if (write_all(Host::of(L).options().answers, text_argument(L, 1) + "\n")) return 0;
  throw run_error("cannot write the answer: the reader of standard output is gone");
}

// (name): removes a folder in the output folder, with all that is in it
int remove_output(lua_State* L) {
  std::error_code error;
  const auto path = Host::of(L).files().writable(text_argument(L, 1) + "/any");
  std::filesystem::remove_all(path.parent_path(), error);
  return 0;
}

// (profile cache, {profile cache, ...}): adds the simulations that are kept beside the others to
// those beside the first -> how many were new
int merge_simulations(lua_State* L) {
  SimulationCache to(simulations_beside(text_argument(L, 1)));
  int64_t added = 0;
  for (const auto& from : to_json(L, 2)) {
    added += to.add(simulations_beside(from.get<std::string>()));
  }
  lua_pushnumber(L, static_cast<double>(added));
  return 1;
}

}  // namespace

void open_front(lua_State* L) {
  set_functions(L, {{"answer", core_function<answer>},
                    {"guarded", core_function<guarded>},
                    {"load_text", core_function<load_text>},
                    {"merge_simulations", core_function<merge_simulations>},
                    {"next_request", core_function<next_request>},
                    {"read_line", core_function<read_line>},
                    {"remove_output", core_function<remove_output>},
                    {"run_program", core_function<run_program>}});
}

}  // namespace moe::lua
