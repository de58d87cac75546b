#include "bindings/host/limits.h"

#include <luajit.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#ifdef MOE_JEMALLOC
#include <jemalloc/jemalloc.h>
#else
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "bindings/host/host.h"
#include "bindings/host/userdata.h"

namespace moe::lua {
namespace {

constexpr size_t kLittle = size_t{16} << 20;  // growth for which garbage is not collected

// LuaJIT keeps its profiler's state in a static variable, so only one Limits at a time can use it.
std::atomic<bool> profiler_taken{false};

// Returns the bytes that the allocator has given out: to this thread, on which Lua runs, or with
// glibc's malloc (which takes milliseconds to count them) to all threads.
size_t allocated_bytes() {
#ifdef MOE_JEMALLOC
  uint64_t given = 0, returned = 0;
  size_t size = sizeof given;
  mallctl("thread.allocated", &given, &size, nullptr, 0);
  mallctl("thread.deallocated", &returned, &size, nullptr, 0);
  return std::max(given, returned) - returned;
#else
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

// Returns whether the running function belongs to the recipe or its modules.
bool runs_recipe(lua_State* L) {
  lua_Debug frame;
  if (lua_getstack(L, 0, &frame) == 0 || lua_getinfo(L, "S", &frame) == 0) return false;
  const std::string library = "@" + Host::of(L).options().scripts_dir + "/";
  return *frame.what != 'C' && !std::string_view(frame.source).starts_with(library);
}

}  // namespace

// Returns false if the ranks' states would use too much together. Counts in steps of 64 KiB, since
// many threads allocate at the same time.
bool Limits::count_together(size_t used) {
  constexpr size_t kStep = size_t{64} << 10;
  static std::atomic<size_t> together{0};
  const size_t steps = (used + kStep - 1) / kStep * kStep, more = steps - counted_;
  if (!of_rank_ || more == 0) return true;
  if ((together += more) > memory_cap_ / 2 && steps > counted_ && memory_cap_ != 0) {
    together -= more;
    return false;
  }
  counted_ = steps;
  return true;
}

void* Limits::allocate(void* block, size_t old_size, size_t new_size) {
  if (new_size == 0) {
    used_ -= old_size;
    count_together(used_);
    std::free(block);
    return nullptr;
  }
  const size_t after = used_ - old_size + new_size;
  const bool grows = new_size > old_size;
  if (grows && memory_cap_ != 0 && after > memory_cap_) return nullptr;
  if (!count_together(after)) return nullptr;
  void* result = std::realloc(block, new_size);
  if (result == nullptr) {
    system_has_no_more_ = true;
    return nullptr;
  }
  used_ = after;
  if (grows && memory_cap_ != 0 && after > memory_cap_ / 2) {
    stop("user", out_of_memory().message, Where::kAnywhere);
  }
  return result;
}

Failure Limits::out_of_memory() const {
  if (system_has_no_more_) {
    return {"run",
            "the machine gives Lua no more memory; the recipe, or a limit of the address space "
            "(ulimit -v), leaves too little",
            ""};
  }
  return {"user",
          fmt::format("{} more than {} MiB of memory, the most that is allowed without --trust",
                      of_rank_ ? "the Lua states of the ranks use together" : "the recipe uses",
                      memory_cap_ >> 21),
          ""};
}

void Limits::count_kept(lua_State* L) {
  if (memory_cap_ == 0 || !started()) return;
  const auto in_use = [&] { return std::max(allocated_bytes(), at_start_) - at_start_; };
  if (in_use() < collect_at_) return;
  lua_gc(L, LUA_GCCOLLECT, 0);
  const size_t kept = in_use(), most = memory_cap_ / 2;
  if (kept > most) throw UserError(out_of_memory().message);
  collect_at_ = std::min(2 * kept + kLittle, most);
}

void count_kept(lua_State* L) {
  Host::of(L).limits().count_kept(L);
}

void Limits::start(lua_State* L) {
  MOE_CHECK(
      !profiler_taken.exchange(true),
      "Limits::start: another Lua state of this process is still between start() and finish(); "
      "LuaJIT's profiler can serve only one state at a time");
  // A SIGPROF that arrives late must not end the process, which is its default action.
  signal(SIGPROF, SIG_IGN);
  // The profiler's own timer is switched off again below, so its interval does not matter.
  luaJIT_profile_start(L, "li100000000", &Limits::on_profile, this);
  const itimerval never{};
  setitimer(ITIMER_PROF, &never, nullptr);
  thread_ = pthread_self();
  state_ = L;
  at_start_ = allocated_bytes();
  collect_at_ = std::min(kLittle, memory_cap_ / 2);
}

void Limits::finish() {
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr) return;
  luaJIT_profile_stop(state_);
  state_ = nullptr;
  profiler_taken = false;
}

void Limits::stop(const std::string& kind, const std::string& message, Where where) {
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr) return;
  if (request_.kind.empty() || where < where_) {
    request_ = {kind, message, ""};
    where_ = where;
    raised_ = false;
  }
  pthread_kill(thread_, SIGPROF);
}

bool Limits::take_stop() {
  const std::lock_guard lock(mutex_);
  const bool was = !request_.kind.empty();
  request_ = {};
  if (state_ != nullptr) lua_sethook(state_, nullptr, 0, 0);
  return was;
}

// This is not done in the profiler's callback: LuaJIT resets hooks that are set there, unless the
// callback raises an error.
void Limits::watch_lines() {
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr || request_.kind.empty()) return;
  lua_sethook(state_, &Limits::on_instruction, LUA_MASKLINE, 1);
}

Limits::Hold::Hold(Limits& limits) : limits_(limits) {
  const std::lock_guard lock(limits_.mutex_);
  ++limits_.holds_;
}

Limits::Hold::~Hold() {
  const std::lock_guard lock(limits_.mutex_);
  --limits_.holds_;
}

// Returns whether the stop may be raised at the current line. Requires: the caller holds mutex_.
bool Limits::due(lua_State* L) const {
  return where_ == Where::kAnywhere || (holds_ == 0 && runs_recipe(L));
}

void Limits::raise(lua_State* L) {
  Failure failure;
  bool anywhere = false;
  {
    const std::lock_guard lock(mutex_);
    if (request_.kind.empty()) return;
    anywhere = where_ == Where::kAnywhere;
    if (due(L)) {
      if (!raised_) request_.message = recipe_position(L) + request_.message;
      raised_ = true;
      failure = request_;
    }
  }
  if (failure.kind.empty()) return;
  // From here on every instruction, or every line of the recipe, raises the error again, so that
  // catching it does not help.
  lua_sethook(L, &Limits::on_instruction, anywhere ? LUA_MASKCOUNT : LUA_MASKLINE, 1);
  if (!anywhere) Host::of(L).fail_job();
  push_failure(L, failure);
  lua_error(L);
}

bool Limits::stands_still() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(ran_, false) && holds_ == 0;
}

int64_t Limits::cpu_ns() {
  const std::lock_guard lock(mutex_);
  clockid_t clock{};
  timespec now{};
  if (state_ == nullptr || pthread_getcpuclockid(thread_, &clock) != 0) return 0;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Limits::on_profile(void* self, lua_State* L, int, int) {
  auto* const limits = static_cast<Limits*>(self);
  {
    const std::lock_guard lock(limits->mutex_);
    limits->ran_ = true;
  }
  limits->raise(L);
}

void Limits::on_instruction(lua_State* L, lua_Debug*) {
  Host::of(L).limits().raise(L);
}

}  // namespace moe::lua
