// core.run_program: this program once more, as a process of its own, for a request that runs a
// recipe. Whatever happens to that process, the session goes on.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
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

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) throw run_error("cannot make a pipe: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// Returns a file in memory with this content, to be read from its beginning.
Descriptor file_of(const std::string& text) {
  Descriptor file(memfd_create("moebench", MFD_CLOEXEC));
  const ssize_t written = write(file.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()) || lseek(file.get(), 0, SEEK_SET) != 0) {
    throw run_error("cannot hand the recipe to a process: {}", std::strerror(errno));
  }
  return file;
}

// Starts the program in a group of its own, which the terminal's Ctrl-C does not reach. A SIGINT
// that comes before it has handlers ends it.
pid_t start(std::vector<std::string> arguments, const Descriptor& in, const Descriptor& out,
            const Descriptor& err) {
  arguments.insert(arguments.begin(), "moebench");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  sigset_t interrupts, before;
  sigemptyset(&interrupts);
  sigaddset(&interrupts, SIGINT);
  pthread_sigmask(SIG_BLOCK, &interrupts, &before);  // the child has our handler until exec
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw run_error("cannot start a process: {}", std::strerror(errno));
  if (pid > 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  const bool ready = getppid() == parent && dup2(in.get(), STDIN_FILENO) >= 0 &&
                     dup2(out.get(), STDOUT_FILENO) >= 0 && dup2(err.get(), STDERR_FILENO) >= 0;
  if (ready) execv("/proc/self/exe", argv.data());
  _exit(127);
}

// Prints the whole lines of a text and removes them from it.
void print_lines(const Host& host, std::string& text) {
  const size_t end = text.rfind('\n');
  if (end == std::string::npos) return;
  host.print(text.substr(0, end + 1));
  text.erase(0, end + 1);
}

// Reads both pipes until they are closed; returns what came on `out`.
std::string read_both(const Host& host, pid_t pid, const Descriptor& out, const Descriptor& err) {
  std::string texts[2];
  pollfd ends[2] = {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}};
  bool told = false;
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    if (host.must_stop() && !told) told = kill(pid, SIGINT) == 0;
    if (poll(ends, 2, kPollMs) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      char block[1 << 16];
      const ssize_t got = ends[i].revents != 0 ? read(ends[i].fd, block, sizeof block) : -1;
      if (got > 0) texts[i].append(block, static_cast<size_t>(got));
      if (got == 0) ends[i].fd = -1;
    }
    print_lines(host, texts[1]);
  }
  if (!texts[1].empty()) host.print(texts[1]);
  return texts[0];
}

}  // namespace

int run_program(lua_State* L) {
  const Host& host = Host::of(L);
  const nlohmann::json arguments = to_json(L, 1);
  const Descriptor in = file_of(text_argument(L, 2));
  auto [out, out_end] = make_pipe();
  auto [err, err_end] = make_pipe();
  const pid_t pid = start(arguments.get<std::vector<std::string>>(), in, out_end, err_end);
  out_end.close();
  err_end.close();
  const std::string text = read_both(host, pid, out, err);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  lua_pushinteger(L, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  push_text(L, text);
  return 2;
}

}  // namespace moe::lua
