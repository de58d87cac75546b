// Functions of core that keep simulations and run them side by side (scripts/moe/run).
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
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/host/convert.h"
#include "bindings/host/core.h"
#include "bindings/host/files.h"
#include "bindings/host/host.h"
#include "bindings/host/protected.h"
#include "bindings/host/userdata.h"
#include "bindings/sweep/simulation_cache.h"
#include "engine/base/stop.h"

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

/// Child processes that answer questions side by side: each calls the same Lua function with a text
/// and returns a text. A child is a fork of this process, so that it has the recipe as it is at
/// that moment; what it changes stays with it. It draws nothing, prints nothing on standard output,
/// ignores the terminal's signals, and ends when this process does, however that ends.
class Workers {
 public:
  /// Starts `count` children that call the function on top of the stack, which is popped. Throws
  /// RunError when the system starts no more processes.
  Workers(lua_State* L, int64_t count) : host_(Host::of(L)) {
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
  ~Workers() {
    for (const Child& child : children_) {
      close(child.socket);
      kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
  }

  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  size_t size() const { return children_.size(); }
  /// Sends a question to child `i`, which must not have one.
  void ask(size_t i, const std::string& question) {
    Child& child = children_.at(i);
    MOE_CHECK(!child.asked, "Workers::ask: child {} still has a question; wait for its answer", i);
    if (!write_message(child.socket, question)) lost(child);
    child.asked = true;
  }

  struct Answer {
    size_t child;
    std::string text;
  };
  /// Waits for an answer of any child that has a question. Returns nothing when a stop was
  /// requested meanwhile. Throws RunError when a child ended without an answer.
  std::optional<Answer> next() {
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

 private:
  struct Child {
    pid_t pid = -1;
    int socket = -1;
    bool asked = false;
    std::string read;  // the part of the answer that has arrived
  };
  [[noreturn]] void serve(lua_State* L, int socket, pid_t parent) {
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

  [[noreturn]] void lost(const Child& child) {
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

  bool take(Child& child) {
    if (!read_some(child.socket, child.read)) lost(child);
    return message_in(child.read).has_value();
  }

  Host& host_;
  std::vector<Child> children_;
};

namespace fs = std::filesystem;

constexpr const char* kWorkersType = "workers";

/// A number that changes with each build of this program and with each change of its Lua library.
uint64_t program_hash(const std::string& scripts_dir) {
  std::set<fs::path> files = {"/proc/self/exe"};
  for (const auto& file : fs::recursive_directory_iterator(scripts_dir + "/moe")) {
    if (file.is_regular_file()) files.insert(file.path());
  }
  uint64_t hash = text_hash("");
  for (const fs::path& file : files) {
    hash = text_hash(fs::relative(file, scripts_dir).string(), hash);
    // Another hash than text_hash, which takes 16 ms for the program.
    hash = text_hash(std::to_string(std::hash<std::string>()(read_file(file))), hash);
  }
  return hash;
}

/// (parts, code): the key of the simulation that these parts determine, together with the program
/// and, if code is true, with the texts of the recipe and its modules. parts: any value; functions
/// and userdata in it count as null.
int simulation_key(lua_State* L) {
  Host& host = Host::of(L);
  host.end_loading();  // as before a plan, which there may be none of if all are found
  const auto program =
      host.kept<uint64_t>("program hash", [&] { return program_hash(host.options().scripts_dir); });
  std::string text = json_text(to_json(L, 1, true), -1);
  text += fmt::format("{:016x}", *program);
  if (lua_toboolean(L, 2) != 0) text += fmt::format("{:016x}", host.code_hash());
  // Two hashes with different beginnings: with one of 64 bits, two of a billion simulations would
  // share a key with a probability of 3%.
  const std::string key =
      fmt::format("{:016x}{:016x}", text_hash(text), text_hash(text, text_hash("second")));
  push_text(L, key);
  return 1;
}

/// The cache of this process; in memory once its file could not be used.
struct Kept {
  std::unique_ptr<SimulationCache> cache;

  /// Goes on in memory, which is said: a cache that fails must not end a run.
  void give_up(const std::string& why) {
    std::fprintf(stderr, "moebench: simulations are not kept beyond this run: %s\n", why.c_str());
    cache = std::make_unique<SimulationCache>("");
  }
  /// Calls use(cache), again with a cache in memory if the file fails.
  template <class Use>
  void with(const Use& use) {
    try {
      use(*cache);
    } catch (const Interrupted&) {
      throw;
    } catch (const RunError& error) {
      give_up(error.what());
      use(*cache);
    }
  }
};

/// Returns this process's cache. In a job of several processes, where all processes must do the
/// same, there is none: the result is null.
std::shared_ptr<Kept> kept_of(lua_State* L) {
  Host& host = Host::of(L);
  if (host.options().processes != nullptr) return nullptr;
  return host.kept<Kept>("simulations", [&] {
    Kept kept;
    try {
      kept.cache = std::make_unique<SimulationCache>(simulations_beside(host.options().cache));
      const std::string warning = kept.cache->take_warning();
      if (!warning.empty()) std::fprintf(stderr, "moebench: %s\n", warning.c_str());
    } catch (const Interrupted&) {
      throw;
    } catch (const std::runtime_error& error) {
      kept.give_up(error.what());
    }
    return kept;
  });
}

/// (key) -> the outcome and the trace that were stored under the key, or nothing
int find_simulation(lua_State* L) {
  const std::string key = text_argument(L, 1);
  std::optional<Simulation> found;
  if (const auto kept = kept_of(L)) {
    kept->with([&](SimulationCache& cache) { found = cache.find(key); });
  }
  if (!found) return 0;
  push_text(L, found->outcome);
  push_text(L, found->trace);
  return 2;
}

/// (key, outcome, trace): stores a simulation
int store_simulation(lua_State* L) {
  const std::string key = text_argument(L, 1);
  const Simulation simulation = {text_argument(L, 2), text_argument(L, 3)};
  if (const auto kept = kept_of(L)) {
    kept->with([&](SimulationCache& cache) { cache.store(key, simulation); });
  }
  return 0;
}

/// () -> how many lines were printed and how many files that are not the library's were asked for
int touched(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(Host::of(L).printed() + Files::reads()));
  return 1;
}

/// (count, function) -> child processes that call the function with texts and return its texts
int make_workers(lua_State* L) {
  const auto count = static_cast<int64_t>(luaL_checknumber(L, 1));
  lua_settop(L, 2);
  auto workers = std::make_unique<Workers>(L, count);
  push_userdata<std::unique_ptr<Workers>>(L, kWorkersType, std::move(workers));
  return 1;
}

Workers& check_workers(lua_State* L) {
  return *check_userdata<std::unique_ptr<Workers>>(L, 1, kWorkersType);
}

/// workers:ask(number from 1, text)
int ask(lua_State* L) {
  check_workers(L).ask(static_cast<size_t>(luaL_checknumber(L, 2)) - 1, text_argument(L, 3));
  return 0;
}

/// workers:next() -> the number of a child and its answer; nothing when a stop was requested
int next_answer(lua_State* L) {
  const auto answer = check_workers(L).next();
  if (!answer) return 0;
  lua_pushnumber(L, static_cast<double>(answer->child + 1));
  push_text(L, answer->text);
  return 2;
}

/// workers:count() -> how many children were started
int count_workers(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check_workers(L).size()));
  return 1;
}

/// workers:close(): ends the children
int close_workers(lua_State* L) {
  check_userdata<std::unique_ptr<Workers>>(L, 1, kWorkersType).reset();
  return 0;
}

}  // namespace

void open_simulations(lua_State* L) {
  new_inner_type<std::unique_ptr<Workers>>(L, kWorkersType,
                                           {{"ask", core_function<ask>},
                                            {"close", core_function<close_workers>},
                                            {"count", core_function<count_workers>},
                                            {"next", core_function<next_answer>}});
  set_functions(L, {{"find_simulation", core_function<find_simulation>},
                    {"simulation_key", core_function<simulation_key>},
                    {"store_simulation", core_function<store_simulation>},
                    {"touched", core_function<touched>},
                    {"workers", core_function<make_workers>}});
}

}  // namespace moe::lua
