#include <catch2/catch.hpp>

#include "bindings/host/watchdog.h"
#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;

namespace {

// The library must be loaded within the deadline, which takes long under sanitizers.
void short_deadline(HostOptions& options) {
#ifdef __SANITIZE_ADDRESS__
  options.load_deadline_s = 3;
#else
  options.load_deadline_s = 0.5;
#endif
}
void little_memory(HostOptions& options) {
  options.memory_cap = size_t{64} << 20;
}

}  // namespace

TEST_CASE("an endless loop while loading ends at its line, compiled or not, caught or not",
          "[signals]") {
  for (const char* loop :
       {"while true do end", "local n = 0 while true do n = n + 1 end",
        "while true do pcall(function() while true do end end) end",
        "local function f() return f() end f()",
        "local f = coroutine.wrap(function() while true do coroutine.yield(1) end end)\n"
        "while true do f() end",
        "while true do pcall(error) end",
        "local t = setmetatable({}, { __index = function(t, k) return t[k - 1] end })\n"
        "while true do pcall(function() return t[50] end) end"}) {
    INFO(loop);
    const Folder folder;
    const auto failure = run_recipe(folder, std::string("\n\n") + loop, short_deadline);
    REQUIRE(failure);
    CHECK(failure->kind == "user");
    CHECK_THAT(failure->message, Contains("is still being loaded after"));
    CHECK((failure->message.find("recipe.lua:3: ") != std::string::npos ||
           failure->message.find("recipe.lua:4: ") != std::string::npos));
  }
}

TEST_CASE("endless memory ends at the line that takes it") {
  for (const char* loop :
       {"local t = {} while true do t[#t + 1] = { 1, 2, 3 } end",
        "local s = 'x' while true do s = s .. s end",
        "local t, i = {}, 0 while true do i = i + 1 t[i] = ('x'):rep(1e5 + i) end",
        "local s = ('x'):rep(1e9)", "local s = ('x'):rep(1e300)",
        "pcall(function() local t = {} while true do t[#t + 1] = {} end end)"}) {
    INFO(loop);
    const Folder folder;
    const auto failure = run_recipe(folder, std::string("\n") + loop, little_memory);
    REQUIRE(failure);
    CHECK_THAT(failure->message, Contains("recipe.lua:2: "));
    CHECK_THAT(failure->message, Contains("MiB"));
  }
}

TEST_CASE("what the engine keeps for a recipe counts against its memory, while it is kept",
          "[malloc]") {
  const std::string plan =
      "local moe = require 'moe'\n"
      "local function plan() return moe.plan { cluster = moe.cluster.p4de { nodes = 2 },\n"
      "  system = moe.system 'raf' {}, model = moe.model.gpt2_moe { layers = 16, hidden = 64,\n"
      "    heads = 2, seq = 16, batch_per_device = 1, experts_per_device = 1 } } end\n";
  const Folder folder;
  const auto failure =
      run_recipe(folder, plan + "local t = {} for i = 1, 1e4 do t[i] = plan() end", little_memory);
  REQUIRE(failure);
  CHECK(failure->kind == "user");
  CHECK_THAT(failure->message, Contains("recipe.lua:") && Contains("MiB of memory, the most"));
  CHECK_FALSE(run_recipe(folder, plan + "for i = 1, 100 do plan() end", little_memory));
}

TEST_CASE("the Lua states of ranks have one cap together") {
  const auto with = [](const std::string& ranks) {
    const Folder folder;
    return run_recipe(folder,
                      R"(local moe = require "moe"
      local much = {}
      for i = 1, 1e5 do much[i] = { i } end
      local gate = moe.policy.gate { name = "mine", scope = "token", k = 1,
        route = function(ctx) for t = 1, ctx.tokens do ctx:take(t, 1) end end }
      local model = moe.model.gpt2_moe { vocab = 16, layers = 2, hidden = 8, heads = 1, seq = 2,
        batch_per_device = 1, experts_per_device = 1, gate = gate {} }
      moe.train { model = model, tokens = "reference", steps = 1, ranks = )" +
                          ranks + " }",
                      little_memory);
  };
  CHECK_FALSE(with("1"));
  const auto failure = with("8");
  REQUIRE(failure);
  CHECK(failure->kind == "user");
  CHECK_THAT(failure->message, Contains("recipe.lua:8: gate 'mine', rank") &&
                                   Contains("the Lua states of the ranks use together more than "
                                            "32 MiB of memory"));
}

TEST_CASE("endless recursion ends at its line") {
  const std::string message = message_of("\nlocal function f() return 1 + f() end\nf()");
  CHECK_THAT(message, Contains("recipe.lua:2: stack overflow"));
}

TEST_CASE("a state that ran out of time leaves the next one alone", "[signals]") {
  CHECK_THAT(message_of("while true do end", short_deadline), Contains("endless loop"));
  const Folder folder;
  CHECK_FALSE(run_recipe(folder, "local n = 0 for i = 1, 1e6 do n = n + i end", short_deadline));
}

TEST_CASE("a deadline tells once, and ends what does not heed it; a pause holds its time") {
  const auto watchdog = std::make_shared<Watchdog>();
  std::atomic<int> reports{0};
  Deadline deadline(
      watchdog, [&] { ++reports; }, [] {});
  deadline.arm(0.05);
  {
    const Deadline::Pause pause(&deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK(reports == 0);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(reports == 1);
  deadline.arm(0.05);
  deadline.disarm();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  CHECK(reports == 1);
}

TEST_CASE("a call whose deadline is reported late still has the whole grace period to end") {
  const auto watchdog = std::make_shared<Watchdog>();
  std::atomic<int64_t> told_ns{0}, ended_ns{0};
  Deadline deadline(
      watchdog, [&] { told_ns = steady_ns(); },
      [&] {
        if (ended_ns == 0) ended_ns = steady_ns();
      });
  deadline.arm(-10);  // as if the watchdog had got no CPU time for 10 s
  const int64_t begin_ns = steady_ns();
  while (ended_ns == 0 && steady_ns() - begin_ns < 60'000'000'000) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  deadline.disarm();
  CHECK(told_ns > 0);
  CHECK(ended_ns - told_ns >= 1'900'000'000);
}

TEST_CASE("a deadline in a thread's own time passes when the thread works, not when it waits") {
  const auto watchdog = std::make_shared<Watchdog>();
  std::atomic<int> reports{0};
  Deadline deadline(
      watchdog, [&] { ++reports; }, [] {}, Deadline::Clock::kOfThread);
  deadline.arm(0.1);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  CHECK(reports == 0);
  const auto begin = std::chrono::steady_clock::now();
  while (reports == 0 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
  }
  CHECK(reports == 1);
}
