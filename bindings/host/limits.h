// Limits of one lua_State: a cap on its memory, and stop(), which ends running Lua code even in
// endless loops, from any thread. stop() sends SIGPROF to the thread that runs the state, the
// handler of LuaJIT's profiler sets a flag that running code tests, and the profiler's callback
// raises an error at the running line. LuaJIT can profile only one state of a process at a time;
// that is the recipe's. A rank's state has no such stop: if its code passes a deadline
// (watchdog.h), the process ends.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <lua.hpp>
#include <mutex>
#include <string>

#include "bindings/host/protected.h"

namespace moe::lua {

class Limits {
 public:
  /// memory_cap: in bytes; 0 means no cap. of_rank: the state is a rank's; all such states of the
  /// process together may use half of the cap.
  Limits(size_t memory_cap, bool of_rank) : memory_cap_(memory_cap), of_rank_(of_rank) {}
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  /// The state's lua_Alloc. Above half the cap it calls stop(), so that the error names the running
  /// line; above the cap an allocation fails ("not enough memory", without a line).
  void* allocate(void* block, size_t old_size, size_t new_size);
  size_t memory_cap() const { return memory_cap_; }
  /// Checks how many bytes the process has allocated since start(), for Lua and for the plans,
  /// routing and traces that the recipe keeps; throws UserError above half the cap. If the bytes
  /// have grown much, it collects garbage first, since Lua's collector only counts the small
  /// handles of these objects. Does nothing in a state without start(): many such states share one
  /// process.
  void count_kept(lua_State* L);

  /// Makes stop() work for this state, whose Lua code runs on this thread.
  /// Requires: no other state of this process is between start() and finish().
  void start(lua_State* L);
  void finish();
  bool started() const { return state_ != nullptr; }

  /// Makes the running Lua code end with an error of this kind; the message begins with the
  /// position of the recipe's innermost frame. May be called from any thread. The request is in
  /// force until take_stop(), so a pcall of the recipe cannot stop it. With kRecipe the error is
  /// raised only at lines of the recipe and its modules, not in the library, which may save
  /// results.
  enum class Where : uint8_t { kAnywhere, kRecipe };
  void stop(const std::string& kind, const std::string& message, Where where);
  /// If a stop is in force, makes sure that the very next line of the recipe raises it. Must be
  /// called on the thread of the state, and not in a hook.
  void watch_lines();
  /// While a Hold exists, a stop with kRecipe is not raised. Used on the thread of the state.
  class Hold {
   public:
    explicit Hold(Limits& limits);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Limits& limits_;
  };
  /// Ends the request of the last stop(), so that Lua code can run again; returns whether there was
  /// one.
  bool take_stop();
  /// Whether the thread of the state neither ran Lua code since the last call, which must be at
  /// least one stop() ago, nor is inside a Hold: it is in a C function, as string.find.
  bool stands_still();
  /// The CPU time that the thread of the state has used; 0 without start().
  int64_t cpu_ns();
  /// Returns the error of a recipe that uses more memory than it may.
  Failure out_of_memory() const;

 private:
  static void on_profile(void* self, lua_State* L, int samples, int vm_state);
  static void on_instruction(lua_State* L, lua_Debug* where);
  void raise(lua_State* L);
  bool due(lua_State* L) const;
  bool count_together(size_t used);

  const size_t memory_cap_;
  const bool of_rank_;
  size_t used_ = 0, counted_ = 0;    // counted_: the part of used_ that all ranks count together
  bool system_has_no_more_ = false;  // an allocation below the cap failed
  size_t at_start_ = 0;              // bytes that the process had allocated at start()
  size_t collect_at_ = 0;            // bytes in use at which count_kept() collects
  lua_State* state_ = nullptr;       // set between start() and finish()
  pthread_t thread_{};
  std::mutex mutex_;  // guards the members below, and resetting state_
  Failure request_;   // the requested error; kind "" means that there is none
  Where where_ = Where::kAnywhere;
  bool raised_ = false;  // whether the message already begins with the position
  int holds_ = 0;
  bool ran_ = false;  // whether Lua code ran since the last stands_still()
};

}  // namespace moe::lua
