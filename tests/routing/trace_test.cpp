// Traces: bytes and back, damage of every kind, replay at any number of ranks.
#include "engine/routing/trace.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/routing/workload.h"
#include "tests/base/message_of.h"

using namespace moe;
using Catch::Matchers::Contains;

namespace {

// What a routing model says, as a trace of it.
Trace traced(const RoutingModel& routing, int64_t steps, int64_t layers, RoutingQuery q) {
  Trace t = {.steps = steps,
             .layers = layers,
             .ranks = q.ranks,
             .tokens = q.tokens,
             .experts = q.experts,
             .k = q.k};
  for (int64_t l = 0; l < layers; ++l) t.blocks.push_back(static_cast<int32_t>(2 * l + 1));
  std::vector<int32_t> choices(static_cast<size_t>(q.tokens * q.k));
  for (q.step = 0; q.step < steps; ++q.step) {
    for (q.layer = 0; q.layer < layers; ++q.layer) {
      for (int64_t r = 0; r < q.ranks; ++r) {
        routing.route(q, r, choices);
        for (const int32_t e : choices) t.choices.push_back(static_cast<uint16_t>(e));
      }
    }
  }
  finish_trace(t, "made");
  return t;
}

Trace some_trace(const std::string& name = "zipf", int64_t experts = 12, int64_t k = 2) {
  return traced(workload(name, {}, 3), 3, 2,
                {.ranks = 4, .tokens = 10, .experts = experts, .k = k});
}

RoutingModel routing_of_trace(Trace t, bool cycle = false) {
  return routing_of(std::make_shared<const Trace>(std::move(t)), "t", cycle);
}

std::string error_of(const std::string& bytes) {
  return test::message_of<UserError>([&] { read_trace(bytes, "x.trace"); });
}

std::string with_number(std::string bytes, size_t at, uint64_t value, int width) {
  for (int b = 0; b < width; ++b) {
    bytes[at + static_cast<size_t>(b)] = static_cast<char>(value >> (8 * b));
  }
  return bytes;
}

// Offsets of the format, as the header gives them, for some_trace().
constexpr size_t kBlocks = 64, kRecord = kBlocks + 2 * 4, kCounts = kRecord + 4,
                 kChoices = kCounts + 4 * 12 * 4, kRecordBytes = 4 + 4 * 12 * 4 + 4 * 10 * 2;

}  // namespace

TEST_CASE("a trace's bytes read back as the same trace") {
  for (const int64_t experts : {1, 12, 255, 256, 1000}) {
    for (const char* name : {"zipf", "source_ragged"}) {
      const Trace t = some_trace(name, experts, std::min<int64_t>(experts, 2));
      CHECK(read_trace(trace_bytes(t), "x") == t);
    }
  }
  Trace counts = some_trace();
  counts.choices.clear();
  CHECK(read_trace(trace_bytes(counts), "x") == counts);
}

TEST_CASE("the bytes lie where the header says") {
  const std::string bytes = trace_bytes(some_trace());
  CHECK(bytes.substr(0, 8) == "MOETRACE");
  CHECK(bytes.size() == kRecord + 6 * kRecordBytes + 8);
  CHECK(bytes[kBlocks] == 1);
  CHECK(bytes[kRecord + kRecordBytes] == 1);  // number of the second record
  CHECK(static_cast<uint8_t>(bytes[kChoices]) == some_trace().choices[0]);
}

TEST_CASE("every change of a byte is found, and every truncation") {
  const std::string bytes = trace_bytes(some_trace());
  Rng rng(4);
  for (int trial = 0; trial < 500; ++trial) {
    std::string damaged = bytes;
    const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(bytes.size())));
    damaged[at] = static_cast<char>(damaged[at] ^ (1 + rng.below(255)));
    INFO("byte " << at);
    REQUIRE_THAT(error_of(damaged), Contains("x.trace: "));
  }
  for (size_t size = 0; size < bytes.size(); size += 7) {
    REQUIRE_THAT(error_of(bytes.substr(0, size)), Contains("truncated"));
  }
  CHECK_THAT(error_of(bytes + "x"),
             Contains("is too long: it has 1737 bytes, but its header states 1736"));
}

TEST_CASE("what is wrong in a trace is named") {
  const std::string bytes = trace_bytes(some_trace());
  CHECK_THAT(error_of("layer,expert\n1,2\n"), Contains("is not a routing trace"));
  CHECK_THAT(error_of(with_number(bytes, 8, 9, 4)),
             Contains("has version 9, but this program reads version 1"));
  CHECK_THAT(error_of(with_number(bytes, 16, 0, 8)),
             Contains("steps = 0 is not allowed; give 1 to"));
  CHECK_THAT(error_of(with_number(bytes, 16, 1ull << 60, 8)), Contains("steps ="));
  CHECK_THAT(error_of(with_number(bytes, 16, 999'999'999, 8)), Contains("truncated"));
  CHECK_THAT(error_of(with_number(bytes, kRecord + kRecordBytes, 5, 4)),
             Contains("record 1 (step 0, layer 1) is numbered 5: the content is mixed up"));
  CHECK_THAT(error_of(with_number(bytes, kCounts + 4, 77, 4)),
             Contains("step 0, layer 0, rank 0: the count of expert 1 is 77, but"));
  CHECK_THAT(error_of(with_number(bytes, kChoices + 2 * kRecordBytes + 20 + 3, 200, 1)),
             Contains("step 1, layer 0, rank 1, token 1, choice 1: expert 200 is not allowed; "
                      "give 0 to 11"));
  CHECK_THAT(error_of(with_number(bytes, kChoices + 1, static_cast<uint8_t>(bytes[kChoices]), 1)),
             Contains("token 0: expert") && Contains("is chosen twice"));
  CHECK_THAT(error_of(with_number(bytes, kBlocks, 7, 4)), Contains("checksum"));
}

TEST_CASE("a replayed trace gives every rank its choices, and the same loads") {
  for (const char* name : {"zipf", "source_ragged", "zero_token_rank"}) {
    const RoutingModel routing = workload(name, {}, 3);
    RoutingQuery q = {.ranks = 4, .tokens = 10, .experts = 12, .k = 2};
    const RoutingModel replayed = routing_of_trace(traced(routing, 3, 2, q));
    for (q.step = 0; q.step < 3; ++q.step) {
      for (q.layer = 0; q.layer < 2; ++q.layer) {
        CHECK(replayed.loads(q) == routing.loads(q));
        std::vector<int32_t> theirs(20), mine(20);
        for (int64_t r = 0; r < 4; ++r) {
          routing.route(q, r, theirs);
          replayed.route(q, r, mine);
          CHECK(mine == theirs);
        }
      }
    }
  }
}

TEST_CASE("at another number of ranks the tokens are dealt out again in order") {
  const RoutingModel routing = routing_of_trace(some_trace());
  const auto all = [&](int64_t ranks, int64_t tokens) {
    const RoutingQuery q = {
        .step = 1, .layer = 1, .ranks = ranks, .tokens = tokens, .experts = 12, .k = 2};
    std::vector<int32_t> choices, one(static_cast<size_t>(tokens * 2));
    const ExpertCounts loads = routing.loads(q);
    for (int64_t r = 0; r < ranks; ++r) {
      routing.route(q, r, one);
      choices.insert(choices.end(), one.begin(), one.end());
      for (int64_t e = 0; e < 12; ++e)
        CHECK(loads.at(r, e) == std::count(one.begin(), one.end(), e));
    }
    return choices;
  };
  CHECK(all(1, 40) == all(4, 10));
  CHECK(all(8, 5) == all(4, 10));
}

TEST_CASE("a trace of counts replays choices that make them, different ones of a token") {
  for (const char* name : {"zipf", "source_ragged"}) {
    Trace t = some_trace(name, 12, 3);
    const RoutingModel with_choices = routing_of_trace(t);
    t.choices.clear();
    const RoutingModel routing = routing_of_trace(t);
    const RoutingQuery q = {.step = 2, .layer = 1, .ranks = 4, .tokens = 10, .experts = 12, .k = 3};
    const ExpertCounts loads = routing.loads(q);
    CHECK(loads == with_choices.loads(q));
    std::vector<int32_t> choices(30);
    for (int64_t r = 0; r < 4; ++r) {
      routing.route(q, r, choices);
      for (int64_t e = 0; e < 12; ++e) {
        CHECK(loads.at(r, e) == std::count(choices.begin(), choices.end(), e));
      }
      for (size_t i = 0; i < 30; i += 3) {
        CHECK((choices[i] < 0 || (choices[i] != choices[i + 1] && choices[i] != choices[i + 2] &&
                                  choices[i + 1] != choices[i + 2])));
      }
    }
  }
}

TEST_CASE("steps behind the last are refused, or begin again") {
  const RoutingQuery q = {.step = 4, .ranks = 4, .tokens = 10, .experts = 12, .k = 2};
  RoutingQuery first = q;
  first.step = 1;
  CHECK_THROWS_WITH(routing_of_trace(some_trace()).loads(q),
                    Contains("t: the trace has 3 steps, but step 5 is requested; cycle = true "
                             "starts again at the first"));
  const RoutingModel cycled = routing_of_trace(some_trace(), true);
  CHECK(cycled.loads(q) == cycled.loads(first));
}

TEST_CASE("a trace of other sizes than the model's is refused with both") {
  const RoutingModel routing = routing_of_trace(some_trace());
  const auto refused = [&](RoutingQuery q, const std::string& part) {
    CHECK_THROWS_WITH(routing.loads(q), Contains(part));
  };
  refused({.ranks = 4, .tokens = 10, .experts = 8, .k = 2}, "has 12 experts, but 8 are requested");
  refused({.ranks = 4, .tokens = 10, .experts = 12, .k = 1},
          "has 2 choices per token (k), but 1 are requested");
  refused({.layer = 2, .ranks = 4, .tokens = 10, .experts = 12, .k = 2},
          "has 2 MoE layers, but 3 are requested");
  refused({.ranks = 3, .tokens = 10, .experts = 12, .k = 2},
          "has 4 ranks of 10 tokens, but 3 ranks of 10 are requested");
}

TEST_CASE("counts that no choices make are refused") {
  Trace t = {.steps = 1, .layers = 1, .ranks = 1, .tokens = 4, .experts = 3, .k = 2};
  t.blocks = {0};
  t.counts = {5, 2, 1};
  CHECK_THROWS_WITH(finish_trace(t, "x"), Contains("expert 0 is chosen 5 times by 4 tokens"));
  t.counts = {3, 2, 2};
  CHECK_THROWS_WITH(finish_trace(t, "x"),
                    Contains("the counts sum to 7 choices, allowed: k = 2 for"));
}

TEST_CASE("what would make a large trace of few numbers is refused before anything is allocated") {
  const auto refused = [](const Trace& sizes, int64_t known, const std::string& part) {
    CHECK_THROWS_WITH(check_room(sizes, known, "t.csv"), Contains("t.csv: ") && Contains(part));
  };
  const Trace wide = {.steps = 4000, .layers = 2, .ranks = 1, .tokens = 1, .experts = 65534};
  refused(wide, 16'000, "524280000 counts and choices, but the file has 16000 numbers; allowed: ");
  check_room(wide, 8'191'876, "t.csv");
  const Trace ragged = {.steps = 20'001, .layers = 2, .ranks = 1, .tokens = 20'000, .experts = 1};
  refused(ragged, 160'000, "ranks of up to 20000 tokens");
  refused({.steps = 1, .layers = 1, .ranks = 1, .experts = int64_t{1} << 53}, 1,
          "experts = 9007199254740992 is not allowed");
  refused({.steps = 1, .layers = 1, .ranks = 1, .experts = 2, .k = int64_t{1} << 62}, 1,
          "k = 4611686018427387904 is not allowed");
}

TEST_CASE("of counts alone as many choices are made as a layer may have, and no more") {
  Trace t = {.steps = 1, .layers = 1, .ranks = 2, .tokens = 1'000'000'000, .experts = 9, .k = 9};
  t.blocks = {0};
  t.counts.assign(18, 3);
  const RoutingModel routing = routing_of_trace(read_trace(trace_bytes(t), "x"));
  const RoutingQuery q = {.ranks = 2, .tokens = t.tokens, .experts = 9, .k = 9};
  CHECK(routing.loads(q).at(1, 8) == 3);
  RoutingQuery one = q;
  one.ranks = 1;
  one.tokens = 2 * t.tokens;
  CHECK_THROWS_WITH(routing.loads(one),
                    Contains("t: the trace has only counts, of 2 ranks of 1000000000 "
                             "tokens; at most 134217728 choices"));
}

TEST_CASE("blocks that do not ascend from 0 are refused, the checksum right or not") {
  for (const auto& [first, second] : {std::pair{7, 3}, {-1, 3}, {1, 1}, {1, 2147483647}}) {
    Trace t = some_trace();
    t.blocks = {first, second};
    CHECK_THROWS_WITH(read_trace(trace_bytes(t), "x"),
                      Contains("x: layer") && Contains("allowed: "));
  }
}
