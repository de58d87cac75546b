#include "tests/exec/device/lazy_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/rng.h"
#include "tests/exec/device/lazy_kernels.h"

namespace moe::test {
namespace {

using kernels::Stream;

constexpr size_t kMemory = size_t{1} << 30;  // of addresses; pages come as they are touched
// Memory is opened and closed in whole huge pages, where the system has them. With hundreds of
// small ones per call, most of a run's time would go to that.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr double kTaskNs = 1000;

struct EventState {
  bool timed = false;
  uint64_t given = 0, done = 0;  // records
  double at_ns = 0;              // of the last record that is done
  bool in_recording = false;     // the last record is part of one
};

enum class Kind : uint8_t { kWork, kRecord, kWait, kTimer, kHold };

struct Task {
  Kind kind = Kind::kWork;
  std::function<void()> work;
  EventState* event = nullptr;
  uint64_t version = 0;             // of the event
  uint64_t number = 0;              // as given
  double duration_ns = 0;           // of a timer, from when it comes to the head of its stream
  kernels::LinkSignal signal = {};  // of a hold, until the host lets it end
};

struct StreamState {
  std::deque<Task> tasks;
  double until_ns = -1;  // of the timer at the head, once somebody has looked; -1: none
  uint64_t number = 0;
};

struct Recorded {
  StreamState* stream;
  Task task;
};
struct RecordingState {
  StreamState* origin = nullptr;
  std::vector<Recorded> tasks;
};
/// A replay under way: streams and events of its own, in place of those that were recorded.
struct Replay {
  std::map<StreamState*, std::unique_ptr<StreamState>> streams;
  std::map<EventState*, std::unique_ptr<EventState>> events;
  EventState begin, end, left;  // left: the stream it was given to has waited for its end
};

struct Lazy {
  LazyOrder order = LazyOrder::kAsGiven;
  Rng rng{1};
  bool hangs = false, running = false;
  std::string error, taken_error;
  LazyStats stats;
  uint64_t given = 0;
  double clock_ns = 0, slower_beside = 1;
  std::vector<StreamState*> streams;  // in the order in which they were made
  std::byte* memory = nullptr;
  size_t used = 0;
  int64_t allocations = 0;
  std::unique_ptr<RecordingState> recording;  // while one is being made
  std::set<StreamState*> joined;              // the streams of it
  std::vector<std::unique_ptr<Replay>> replays;
} lazy;

void keep_error(const std::string& message) {
  if (lazy.error.empty()) lazy.error = message;
}

void protect(int how) {
  const size_t pages = (lazy.used + kHugePage - 1) / kHugePage;
  if (pages > 0) mprotect(lazy.memory, pages * kHugePage, how);
}

StreamState& state(Stream s) {
  return *static_cast<StreamState*>(s);
}
EventState& state_of(kernels::Event e) {
  return *static_cast<EventState*>(e);
}

void give(StreamState& stream, Task task) {
  task.number = ++lazy.given;
  if (lazy.recording == nullptr) return stream.tasks.push_back(std::move(task));
  if (task.kind == Kind::kWait && task.event->in_recording) lazy.joined.insert(&stream);
  if (!lazy.joined.contains(&stream)) keep_error("lazy: a stream has not joined the recording");
  lazy.recording->tasks.push_back({&stream, std::move(task)});
}

}  // namespace

void give_work(Stream stream, std::function<void()> work) {
  give(state(stream), {.kind = Kind::kWork, .work = std::move(work)});
}
void check_memory(const void* p, int64_t bytes) {
  if (p == nullptr || bytes == 0) return;
  const int64_t begin = static_cast<const std::byte*>(p) - lazy.memory;
  if (begin < 0 || begin + bytes > static_cast<int64_t>(lazy.used)) {
    keep_error("lazy: a kernel was given memory that is not the device's");
  }
}
int64_t lazy_below(int64_t end) {
  return lazy.rng.below(end);
}

namespace {

void give_hold(Stream stream, const kernels::LinkSignal& signal) {
  if (signal.ends > 0) give(state(stream), {.kind = Kind::kHold, .signal = signal});
}
void signal_begin(const kernels::LinkSignal& signal) {
  if (signal.begins == 0 || std::atomic_ref(signal.flags->begun).load() >= signal.begins) return;
  std::atomic_ref(signal.flags->began_ns).store(std::llround(lazy.clock_ns));
  std::atomic_ref(signal.flags->begun).store(signal.begins);
}
bool may_end(const kernels::LinkSignal& signal) {
  return signal.ends == 0 || std::atomic_ref(signal.flags->over).load() >= signal.ends;
}

/// A timer starts as soon as it is at the head, and lets other streams go on meanwhile.
void start_timers() {
  for (StreamState* s : lazy.streams) {
    const bool starts =
        !s->tasks.empty() && s->tasks.front().kind == Kind::kTimer && s->until_ns < 0;
    if (starts) s->until_ns = lazy.clock_ns + s->tasks.front().duration_ns;
  }
}
int64_t num_timers() {
  return std::count_if(lazy.streams.begin(), lazy.streams.end(),
                       [](const StreamState* s) { return s->until_ns >= 0; });
}
/// The clock goes on to the first end of a timer; false: there is none.
bool pass_time() {
  double first = -1;
  for (const StreamState* s : lazy.streams) {
    if (s->until_ns >= 0 && (first < 0 || s->until_ns < first)) first = s->until_ns;
  }
  lazy.clock_ns = std::max(lazy.clock_ns, first);
  return first >= 0;
}

bool can_run(const StreamState& stream) {
  if (stream.tasks.empty()) return false;
  const Task& task = stream.tasks.front();
  if (task.kind == Kind::kHold) return may_end(task.signal);
  if (task.kind == Kind::kTimer) return lazy.clock_ns >= stream.until_ns;
  return task.kind != Kind::kWait || task.event->done >= task.version;
}

void run_next(StreamState& stream) {
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  ++lazy.stats.tasks;
  if (task.kind == Kind::kWork) {
    task.work();
    const double slower = num_timers() > 0 ? lazy.slower_beside : 1;
    lazy.clock_ns += kTaskNs * slower;
  } else if (task.kind == Kind::kTimer) {
    stream.until_ns = -1;
  } else if (task.kind == Kind::kRecord) {
    task.event->done = std::max(task.event->done, task.version);
    task.event->at_ns = lazy.clock_ns;
  }
}

StreamState* choose() {
  start_timers();
  std::vector<StreamState*> can;
  for (StreamState* s : lazy.streams) {
    if (can_run(*s)) can.push_back(s);
  }
  if (can.empty()) return pass_time() ? choose() : nullptr;
  const auto earlier = [](StreamState* a, StreamState* b) {
    return a->tasks.front().number < b->tasks.front().number;
  };
  if (lazy.order == LazyOrder::kAsGiven) return *std::min_element(can.begin(), can.end(), earlier);
  if (lazy.order == LazyOrder::kFirstFirst) return can.front();
  if (lazy.order == LazyOrder::kLastFirst) return can.back();
  return can[static_cast<size_t>(lazy.rng.below(static_cast<int64_t>(can.size())))];
}

/// Some of what there is to do. A replay that is over goes away.
void make_progress() {
  if (lazy.hangs) return;
  protect(PROT_READ | PROT_WRITE);
  const int64_t tasks = lazy.order == LazyOrder::kRandom ? 1 + lazy.rng.below(20) : 20;
  for (int64_t i = 0; i < tasks; ++i) {
    StreamState* const stream = choose();
    if (stream != nullptr) {
      run_next(*stream);
      continue;
    }
    const auto has = [](Kind kind, StreamState* s) {
      return !s->tasks.empty() && s->tasks.front().kind == kind;
    };
    const auto any = [&](Kind kind) {
      return std::any_of(lazy.streams.begin(), lazy.streams.end(),
                         [&](StreamState* s) { return has(kind, s); });
    };
    // Who waits for the host goes on when it says so.
    if (i == 0 && any(Kind::kWait) && !any(Kind::kHold)) {
      keep_error("lazy: streams wait for each other");
    }
    break;
  }
  protect(PROT_NONE);
  std::erase_if(lazy.replays, [](const std::unique_ptr<Replay>& r) {
    if (r->left.done == 0) return false;
    std::erase_if(lazy.streams, [&](StreamState* s) {
      return std::any_of(r->streams.begin(), r->streams.end(),
                         [&](const auto& own) { return own.second.get() == s; });
    });
    return true;
  });
}

// --- streams and events

Stream make_stream(bool) {
  auto* const stream = new StreamState{.number = lazy.streams.size()};
  lazy.streams.push_back(stream);
  ++lazy.stats.handles;
  return stream;
}
void end_stream(Stream s) {
  std::erase(lazy.streams, &state(s));
  delete &state(s);
  --lazy.stats.handles;
}
kernels::Event make_event(bool timed) {
  ++lazy.stats.handles;
  return new EventState{.timed = timed};
}
void end_event(kernels::Event e) {
  delete &state_of(e);
  --lazy.stats.handles;
}
void record(kernels::Event e, Stream s) {
  EventState& event = state_of(e);
  ++event.given;
  event.in_recording = lazy.recording != nullptr && !event.timed;
  give(state(s), {.kind = Kind::kRecord, .event = &event, .version = event.given});
}
void wait(Stream s, kernels::Event e) {
  EventState& event = state_of(e);
  if (event.timed) keep_error("lazy: streams are ordered by events without times");
  if (event.given == 0) keep_error("lazy: a stream waits for an event that was never recorded");
  give(state(s), {.kind = Kind::kWait, .event = &event, .version = event.given});
}
bool over(kernels::Event e) {
  const EventState& event = state_of(e);
  if (event.in_recording) keep_error("lazy: an event of a recording is asked for");
  make_progress();
  return event.done >= event.given;
}
double elapsed_ns(kernels::Event from, kernels::Event to) {
  const EventState &a = state_of(from), &b = state_of(to);
  if (!a.timed || !b.timed) keep_error("lazy: these events have no times");
  if (a.done < a.given || b.done < b.given) keep_error("lazy: an event is not over");
  return b.at_ns - a.at_ns;
}

void begin_recording(Stream s) {
  lazy.recording = std::make_unique<RecordingState>();
  lazy.recording->origin = &state(s);
  lazy.joined = {&state(s)};
}

kernels::Recording end_recording(Stream s) {
  if (lazy.recording->origin != &state(s)) keep_error("lazy: another stream ends the recording");
  ++lazy.stats.recordings;
  ++lazy.stats.handles;
  return lazy.recording.release();
}

int64_t launches(kernels::Recording r) {
  const auto& tasks = static_cast<RecordingState*>(r)->tasks;
  return std::count_if(tasks.begin(), tasks.end(),
                       [](const Recorded& t) { return t.task.kind == Kind::kWork; });
}

/// The recorded tasks on streams of their own, between what `s` was given before and after.
void replay(kernels::Recording r, Stream s) {
  const auto& recording = *static_cast<RecordingState*>(r);
  auto run = std::make_unique<Replay>();
  run->begin.given = run->end.given = run->left.given = 1;
  give(state(s), {.kind = Kind::kRecord, .event = &run->begin, .version = 1});
  for (const Recorded& recorded : recording.tasks) {
    auto& stream = run->streams[recorded.stream];
    if (stream == nullptr) {
      stream = std::make_unique<StreamState>();
      lazy.streams.push_back(stream.get());
      give(*stream, {.kind = Kind::kWait, .event = &run->begin, .version = 1});
    }
    Task task = recorded.task;
    if (task.event != nullptr && task.event->timed) {
      task.version = ++task.event->given;
    } else if (task.event != nullptr) {
      auto& event = run->events[task.event];
      if (event == nullptr) event = std::make_unique<EventState>();
      task.event = event.get();
    }
    give(*stream, std::move(task));
  }
  // The origin has waited for all others, or their work may be under way when the replay ends.
  give(*run->streams[recording.origin], {.kind = Kind::kRecord, .event = &run->end, .version = 1});
  give(state(s), {.kind = Kind::kWait, .event = &run->end, .version = 1});
  give(state(s), {.kind = Kind::kRecord, .event = &run->left, .version = 1});
  lazy.replays.push_back(std::move(run));
  ++lazy.stats.replays;
}

// --- memory

void* allocate(int64_t bytes) {
  if (lazy.memory == nullptr) {
    void* p = mmap(nullptr, kMemory + kHugePage, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t space = kMemory + kHugePage;
    lazy.memory = static_cast<std::byte*>(std::align(kHugePage, kMemory, p, space));
    madvise(lazy.memory, kMemory, MADV_HUGEPAGE);
  }
  constexpr size_t kPage = 4096;
  const size_t size = (static_cast<size_t>(bytes) + kPage - 1) / kPage * kPage;
  if (lazy.used + size > kMemory) {
    keep_error("lazy: out of memory");
    return nullptr;
  }
  std::byte* const at = lazy.memory + lazy.used;
  lazy.used += size;
  ++lazy.allocations;
  ++lazy.stats.handles;
  protect(PROT_READ | PROT_WRITE);
  std::memset(at, 0xff, size);
  protect(PROT_NONE);
  return at;
}
void release(void*) {
  --lazy.stats.handles;
  if (--lazy.allocations == 0) lazy.used = 0;
}
void* allocate_host(int64_t bytes) {
  ++lazy.stats.handles;
  auto* const p = new std::byte[static_cast<size_t>(bytes)];
  std::memset(p, 0xff, static_cast<size_t>(bytes));
  return p;
}
void release_host(void* p) {
  delete[] static_cast<std::byte*>(p);
  --lazy.stats.handles;
}

kernels::DeviceInfo info() {
  kernels::DeviceInfo info = {};
  std::strcpy(info.name, "lazy");
  info.memory_bytes = info.free_bytes = int64_t{kMemory};
  return info;
}

const char* take_error() {
  lazy.taken_error = std::exchange(lazy.error, "");
  return lazy.taken_error.c_str();
}

}  // namespace

void lazy_start(LazyOrder order, uint64_t seed) {
  lazy.order = order;
  lazy.rng = Rng(seed);
  lazy.hangs = false;
  lazy.error.clear();
  lazy.streams.clear();
  lazy.replays.clear();  // of a run that was given up
  lazy.stats = {};
  lazy.clock_ns = 0;
  lazy.slower_beside = 1;
}

void lazy_slow_beside(double factor) {
  lazy.slower_beside = factor;
}

void lazy_give(Stream stream, std::function<void()> work) {
  give_work(stream, std::move(work));
}

LazyStats lazy_stats() {
  return lazy.stats;
}

void lazy_hang() {
  lazy.hangs = true;
}

const kernels::DeviceTable& lazy_device() {
  static const kernels::DeviceTable device = {
      .kernels = &lazy_table<float>(),
      .mixed = &lazy_table<kernels::Bf16>(),
      .process_groups = nullptr,
      .num_devices = [] { return int32_t{1}; },
      .use_device = [](int32_t) {},
      .info = info,
      .allocate = allocate,
      .release = release,
      .allocate_host = allocate_host,
      .release_host = release_host,
      .make_stream = make_stream,
      .end_stream = end_stream,
      .make_event = make_event,
      .end_event = end_event,
      .record = record,
      .wait = wait,
      .over = over,
      .elapsed_ns = elapsed_ns,
      .copy =
          [](void* to, const void* from, int64_t bytes, Stream s) {
            if (bytes == 0) return;
            give_work(s, [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
          },
      .fill =
          [](void* to, int32_t byte, int64_t bytes, Stream s) {
            check_memory(to, bytes);
            if (bytes == 0) return;
            give_work(s, [=] { std::memset(to, byte, static_cast<size_t>(bytes)); });
          },
      .note_nonfinite = lazy_note_nonfinite,
      .largest_columns = lazy_largest_columns,
      .route_top_k = lazy_route_top_k,
      .top_k_work_bytes = [](int64_t, int64_t, int64_t) { return int64_t{0}; },
      .sleep =
          [](int64_t ns, const kernels::LinkSignal& signal, Stream s) {
            give_work(s, [=] {
              signal_begin(signal);
              lazy.clock_ns += static_cast<double>(ns);
            });
            give_hold(s, signal);
          },
      .paced_copies =
          [](const kernels::Copy* copies, int64_t count, int64_t duration_ns, int32_t,
             const kernels::LinkSignal& signal, Stream s) {
            const std::vector<kernels::Copy> all(copies, copies + count);
            give_work(s, [=] {
              signal_begin(signal);
              for (const kernels::Copy& c : all) {
                std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
              }
            });
            give(state(s), {.kind = Kind::kTimer, .duration_ns = static_cast<double>(duration_ns)});
            give_hold(s, signal);
          },
      .begin_recording = begin_recording,
      .end_recording = end_recording,
      .launches = launches,
      .replay = replay,
      .release_recording =
          [](kernels::Recording r) {
            delete static_cast<RecordingState*>(r);
            --lazy.stats.handles;
          },
      .take_error = take_error,
  };
  return device;
}

kernels::DeviceTable lazy_without_copying() {
  kernels::DeviceTable device = lazy_device();
  device.paced_copies = [](const kernels::Copy*, int64_t, int64_t ns, int32_t blocks,
                           const kernels::LinkSignal& signal, Stream stream) {
    lazy_device().paced_copies(nullptr, 0, ns, blocks, signal, stream);
  };
  return device;
}

}  // namespace moe::test
