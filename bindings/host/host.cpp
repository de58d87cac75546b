#include "bindings/host/host.h"

#include <luajit.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bindings/host/core.h"
#include "bindings/host/sandbox.h"
#include "engine/base/stop.h"
#include "engine/base/utf8.h"
#include "engine/comm/job/processes.h"

namespace moe::lua {
namespace {

std::atomic<int> signals{0};
std::atomic<int64_t> first_signal_ms{0};
std::atomic<bool> in_session{false}, end_asked{false};

// Two signals within this time count as one: timeout, mpirun and a terminal signal the process and
// its group one after the other. A user does not press Ctrl-C twice so quickly.
constexpr int64_t kSameSignalMs = 250;

// The signal handler; calls only functions that are allowed in signal handlers.
void on_stop_signal(int signal_number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
  request_stop();
  if (in_session && signal_number == SIGINT) return;
  if (in_session) end_asked = true;
  if (signals.fetch_add(1) == 0) {
    first_signal_ms.store(now_ms);
    return;
  }
  if (now_ms - first_signal_ms.load() < kSameSignalMs) return;
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void* allocate(void* host, void* block, size_t old_size, size_t new_size) {
  return static_cast<Host*>(host)->limits().allocate(block, old_size, new_size);
}

bool is_session(const HostOptions& options) {
  return options.mode == "serve" || options.mode == "repl";
}

bool is_root(const HostOptions& options) {
  return options.processes == nullptr || options.processes->is_root();
}

// Returns whether progress is shown: by the commands run and calibrate, in a job only on rank 0.
bool shows_progress(const HostOptions& options) {
  return is_root(options) && (options.mode == "run" || options.mode == "calibrate");
}

Files::Options file_options(const HostOptions& options) {
  Files::Options files;
  if (!options.recipe.empty()) {
    files.recipe_dir = std::filesystem::absolute(options.recipe).parent_path();
  }
  files.out_dir = options.out_dir;
  files.library = options.scripts_dir;
  files.roots = {options.scripts_dir};
  for (const std::string& folder : options.readable) {
    files.roots.push_back(std::filesystem::canonical(folder));
  }
  for (const auto& [key, value] : options.set) {
    std::istringstream values(value);
    for (std::string one; std::getline(values, one, ',');) {
      if (one.find('/') != std::string::npos) files.named.emplace_back(one);
    }
  }
  for (const std::string& folder : options.folders) files.named.emplace_back(folder);
  if (is_session(options)) files.roots.push_back(std::filesystem::current_path());
  files.trust = options.trust;
  if (!options.trust) files.most_bytes = options.memory_cap / 2;  // as Limits allows
  files.lock = options.mode == "run" && is_root(options);
  return files;
}

bool is_in(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

// (coroutine) -> its results. An error goes through the lua_pcall() of guarded(): LuaJIT takes its
// profiler to be busy after an error of the profiler's callback (Limits) until one catches it.
int resume(lua_State* L) {
  lua_State* const coroutine = lua_tothread(L, 1);
  Failure failure;
  if (!try_resume(coroutine, 0, failure)) throw LuaError(failure);
  const int results = lua_gettop(coroutine);
  luaL_checkstack(L, results, "too many values");
  lua_xmove(coroutine, L, results);
  return results;
}

}  // namespace

std::string recipe_text(const HostOptions& options) {
  if (options.recipe_text) return *options.recipe_text;
  return read_file(options.recipe, Links::kFollow, size_t{16} << 20);
}

void exit_now(const std::string& message, int status) {
  if (ftrylockfile(stdout) == 0) {  // another thread may hold it, and never give it back
    fflush_unlocked(stdout);
    funlockfile(stdout);
  }
  const std::string line = "moebench: " + printable(message) + "\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
  std::_Exit(status);
}

bool must_end() noexcept {
  return end_asked;
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

void install_stop_handlers() {
  signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: the write fails, as on a full disk
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (number != SIGHUP || before.sa_handler != SIG_IGN) signal(number, on_stop_signal);
  }
}

Host::Host(HostOptions options) : Host(std::move(options), std::make_shared<Watchdog>()) {
  limits_.start(state());
  in_session = is_session(options_);
  watchdog_->poll_with([this] {
    if (must_stop() && stops_ == Limits::Where::kRecipe) end_if_stuck();
    poll();
  });
}

Host::~Host() {
  loading_deadline_.reset();
  // The watchdog may exist a little longer than this host, since the hosts of ranks, which objects
  // in Lua keep alive, share it.
  if (limits_.started()) watchdog_->poll_with(nullptr);
}

Host::Host(HostOptions options, std::shared_ptr<Watchdog> watchdog)
    : options_(std::move(options)),
      files_(file_options(options_)),
      limits_(options_.trust ? 0 : options_.memory_cap, options_.mode == "policies"),
      progress_(shows_progress(options_)),
      state_(lua_newstate(allocate, this), StateDeleter{&limits_}),
      watchdog_(std::move(watchdog)) {
  if (state_ == nullptr) throw UserError(limits_.out_of_memory().message);
  open_library();
}

void Host::StateDeleter::operator()(lua_State* L) const {
  limits->finish();
  lua_close(L);
}

bool Host::must_stop() const {
  if (is_session(options_) && !guards_) return false;
  return stop_requested() && (options_.processes == nullptr || options_.processes->is_root());
}

void Host::check_stop() {
  if (!must_stop()) return;
  poll();
  limits_.watch_lines();
}

void Host::fail_job() const {
  if (options_.processes != nullptr) options_.processes->fail("rank 0: interrupted");
}

Host::EngineCall::EngineCall(Host& host) : host_(host) {
  if (host.must_stop()) {
    host.fail_job();
    throw Interrupted();
  }
  host_.note_effect();
  ++host_.engine_calls_;
}

Host& Host::of(lua_State* L) {
  void* host = nullptr;
  lua_getallocf(L, &host);
  return *static_cast<Host*>(host);
}

void Host::open_library() {
  const std::string library = options_.scripts_dir + "/moe/init.lua";
  if (access(library.c_str(), R_OK) != 0) {
    throw run_error(
        "the Lua library of this program is missing or cannot be read; expected file: {}", library);
  }
  lua_State* L = state();
  lua_pushcfunction(L, [](lua_State* L) {
    open_libraries(L);
    return 0;
  });
  call(L, 0, 0);
  lua_pushcfunction(L, core_function<open_core>);
  call(L, 0, 0);
}

void Host::begin_loading() {
  loading_ = true;
  if (options_.trust) return;
  const double seconds = options_.load_deadline_s;
  loading_deadline_ = std::make_unique<Deadline>(
      watchdog_,
      [this, seconds] {
        limits_.stop("user",
                     fmt::format("the recipe is still being loaded after {} s of computing; is "
                                 "there an endless loop?",
                                 seconds),
                     Limits::Where::kAnywhere);
      },
      [this, seconds] {
        exit_now(fmt::format("{} was still being loaded after {} s of computing and did not stop, "
                             "so this process was ended",
                             options_.recipe.empty() ? "a text" : options_.recipe, seconds),
                 1);
      },
      Deadline::Clock::kOfThread);  // a loaded host does not end what a recipe's author cannot help
  loading_deadline_->arm(seconds);
}

void Host::load_on() {
  if (loading_deadline_) loading_deadline_->arm(options_.load_deadline_s);
}

void Host::end_loading() {
  loading_ = false;
  loading_deadline_.reset();
}

void Host::poll() {
  pollfd answers = {options_.answers, 0, 0};
  if (options_.answers >= 0 && ::poll(&answers, 1, 0) > 0) {  // its reader is gone
    end_asked = true;
    request_stop();
  }
  if (must_stop()) limits_.stop("run", Interrupted().what(), stops_);
  progress_.draw();
}

/// Ends a process that must stop and whose recipe has been computing in one C function of Lua, as
/// string.find with a hard pattern, for kMostStuckNs of CPU time. The engine's calls stop by
/// themselves.
void Host::end_if_stuck() {
  constexpr int64_t kMostStuckNs = 1'500'000'000;
  const int64_t now = limits_.cpu_ns();
  if (!limits_.stands_still() || engine_calls_ > 0 || still_since_ns_ == 0) {
    still_since_ns_ = now;
  } else if (now - still_since_ns_ > kMostStuckNs) {
    exit_now("interrupted; a Lua function did not stop, so this process was ended", 3);
  }
}

// _main runs as a coroutine, because the stack of a failed coroutine is kept. So the position can
// be found even for errors that skip message handlers (out of memory, stack overflow).
std::optional<Failure> Host::main(const std::string& argument) {
  lua_State* L = state();
  Failure failure;
  begin_loading();
  lua_pushcfunction(L, core_function<prepare_main>);
  push_text(L, argument);
  bool good = try_call(L, 1, 3, failure);
  if (good) {
    lua_State* coroutine = lua_newthread(L);
    lua_insert(L, 1);
    lua_xmove(L, coroutine, 3);
    main_ = coroutine;
    good = try_resume(coroutine, 2, failure);
    main_ = nullptr;
    lua_settop(L, 0);
  }
  end_loading();
  limits_.take_stop();
  if (good) return std::nullopt;
  return failure;
}

void Host::push_session_text(lua_State* L, SessionText text) {
  const std::string expression =
      "return (" + text.text + "\n)";  // not a tail call, so it has a line
  try {
    push_chunk(L, expression, text.name);
    text.text = expression;
  } catch (const LuaError&) {
    push_chunk(L, text.text, text.name);
  }
  options_.texts.push_back(std::move(text));
  begin_loading();
}

bool Host::guarded(lua_State* L, Limits::Where where, Failure& failure) {
  const int at = lua_gettop(L);
  lua_State* const coroutine = lua_newthread(L);
  lua_pushcfunction(L, core_function<resume>);
  lua_insert(L, -2);
  lua_pushvalue(L, at);
  lua_xmove(L, coroutine, 1);
  lua_remove(L, at);
  lua_State* const before = std::exchange(main_, coroutine);
  stops_ = where;
  guards_ = true;
  const bool good = try_call(L, 1, LUA_MULTRET, failure);
  guards_ = false;
  main_ = before;
  const bool loading = loading_;
  end_loading();
  // Ranks could not evaluate it either.
  if (go_on() && loading && !options_.texts.empty()) options_.texts.pop_back();
  return good;
}

bool Host::go_on() {
  if (stop_requested()) {
    watchdog_->pause();  // it asks for a stop of Lua code as long as it sees the request
    withdraw_stop();
    still_since_ns_ = 0;
    watchdog_->resume();
  }
  return limits_.take_stop();
}

bool Host::print(std::string_view text) const {
  if (muted_) return true;
  if (options_.answers < 0) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }
  const std::string output =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return write_all(options_.answers, fmt::format("{{\"id\":{},\"output\":{}}}\n", id_, output));
}

void Host::evaluate_policies() {
  lua_State* L = state();
  files_.count_reads(false);
  begin_loading();
  lua_getglobal(L, "require");
  lua_pushliteral(L, "moe");
  call(L, 1, 0);
  Failure failure;
  bool good = true;
  // A text of a session that needs a result of a run fails here, which concerns no policy before
  // it.
  for (const SessionText& text : options_.texts) {
    load_on();
    push_chunk(L, text.text, text.name);
    try_call(L, 0, 0, failure);
  }
  if (options_.texts.empty()) {
    push_recipe();
    good = try_call(L, 0, 0, failure);
  }
  files_.count_reads(true);
  end_loading();
  if (!good && failure.kind != "stop") throw UserError(failure.message);
}

HostOptions Host::rank_options() const {
  HostOptions options = options_;
  options.mode = "policies";
  options.out_dir.clear();
  return options;
}

void Host::push_policy(const char* kind, const std::string& name, const char* module) {
  lua_State* L = state();
  lua_getglobal(L, "require");
  lua_pushstring(L, module);
  call(L, 1, 1);
  lua_getfield(L, -1, "_policy");
  lua_pushstring(L, kind);
  lua_pushstring(L, name.c_str());
  call(L, 2, 1);
  if (lua_istable(L, -1)) return;
  throw UserError(
      "is not defined where a rank evaluates the recipe; define it at the top of the recipe, "
      "before anything runs");
}

uint32_t Host::add_session(GraphSession* session) {
  sessions_[++last_session_] = session;
  return last_session_;
}

GraphSession* Host::session(uint32_t serial) const {
  const auto found = sessions_.find(serial);
  return found == sessions_.end() ? nullptr : found->second;
}

std::optional<Position> Host::recipe_position(lua_State* L) const {
  // A coroutine may have no frame of the recipe, since a tail call leaves none. Then the current
  // line of the recipe's main coroutine is taken.
  for (lua_State* state : {L, main_, this->state()}) {
    lua_Debug frame;
    for (int level = 0; state != nullptr && lua_getstack(state, level, &frame) != 0; ++level) {
      if (lua_getinfo(state, "Sl", &frame) == 0 || frame.currentline <= 0) continue;
      const std::string_view source = frame.source;
      if (source.empty() || source[0] != '@') continue;
      if (is_in(source.substr(1), options_.scripts_dir)) continue;
      return Position{std::string(source.substr(1)), frame.currentline};
    }
  }
  return std::nullopt;
}

void Host::push_recipe() {
  push_chunk(state(), recipe_text(options_), options_.recipe);
}

}  // namespace moe::lua
