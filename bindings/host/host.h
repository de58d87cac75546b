// Host: one lua_State with its libraries, its limits and the `core` functions, and the recipe that
// it evaluates. The first host of a process runs the recipe; ranks that need a Lua gate make hosts
// of their own (mode "policies"), each used by one thread at a time.
#pragma once

#include <lua.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bindings/host/files.h"
#include "bindings/host/limits.h"
#include "bindings/host/progress.h"
#include "bindings/host/protected.h"
#include "bindings/host/watchdog.h"

namespace moe {
class Processes;
}

namespace moe::lua {

class GraphSession;

struct HostOptions {
  std::string scripts_dir;   // holds moe/init.lua
  std::string mode = "run";  // | "check" | "list" | "doc" | "calibrate" | "report" | "policies"
  std::string recipe;        // as the user typed it; "" for list, calibrate and report
  std::vector<std::string> folders;  // of results, for report
  std::string out_dir;               // "": nothing is written
  std::map<std::string, std::string> set;
  std::string executor;  // "": as the recipe says
  // Of calibrate.
  std::string device = "cpu";
  std::string precision = "f32";     // of activations: f32, or bf16 on a GPU
  std::vector<int64_t> hidden;       // sizes that are measured; empty: the usual ones
  std::optional<int64_t> max_bytes;  // of a rank in a collective
  std::optional<int64_t> ranks, seed;
  bool trust = false;
  std::string cache;               // the profile cache
  Processes* processes = nullptr;  // the job that this process takes part in; null: none
  double load_deadline_s = 10;
  double policy_deadline_s = 5;
  size_t memory_cap = size_t{1} << 30;
};

/// A line of the recipe, the path as the user typed it.
struct Position {
  std::string source;
  int line;
};

class Host {
 public:
  /// The host that runs a recipe. Requires: no other such host in this process at the time.
  explicit Host(HostOptions options);
  /// A rank's host for the policies of the same recipe, watched by the first one's watchdog.
  Host(HostOptions options, std::shared_ptr<Watchdog> watchdog);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  static Host& of(lua_State* L);
  lua_State* state() const { return state_.get(); }
  const HostOptions& options() const { return options_; }
  const Files& files() const { return files_; }
  Limits& limits() { return limits_; }
  Progress& progress() { return progress_; }
  const std::shared_ptr<Watchdog>& watchdog() const { return watchdog_; }

  /// Runs the library's _main: the recipe in mode "run" and "check", or a list (`argument`: its
  /// kind, or ""). Throws nothing; a failure's traceback is kept where it has no kind.
  std::optional<Failure> main(const std::string& argument = "");
  /// Evaluates the recipe as far as its first call that would run something.
  /// Throws UserError when evaluation fails.
  void evaluate_policies();
  /// The recipe does something that its user sees: it prints, writes, plans or runs.
  void note_effect() { had_effect_ = true; }
  bool had_effect() const { return had_effect_; }
  /// From here on the recipe may take its time (planning and runs have begun).
  void end_loading();
  /// Whether a request to stop counts here: among processes rank 0 alone ends for all, where all
  /// see it.
  bool must_stop() const;
  /// Where must_stop(), the recipe's next line fails.
  void check_stop();
  /// Fails the job before this process ends by itself: the calls of the other processes then fail.
  void fail_job() const;
  /// Around long engine calls. Throws Interrupted on entry where must_stop(); a request that comes
  /// during the call is the engine's business, and ends the recipe at its next line.
  class EngineCall {
   public:
    explicit EngineCall(Host& host);
    ~EngineCall() { host_.check_stop(); }
    EngineCall(const EngineCall&) = delete;
    EngineCall& operator=(const EngineCall&) = delete;

   private:
    Host& host_;
  };

  /// Calls of graph policies that are under way, by the number that their handles carry.
  uint32_t add_session(GraphSession* session);
  void remove_session(uint32_t serial) { sessions_.erase(serial); }
  GraphSession* session(uint32_t serial) const;

  /// The innermost frame outside the library; none when only the library runs.
  std::optional<Position> recipe_position(lua_State* L) const;
  /// Pushes the recipe's chunk. Throws UserError for a file that cannot be read or parsed.
  void push_recipe();
  /// What the recipe's and its modules' texts loaded so far hash to: names a policy's code.
  uint64_t code_hash() const { return code_hash_; }
  void add_code(const std::string& text) { code_hash_ = text_hash(text, code_hash_); }

 private:
  struct StateDeleter {
    Limits* limits;
    void operator()(lua_State* L) const;
  };
  void open_library();
  void begin_loading();
  void poll();

  HostOptions options_;
  Files files_;
  Limits limits_;
  Progress progress_;
  uint64_t code_hash_ = text_hash("");
  std::map<uint32_t, GraphSession*> sessions_;
  uint32_t last_session_ = 0;
  bool had_effect_ = false;
  std::unique_ptr<lua_State, StateDeleter> state_;
  lua_State* main_ = nullptr;  // the coroutine that runs _main, while it does
  std::shared_ptr<Watchdog> watchdog_;
  std::unique_ptr<Deadline> loading_deadline_;
};

/// A function of the core whose result is what a script is for.
template <lua_CFunction function>
int with_effect(lua_State* L) {
  Host::of(L).note_effect();
  return function(L);
}

/// Prints the message and ends the process at once: for a deadline that passed in code which
/// cannot be stopped otherwise. Results that are complete are on disk by then.
[[noreturn]] void exit_now(const std::string& message, int status);

/// SIGINT, SIGTERM and SIGHUP (unless it is ignored, as nohup does). The first one requests to stop
/// (base/stop.h): the present run stops after its step, the recipe at its line. The second one ends
/// the process at once.
void install_stop_handlers();

}  // namespace moe::lua
