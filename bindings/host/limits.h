// What one lua_State may use: memory, and time by a request to stop that also ends JIT-compiled
// loops. LuaJIT's count hooks do not fire inside compiled traces, but its profiler's flag is tested
// there at every line: stop() sends this thread SIGPROF, LuaJIT's handler raises the flag, and the
// callback turns it into an error at the line that runs. The profiler serves one state of a process
// at a time: that of the recipe. States of ranks have hard deadlines alone.
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
  /// memory_cap in bytes; 0: none.
  explicit Limits(size_t memory_cap) : memory_cap_(memory_cap) {}
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  /// lua_Alloc. Beyond half the cap the running line is asked to stop, so that the error can name
  /// it; beyond the cap an allocation fails ("not enough memory", without a line).
  void* allocate(void* block, size_t old_size, size_t new_size);
  size_t memory_cap() const { return memory_cap_; }
  /// Counts what the process has allocated since start(), for Lua and for the plans, routing and
  /// traces that the recipe keeps. Where that has grown much, unused values are collected first,
  /// because Lua's collector sees only their handles. Throws UserError beyond half the cap. In a
  /// state that is not started, nothing: many of them share one process.
  void count_kept(lua_State* L);

  /// Makes stop() work for this state, whose Lua code runs on this thread.
  /// Requires: no other state of this process is between start() and finish().
  void start(lua_State* L);
  void finish();
  bool started() const { return state_ != nullptr; }

  /// Asks the running Lua code to end with an error of this kind and message; the position of the
  /// recipe's innermost frame stands before it. From any thread. It stays in force until
  /// take_stop(), so that no pcall of the recipe holds it up. kRecipe: it is raised at lines of the
  /// recipe and its modules alone, never inside the library, which may be about to save results.
  enum class Where : uint8_t { kAnywhere, kRecipe };
  void stop(const std::string& kind, const std::string& message, Where where);
  /// Where a stop is in force, the next line of the recipe raises it, however soon that comes. On
  /// the thread of the state, not in a hook.
  void watch_lines();
  /// While it lives, a stop of kRecipe is not raised. On the thread of the state.
  class Hold {
   public:
    explicit Hold(Limits& limits);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Limits& limits_;
  };
  /// Ends the request to stop, and says whether there was one.
  bool take_stop();
  Failure out_of_memory() const;

 private:
  static void on_profile(void* self, lua_State* L, int samples, int vm_state);
  static void on_instruction(lua_State* L, lua_Debug* where);
  void raise(lua_State* L);
  bool due(lua_State* L) const;

  const size_t memory_cap_;
  size_t used_ = 0;
  size_t at_start_ = 0;         // bytes that the process had allocated
  size_t collect_at_ = 0;       // bytes in use at which count_kept() collects
  lua_State* state_ = nullptr;  // set while start()ed
  pthread_t thread_{};
  std::mutex mutex_;  // guards what follows, and the end of state_
  Failure request_;   // kind "": none
  Where where_ = Where::kAnywhere;
  bool raised_ = false;  // the position is in the message
  int holds_ = 0;
};

}  // namespace moe::lua
