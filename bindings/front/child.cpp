// core.run_program: this program once more, as a process of its own, for a request that runs a
// recipe. Whatever happens to that process, the session goes on.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "bindings/front/front.h"
#include "bindings/host/convert.h"
#include "bindings/host/host.h"
#include "engine/base/files.h"

namespace moe::lua {
namespace {

constexpr int kPollMs = 100;  // how soon a request to stop is seen

// Starts the program in a group of its own, which the terminal's Ctrl-C does not reach.
pid_t start(std::vector<std::string> arguments, const std::string& in, const std::string& out,
            int err) {
  arguments.insert(arguments.begin(), "moebench");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) throw run_error("cannot start a process: {}", std::strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  const int from = open(in.c_str(), O_RDONLY), to = open(out.c_str(), O_WRONLY);
  const bool ready = getppid() == parent && dup2(from, STDIN_FILENO) >= 0 &&
                     dup2(to, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0;
  if (ready) execv("/proc/self/exe", argv.data());
  _exit(127);
}

// Prints what the process writes, until it ends; sends a request to stop on to it.
void print_all(const Host& host, pid_t pid, int from) {
  pollfd end = {from, POLLIN, 0};
  std::string text;
  for (bool told = false;;) {
    if (host.must_stop() && !told) told = kill(pid, SIGINT) == 0;
    if (poll(&end, 1, kPollMs) <= 0) continue;
    char block[1 << 16];
    const ssize_t got = read(from, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) text.append(block, static_cast<size_t>(got));
    const size_t lines = got > 0 ? text.rfind('\n') + 1 : text.size();  // none: npos + 1 = 0
    if (lines > 0) host.print(text.substr(0, lines));
    if (got <= 0) return;
    text.erase(0, lines);
  }
}

}  // namespace

int run_program(lua_State* L) {
  const Host& host = Host::of(L);
  const auto arguments = to_json(L, 1).get<std::vector<std::string>>();
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) throw run_error("cannot make a pipe: {}", std::strerror(errno));
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  const pid_t pid = start(arguments, text_argument(L, 2), text_argument(L, 3), to.get());
  to.close();
  print_all(host, pid, from.get());
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  lua_pushinteger(L, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  return 1;
}

}  // namespace moe::lua
