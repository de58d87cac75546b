// core.read_line: a line that the user edits, with a history and completion, by libedit; a plain
// line where stdin is no terminal, or without libedit.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>
#ifdef MOE_LIBEDIT
#include <histedit.h>
#endif

#include "bindings/front/front.h"
#include "bindings/host/convert.h"
#include "bindings/host/host.h"
#include "bindings/host/protected.h"

namespace moe::lua {
namespace {

#ifdef MOE_LIBEDIT

constexpr int kLines = 1000;  // of the history

/// The editor of this process, with its history.
class Editor {
 public:
  explicit Editor(std::string file) : file_(std::move(file)) {
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(
        editor_, EL_PROMPT, +[](EditLine* e) { return of(e).prompt_.data(); });
    el_set(editor_, EL_EDITOR, "emacs");
    // Ctrl-C is a key of the editor, so that it ends the line and not the program.
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
    el_set(
        editor_, EL_ADDFN, "moe-complete", "complete",
        +[](EditLine* e, int) -> unsigned char { return of(e).complete(); });
    el_set(
        editor_, EL_ADDFN, "moe-cancel", "leave the line",
        +[](EditLine* e, int) -> unsigned char { return of(e).cancel(); });
    el_set(editor_, EL_BIND, "^I", "moe-complete", nullptr);
    el_set(editor_, EL_BIND, "^C", "moe-cancel", nullptr);
    history(history_, &event_, H_SETSIZE, kLines);
    history(history_, &event_, H_SETUNIQUE, 1);
    if (!file_.empty()) history(history_, &event_, H_LOAD, file_.c_str());
    el_set(editor_, EL_HIST, history, history_);
  }
  ~Editor() {
    el_end(editor_);
    history_end(history_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  /// Returns false at the end of the input.
  bool read(lua_State* L, const std::string& prompt, std::string& line) {
    L_ = L;
    prompt_ = prompt;
    cancelled_ = false;
    int length = 0;
    const char* const text = el_gets(editor_, &length);
    if (cancelled_) return true;
    if (text == nullptr || length <= 0) return false;
    line.assign(text, static_cast<size_t>(length));
    if (!line.empty() && line.back() == '\n') line.pop_back();
    if (line.find_first_not_of(' ') == std::string::npos) return true;
    history(history_, &event_, H_ENTER, line.c_str());
    if (!file_.empty()) history(history_, &event_, H_SAVE, file_.c_str());
    return true;
  }

 private:
  static Editor& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }

  unsigned char cancel() {
    cancelled_ = true;
    std::fputs("^C\n", stdout);
    return CC_NEWLINE;
  }

  // Inserts what all texts have in common, or else shows them.
  unsigned char complete() {
    const LineInfo* const info = el_line(editor_);
    lua_pushvalue(L_, 3);
    push_text(L_, std::string_view(info->buffer, static_cast<size_t>(info->cursor - info->buffer)));
    Failure failure;
    if (!try_call(L_, 1, 2, failure)) return CC_ERROR;
    const auto texts = to_json(L_, -2).get<std::vector<std::string>>();
    const auto known = static_cast<size_t>(lua_tointeger(L_, -1));
    lua_pop(L_, 2);
    if (texts.empty()) return CC_ERROR;
    std::string common = texts[0];
    for (const std::string& text : texts) {
      const auto differ = std::mismatch(common.begin(), common.end(), text.begin(), text.end());
      common.erase(differ.first, common.end());
    }
    if (common.size() > known) {
      return el_insertstr(editor_, common.c_str() + known) == 0 ? CC_REFRESH : CC_ERROR;
    }
    std::fputc('\n', stdout);
    for (const std::string& text : texts) std::printf("%s  ", text.c_str());
    std::fputc('\n', stdout);
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  std::string file_, prompt_;
  lua_State* L_ = nullptr;
  bool cancelled_ = false;
  EditLine* editor_ = el_init("moebench", stdin, stdout, stderr);
  History* history_ = history_init();
  HistEvent event_{};
};

#endif

bool read_plain(std::string& line) {
  char* text = nullptr;
  size_t room = 0;
  const ssize_t length = getline(&text, &room, stdin);
  if (length > 0) line.assign(text, static_cast<size_t>(length));
  std::free(text);
  if (!line.empty() && line.back() == '\n') line.pop_back();
  return length > 0;
}

}  // namespace

int read_line(lua_State* L) {
  std::string line;
  bool found = false;
  const std::string prompt = text_argument(L, 1), history = text_argument(L, 2);
  std::fflush(stdout);
#ifdef MOE_LIBEDIT
  if (isatty(STDIN_FILENO) != 0) {
    const auto editor = Host::of(L).kept<std::unique_ptr<Editor>>(
        "editor", [&] { return std::make_unique<Editor>(history); });
    found = (*editor)->read(L, prompt, line);
  } else {
    found = read_plain(line);
  }
#else
  if (isatty(STDIN_FILENO) != 0) std::fputs(prompt.c_str(), stdout), std::fflush(stdout);
  found = read_plain(line);
#endif
  Host::of(L).go_on();
  if (!found) return 0;
  push_text(L, line);
  return 1;
}

}  // namespace moe::lua
