#include "bindings/sweep/workers.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bindings/host/convert.h"
#include "bindings/host/protected.h"

namespace moe::lua {
namespace {

constexpr int kPollMs = 100;  // how soon a request to stop is seen
constexpr size_t kHeader = sizeof(uint64_t);

/// Writes the text, preceded by its length. Returns false when the other end is closed.
bool write_message(int socket, const std::string& text) {
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), kHeader);
  bytes += text;
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = send(socket, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += static_cast<size_t>(written);
  }
  return true;
}

/// Reads what has arrived, at least one byte, and appends it. Returns false when the other end is
/// closed.
bool read_some(int socket, std::string& bytes) {
  char block[1 << 16];
  for (;;) {
    const ssize_t got = read(socket, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes.append(block, static_cast<size_t>(got));
    return true;
  }
}

/// Returns the text of a message that has arrived as a whole.
std::optional<std::string> message_in(const std::string& bytes) {
  uint64_t length = 0;
  if (bytes.size() < kHeader) return std::nullopt;
  std::memcpy(&length, bytes.data(), kHeader);
  if (bytes.size() - kHeader < length) return std::nullopt;
  return bytes.substr(kHeader);
}

/// Makes this process, a child, end with its parent and leave the terminal to it.
void become_quiet(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  for (const int number : {SIGINT, SIGHUP}) signal(number, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
}

}  // namespace

Workers::Workers(lua_State* L, int64_t count) : host_(Host::of(L)) {
  luaL_checktype(L, -1, LUA_TFUNCTION);
  host_.progress().erase();
  std::fflush(nullptr);
  const pid_t parent = getpid();
  host_.watchdog()->pause();
  for (int64_t i = 0; i < count; ++i) {
    int pair[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) break;
    const pid_t pid = fork();
    if (pid == 0) {
      for (const Child& earlier : children_) close(earlier.socket);
      close(pair[0]);
      serve(L, pair[1], parent);
    }
    close(pair[1]);
    if (pid < 0) {
      close(pair[0]);
      break;
    }
    children_.push_back({.pid = pid, .socket = pair[0]});
  }
  host_.watchdog()->resume();
  lua_pop(L, 1);
  if (children_.empty() && count > 0) {
    throw run_error("cannot start a worker process: {}", std::strerror(errno));
  }
}

Workers::~Workers() {
  for (const Child& child : children_) {
    close(child.socket);
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
}

void Workers::serve(lua_State* L, int socket, pid_t parent) {
  become_quiet(parent);
  host_.watchdog()->poll_with(nullptr);
  host_.watchdog()->resume();
  host_.mute();
  const int function = lua_gettop(L);
  for (;;) {
    std::string bytes;
    while (!message_in(bytes)) {
      if (!read_some(socket, bytes)) std::_Exit(0);
    }
    lua_pushvalue(L, function);
    const std::string question = *message_in(bytes);
    push_text(L, question);
    Failure failure;
    if (!try_call(L, 1, 1, failure)) {
      std::fprintf(stderr, "moebench: worker process: %s\n", failure.message.c_str());
      std::_Exit(1);
    }
    size_t size = 0;
    const char* text = lua_tolstring(L, -1, &size);
    if (text == nullptr || !write_message(socket, std::string(text, size))) std::_Exit(1);
    lua_settop(L, function);
  }
}

void Workers::ask(size_t i, const std::string& question) {
  Child& child = children_.at(i);
  MOE_CHECK(!child.asked, "Workers::ask: child {} still has a question; wait for its answer", i);
  if (!write_message(child.socket, question)) lost(child);
  child.asked = true;
}

void Workers::lost(const Child& child) {
  int status = 0;
  waitpid(child.pid, &status, 0);
  close(child.socket);
  std::erase_if(children_, [pid = child.pid](const Child& c) { return c.pid == pid; });
  if (WIFSIGNALED(status)) {
    throw run_error("a worker process was ended by signal {} ({}); is memory short?",
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  throw run_error("a worker process ended with status {}", WEXITSTATUS(status));
}

bool Workers::take(Child& child) {
  if (!read_some(child.socket, child.read)) lost(child);
  return message_in(child.read).has_value();
}

std::optional<Workers::Answer> Workers::next() {
  std::vector<pollfd> waiting(children_.size());
  for (size_t i = 0; i < children_.size(); ++i) {
    waiting[i] = {children_[i].asked ? children_[i].socket : -1, POLLIN, 0};
  }
  while (!host_.must_stop()) {
    if (poll(waiting.data(), waiting.size(), kPollMs) <= 0) continue;
    for (size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      if (waiting[i].revents == 0 || !take(child)) continue;
      Answer answer{i, std::move(*message_in(child.read))};
      child.read.clear();
      child.asked = false;
      return answer;
    }
  }
  return std::nullopt;
}

}  // namespace moe::lua
