// Fibers: ucontext makes them, one stack per thread of the block, once for all blocks; _setjmp and
// _longjmp switch them, which unlike swapcontext costs no system call.
#include <cuda_runtime.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/rng.h"

extern char __start_moe_shared_memory[], __stop_moe_shared_memory[];

namespace emulation {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr unsigned kLanes = 32, kMaxThreads = 1024;
constexpr size_t kSharedUnasked = 48 << 10;

/// Threads that have come to one meeting, and where it is.
struct Meeting {
  unsigned arrived = 0, line = 0;
  const char* file = nullptr;
};

struct Warp {
  // Two generations: a lane may be one meeting ahead of one that has not yet read the last.
  std::array<Meeting, 2> meeting;
  std::array<std::array<uint64_t, kLanes>, 2> words;
};

enum class State { kReady, kWaiting, kDone };

struct Fiber {
  std::unique_ptr<char[]> stack;
  jmp_buf here;
  State state = State::kReady;
  unsigned warp_meetings = 0;
};

struct Block {
  std::vector<Fiber> fibers{kMaxThreads};
  std::vector<Warp> warps;
  Meeting barrier;
  jmp_buf scheduler;
  unsigned current = 0, size = 0;
  const std::function<void()>* body = nullptr;
  std::string error;
};

Block block;
uint64_t order_seed = 0;
uint64_t launches = 0;
uint64_t clock_ns = 0;
std::function<void(uint64_t)> clock_watcher;
std::map<const void*, size_t> allowed;

void yield_as(State state) {
  Fiber& fiber = block.fibers[block.current];
  fiber.state = state;
  if (_setjmp(fiber.here) == 0) _longjmp(block.scheduler, 1);
}

/// A fiber takes one thread of every block in turn.
void fiber_main() {
  while (true) {
    (*block.body)();
    yield_as(State::kDone);
  }
}

void resume(Fiber& fiber) {
  if (_setjmp(block.scheduler) != 0) return;
  if (fiber.stack) _longjmp(fiber.here, 1);
  fiber.stack.reset(new char[kStackBytes]);
  ucontext_t context;
  getcontext(&context);
  context.uc_stack = {fiber.stack.get(), 0, kStackBytes};
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

/// Fibers in the middle of a body are given up.
[[noreturn]] void fail(const std::string& message) {
  for (Fiber& fiber : block.fibers) fiber.stack.reset();
  throw std::runtime_error(message);
}

/// Notes an arrival. Threads first .. first + count - 1 must come; the last one wakes the others.
void arrive(Meeting& meeting, unsigned first, unsigned count, const char* file, int line) {
  const auto here = static_cast<unsigned>(line);
  if (meeting.arrived == 0) meeting = {0, here, file};
  if (meeting.line != here || std::strcmp(meeting.file, file) != 0)
    block.error = "threads meet at " + std::string(file) + ":" + std::to_string(line) + " and at " +
                  meeting.file + ":" + std::to_string(meeting.line);
  if (++meeting.arrived < count) return yield_as(State::kWaiting);
  meeting.arrived = 0;
  for (unsigned i = first; i < first + count; ++i) block.fibers[i].state = State::kReady;
}

std::vector<unsigned> order(unsigned n, uint64_t stream) {
  std::vector<unsigned> all(n);
  std::iota(all.begin(), all.end(), 0u);
  if (order_seed == 1) std::reverse(all.begin(), all.end());
  if (order_seed < 2) return all;
  moe::Rng rng(order_seed * 0x9e3779b97f4a7c15ull + stream);
  for (unsigned i = n; i > 1; --i) std::swap(all[i - 1], all[rng.below(i)]);
  return all;
}

std::string where_they_wait() {
  const Meeting* meeting = &block.barrier;
  for (const Warp& warp : block.warps)
    for (const Meeting& m : warp.meeting)
      if (m.arrived > 0) meeting = &m;
  return std::to_string(meeting->arrived) + " threads wait at " + meeting->file + ":" +
         std::to_string(meeting->line) + " for threads that have ended or wait elsewhere";
}

void start(unsigned threads, const std::function<void()>& body) {
  block.size = threads;
  block.body = &body;
  block.barrier = {};
  block.warps.assign(threads / kLanes, {});
  std::memset(__start_moe_shared_memory, 0xff,
              static_cast<size_t>(__stop_moe_shared_memory - __start_moe_shared_memory));
  for (unsigned i = 0; i < threads; ++i) {
    block.fibers[i].state = State::kReady;
    block.fibers[i].warp_meetings = 0;
  }
}

void run_block(const std::vector<unsigned>& threads) {
  for (unsigned done = 0; done < block.size;) {
    bool moved = false;
    for (const unsigned i : threads) {
      Fiber& fiber = block.fibers[i];
      if (fiber.state != State::kReady) continue;
      moved = true;
      block.current = i;
      threadIdx = dim3(i, 0, 0);
      resume(fiber);
      done += fiber.state == State::kDone;
      if (!block.error.empty()) fail(block.error);
    }
    if (!moved) fail(where_they_wait());
  }
}

}  // namespace

void set_order(uint64_t seed) {
  order_seed = seed;
}

void run(dim3 grid, dim3 threads, const std::function<void()>& body, size_t dynamic_bytes) {
  if (threads.x == 0 || threads.x > kMaxThreads || threads.x % kLanes != 0 || grid.x == 0)
    throw std::runtime_error("a launch wants whole warps, up to 1024 threads, and a block");
  static std::mutex mutex;  // ranks may be threads
  const std::lock_guard lock(mutex);
  gridDim = grid;
  blockDim = threads;
  block.error.clear();
  std::vector<std::max_align_t> dynamic(dynamic_bytes / sizeof(std::max_align_t) + 1);
  dynamic_shared = reinterpret_cast<char*>(dynamic.data());
  const uint64_t stream = ++launches << 32;
  for (const unsigned b : order(grid.x, stream)) {
    blockIdx = dim3(b, 0, 0);
    start(threads.x, body);
    std::memset(dynamic_shared, 0xff, dynamic_bytes);
    run_block(order(threads.x, stream + b + 1));
  }
}

uint64_t num_launches() {
  return launches;
}

void meet_block(const char* file, int line) {
  arrive(block.barrier, 0, block.size, file, line);
}

const uint64_t* meet_warp(uint64_t word, const char* file, int line) {
  const unsigned thread = block.current, generation = block.fibers[thread].warp_meetings++ % 2;
  Warp& warp = block.warps[thread / kLanes];
  warp.words[generation][thread % kLanes] = word;
  arrive(warp.meeting[generation], thread / kLanes * kLanes, kLanes, file, line);
  return warp.words[generation].data();
}

uint64_t read_clock() {
  clock_ns += kTickNs;
  if (clock_watcher) clock_watcher(clock_ns);
  return clock_ns;
}

void pass_time(uint64_t ns) {
  clock_ns += ns;
}

void watch_clock(std::function<void(uint64_t)> watcher) {
  clock_watcher = std::move(watcher);
}

void allow_shared(const void* kernel, size_t bytes) {
  allowed[kernel] = bytes;
}

size_t allowed_shared(const void* kernel) {
  const auto found = allowed.find(kernel);
  return found == allowed.end() ? kSharedUnasked : found->second;
}

}  // namespace emulation
