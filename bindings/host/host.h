// Host: one lua_State with its libraries, its limits and the `core` functions, and the recipe that
// it evaluates. The first host of a process runs the recipe; ranks that need a Lua gate make hosts
// of their own (mode "policies"), each used by one thread at a time.
#pragma once

#include <atomic>
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

/// A text of Lua of a session (moebench serve, moebench repl), and what messages call it.
struct SessionText {
  std::string name, text;
};

struct HostOptions {
  std::string scripts_dir;   // the folder that contains moe/init.lua
  std::string mode = "run";  // | "check" | "list" | "doc" | "calibrate" | "report" | "export" |
                             // "merge" | "serve" | "repl" | "policies"
  std::string recipe;        // as the user typed it; "" for list, calibrate, report and export
  std::optional<std::string> recipe_text;  // of a recipe that is no file: standard input's
  std::vector<SessionText> texts;          // for serve and repl: the texts so far
  int answers = -1;                        // for serve: the descriptor that answers go to
  std::string history;                     // for repl: the file of the lines that were typed
  std::vector<std::string> folders;        // for report, export and merge: folders with results
  std::vector<std::string> caches;         // for merge: profile caches with simulations beside them
  std::string out_dir;                     // "" means that nothing is written
  std::map<std::string, std::string> set;
  std::map<std::string, std::string> where;  // for report and export: which runs are shown
  std::map<std::string, std::string> names;  // for export: names that pictures show others for
  std::map<std::string, std::string> drawn;  // for export: options of pictures
  std::string points;                        // "3/8": the third of eight parts; "": all points
  bool json = false;                         // results are printed as JSON, tables go to stderr
  bool temporary = false;                    // the output folder is removed at the end
  std::string executor;                      // "" means the recipe's executors
  std::string sensitivity;                   // a field of runs; "" means those of the recipe
  // The next four are for calibrate.
  std::string device = "cpu";
  std::string precision = "f32";     // of activations: f32, or bf16 on a GPU
  std::vector<int64_t> hidden;       // hidden sizes to measure; empty means the usual ones
  std::optional<int64_t> max_bytes;  // largest bytes per rank of a measured collective
  std::optional<int64_t> ranks, seed;
  std::optional<int64_t> workers;  // processes that simulate at the same time; default: the cores
  std::vector<std::string> readable;  // further folders whose files the recipe may read
  bool trust = false;
  std::string cache;               // file of the profile cache
  Processes* processes = nullptr;  // the job of which this process is a member; null if none
#ifdef __SANITIZE_THREAD__  // under it the engine's work in a call of Lua takes ten times as long
  static constexpr double kDeadlineFactor = 10;
#else
  static constexpr double kDeadlineFactor = 1;
#endif
  double load_deadline_s = 10 * kDeadlineFactor;  // of a core
  double policy_deadline_s = 5 * kDeadlineFactor;
  size_t memory_cap = size_t{1} << 30;
};

/// Returns the text of the recipe. Throws UserError if it cannot be read or has more than 16 MiB.
std::string recipe_text(const HostOptions& options);

/// A line of the recipe; source is the path as the user typed it.
struct Position {
  std::string source;
  int line;
};

class Host {
 public:
  /// Makes the host that runs a recipe. Requires: no other such host exists in this process.
  explicit Host(HostOptions options);
  /// Makes the host of a rank, which evaluates the same recipe for its policies. `watchdog` is that
  /// of the host that runs the recipe.
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

  /// Runs the library's _main: the recipe in modes "run" and "check", in the other modes the
  /// command. argument: the kind of "list" or topic of "doc" ("": none), or the name of the file
  /// that "calibrate" or "report" writes. Returns the failure, if any, and throws nothing. The
  /// failure has a traceback if it is a Lua error without a kind.
  std::optional<Failure> main(const std::string& argument = "");
  /// Compiles a text of the session, as an expression if it is one, adds it to those that ranks
  /// evaluate, and pushes the function on L. Throws LuaError for a syntax error.
  void push_session_text(lua_State* L, SessionText text);
  /// Calls the function on top of L in a coroutine of its own, replaces it by its results and
  /// returns true, or pops it, sets `failure` and returns false. A request to stop ends the call
  /// alone (go_on), at the lines that `where` says; a session acts on none at other times. The text
  /// that was pushed last has, like a recipe, a deadline until it plans or runs something; ranks
  /// leave it out if it is stopped before.
  bool guarded(lua_State* L, Limits::Where where, Failure& failure);
  /// Withdraws a request to stop and the stop of Lua code, so that the session goes on; returns
  /// whether Lua code was to stop.
  bool go_on();
  /// The id of the request that is worked on, as JSON, for print().
  void set_id(std::string id) { id_ = std::move(id); }
  /// Evaluates the recipe up to its first call that would plan or run something, so that its
  /// policies are defined. Throws UserError if it fails.
  void evaluate_policies();
  /// Options of the hosts in which ranks evaluate this host's recipe.
  HostOptions rank_options() const;
  /// Pushes the definition of a policy of this kind that the recipe, or `module` of the library,
  /// made in this state. Throws UserError if it made none.
  void push_policy(const char* kind, const std::string& name, const char* module = "moe");
  /// Called when the recipe does something that its user can see: it prints, writes, plans or runs.
  void note_effect() { had_effect_ = true; }
  bool had_effect() const { return had_effect_; }
  /// Whether nothing that the recipe prints is shown: this host is a rank's, which evaluates the
  /// recipe once more.
  bool is_silent() const { return options_.mode == "policies"; }
  /// Called when a line of text is printed; printed() is their number.
  void note_print() { ++printed_; }
  /// Writes text to standard output, or as output of the request that is worked on. Returns false
  /// if it cannot be written.
  bool print(std::string_view text) const;
  /// Called in a child process, whose prints nobody sees.
  void mute() { muted_ = true; }
  /// Keeps the text of results.json, the last one of this process, for results().
  void keep_results(const std::string& text) { results_ = text; }
  const std::string& results() const { return results_; }
  int64_t printed() const { return printed_; }
  /// Begins the deadline for loading the recipe again, if it is still being loaded: for each of the
  /// points of a sweep.
  void load_on();
  /// Ends the deadline for loading the recipe, since planning and runs, which may take long, begin.
  void end_loading();
  /// Returns whether this process must act on a request to stop. In a job of several processes only
  /// rank 0 does, so that all processes end at the same point.
  bool must_stop() const;
  /// If must_stop(), makes the recipe's next line raise an error.
  void check_stop();
  /// Marks the job as failed before this process ends by itself, so that calls of the other
  /// processes fail too instead of waiting.
  void fail_job() const;
  /// Guards a long engine call. The constructor throws Interrupted if must_stop(). A request to
  /// stop during the call is handled by the engine; afterwards the recipe ends at its next line.
  class EngineCall {
   public:
    explicit EngineCall(Host& host);
    ~EngineCall() {
      --host_.engine_calls_;
      host_.check_stop();
    }
    EngineCall(const EngineCall&) = delete;
    EngineCall& operator=(const EngineCall&) = delete;

   private:
    Host& host_;
  };

  /// The calls of pass and schedule policies to which handles in Lua refer: those that run, and
  /// ended ones whose picks may still be called. add_session returns the number by which the call's
  /// handles refer to it; session(number) returns null if the call does not exist any longer.
  uint32_t add_session(GraphSession* session);
  void remove_session(uint32_t serial) { sessions_.erase(serial); }
  GraphSession* session(uint32_t serial) const;

  /// Returns the line of the innermost frame outside the library; none if only the library runs.
  std::optional<Position> recipe_position(lua_State* L) const;
  /// Pushes the recipe's compiled chunk. Throws UserError if the file cannot be read or parsed.
  void push_recipe();
  /// Returns the hash of the texts of the recipe and its modules that were loaded so far; it
  /// identifies the code of a policy.
  uint64_t code_hash() const { return code_hash_; }
  /// Returns the value that is kept under `key`; if there is none, keeps what `make` returns. For
  /// values that take long to compute and that several plans need.
  template <class T, class Make>
  std::shared_ptr<T> kept(const std::string& key, const Make& make) {
    std::shared_ptr<void>& value = kept_[key];
    if (value == nullptr) value = std::make_shared<T>(make());
    return std::static_pointer_cast<T>(value);
  }
  void add_code(const std::string& text) { code_hash_ = text_hash(text, code_hash_); }

 private:
  struct StateDeleter {
    Limits* limits;
    void operator()(lua_State* L) const;
  };
  void open_library();
  void begin_loading();
  void poll();
  void end_if_stuck();

  HostOptions options_;
  Files files_;
  Limits limits_;
  Progress progress_;
  uint64_t code_hash_ = text_hash("");
  std::map<uint32_t, GraphSession*> sessions_;
  uint32_t last_session_ = 0;
  std::atomic<int> engine_calls_{0};  // EngineCalls that exist
  // Of end_if_stuck(): the CPU time of the recipe's thread when it last ran Lua code or the engine.
  int64_t still_since_ns_ = 0;
  // Of guarded(); the watchdog reads them: whether it runs a function, and where that is stopped.
  std::atomic<bool> guards_{false};
  std::atomic<Limits::Where> stops_{Limits::Where::kRecipe};
  bool had_effect_ = false, muted_ = false, loading_ = false;
  std::string results_, id_;
  int64_t printed_ = 0;
  std::unique_ptr<lua_State, StateDeleter> state_;
  lua_State* main_ = nullptr;  // the coroutine that runs _main, while it runs
  std::shared_ptr<Watchdog> watchdog_;
  std::unique_ptr<Deadline> loading_deadline_;
  std::map<std::string, std::shared_ptr<void>> kept_;
};

/// A function of the core that also calls note_effect(): for functions whose result alone can be
/// the purpose of a recipe.
template <lua_CFunction function>
int with_effect(lua_State* L) {
  Host::of(L).note_effect();
  return function(L);
}

/// Prints the message and ends the process at once. Used when a deadline has passed in code that
/// cannot be stopped otherwise. Complete results are on disk already.
[[noreturn]] void exit_now(const std::string& message, int status);

/// Installs handlers for SIGINT, SIGTERM and SIGHUP (the last one not if it is ignored, as under
/// nohup). The first signal requests a stop (base/stop.h): the current run stops after its step,
/// the recipe at its current line. The second signal ends the process at once.
/// In a session SIGINT only requests a stop, however often it comes.
void install_stop_handlers();
/// Whether a signal other than SIGINT has asked a session to end, or the reader of its answers is
/// gone.
bool must_end() noexcept;
/// Writes the whole text to a descriptor; returns whether it could.
bool write_all(int descriptor, std::string_view text);

}  // namespace moe::lua
