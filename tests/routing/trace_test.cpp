// Traces: bytes and back, damage of every kind, replay at any number of ranks, and the formats of
// other tools.
#include "engine/routing/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/routing/formats/trace_formats.h"
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

TEST_CASE("Megatron's lines are written and read back") {
  for (const char* name : {"zipf", "source_ragged"}) {
    Trace t = some_trace(name);
    const std::vector<std::string> files = megatron_of_trace(t);
    REQUIRE(files.size() == 4);
    std::vector<NamedText> texts;
    for (const std::string& file : files) texts.push_back({"rank.jsonl", file});
    Trace back = trace_of_megatron(texts, 12);
    if (back.tokens == t.tokens) CHECK(back == t);
    CHECK(back.counts == t.counts);
    CHECK(back.blocks == t.blocks);
  }
}

namespace {

std::string record_of(int64_t step, int64_t layer, const std::string& rest) {
  return fmt::format(R"({{"step": {}, "stage": "pre_dispatch", "block": "decoder", "layer": {}, )"
                     R"("rank": 0, {}}})"
                     "\n",
                     step, layer, rest);
}
const char* const kTwo = R"("num_tokens": 2, "topk": 1, "top_indices": [[3], [0]])";
const char* const kThree = R"("num_tokens": 3, "topk": 1, "top_indices": [[3], [0], [1]])";

Trace megatron(const std::string& text, int64_t experts = 0) {
  return trace_of_megatron({{"r0.jsonl", text}}, experts);
}

}  // namespace

TEST_CASE("a tracer's records are taken as they come: steps, layers by number, micro-batches") {
  const Trace t = megatron(record_of(10, 3, kTwo) + record_of(10, 5, kTwo) +
                           record_of(10, 3, kThree) + record_of(10, 5, kThree) +
                           R"({"step": 10, "stage": "pre_dispatch", "block": "mtp", "mtp_idx": 0})"
                           "\n\n" +
                           record_of(12, 3, kTwo) + record_of(12, 5, kTwo));
  CHECK(t.steps == 2);
  CHECK(t.blocks == std::vector<int32_t>{3, 5});
  CHECK(t.tokens == 5);
  CHECK(t.experts == 4);
  CHECK(std::vector<uint16_t>(t.choices.begin(), t.choices.begin() + 5) ==
        std::vector<uint16_t>{3, 0, 3, 0, 1});
  CHECK(t.choices.back() == kNoExpert);  // the second step has two tokens
}

TEST_CASE("bad Megatron records are named by file, line and field") {
  CHECK_THROWS_WITH(megatron(record_of(0, 1, kTwo) + record_of(0, 3, kThree)),
                    Contains("r0.jsonl:2: layer 3 has 3 tokens in step 0, rank 0, but layer 1 has "
                             "2; allowed: the same in all layers"));
  CHECK_THROWS_WITH(megatron(record_of(0, 1, kTwo), 3),
                    Contains("r0.jsonl:1: expert 3 is not allowed; give 0 to 2"));
  CHECK_THROWS_WITH(megatron(record_of(0, 1, kTwo) + record_of(0, 3, kTwo) + record_of(1, 3, kTwo)),
                    Contains("layer 1 of step 1, rank 0 is missing"));
  CHECK_THROWS_WITH(megatron(record_of(0, 1, kTwo) + "{\"step\": 0, "),
                    Contains("r0.jsonl:2: the text is not a JSON object"));
  CHECK_THROWS_WITH(megatron("{\"step\": 0}\n"), Contains("r0.jsonl:1: field 'topk' is missing"));
  CHECK_THROWS_WITH(
      megatron(record_of(0, 1, R"("num_tokens": 2, "topk": 1, "top_indices": [[1]])")),
      Contains("field 'top_indices' is not a list of num_tokens = 2 tokens"));
  CHECK_THROWS_WITH(
      megatron(record_of(0, 1, R"("num_tokens": 1, "topk": 2, "top_indices": [[1]])")),
      Contains("has the row [1]; allowed: topk = 2 experts"));
  CHECK_THROWS_WITH(
      megatron(record_of(0, 1, kTwo) +
               record_of(0, 3, R"("num_tokens": 1, "topk": 2, "top_indices": [[1, 2]])")),
      Contains("r0.jsonl:2: field 'topk' is 2; allowed: 1"));
  CHECK_THROWS_WITH(megatron(""), Contains("the file contains no routing"));
}

TEST_CASE("a TensorRT-LLM pattern has the trace's slots, and its sums when it is read back") {
  const Trace t = some_trace();
  const std::string text = tensorrt_of_trace(t, 1, 1);
  const Trace back = trace_of_tensorrt({"p.json", text}, 2);
  CHECK(back.experts == 12);
  CHECK(tensorrt_of_trace(back, 0, 0) == text);
  CHECK_THROWS_WITH(tensorrt_of_trace(t, 3, 0), Contains("the trace has 3 steps of 2 layers"));
}

TEST_CASE("a pattern without a histogram is even over a rank's experts; a wrong one is named") {
  const auto read = [](const std::string& rest, int64_t k = 1) {
    return trace_of_tensorrt({"p.json", "{\"ep_size\": 2, \"experts_per_rank\": 2, " + rest + "}"},
                             k);
  };
  const Trace t = read("\"slot_dispatch_matrix\": [[4, 2], [0, 5]]");
  CHECK(t.counts == std::vector<uint32_t>{2, 2, 1, 1, 0, 0, 3, 2});
  CHECK_THROWS_WITH(read("\"slot_dispatch_matrix\": [[4, 2], [0, 5]], "
                         "\"expert_histogram\": [[1, 3], [1, 1]]"),
                    Contains("'expert_histogram', row 1: sums to 2, but column 1 of "
                             "slot_dispatch_matrix to 7"));
  CHECK_THROWS_WITH(read("\"slot_dispatch_matrix\": [[4, 2], [0]]"),
                    Contains("row 1: allowed: 2 whole numbers"));
  CHECK_THROWS_WITH(
      read("\"slot_dispatch_matrix\": [[4, 2], [0, 5]]", 2),
      Contains("row 1: k = 2 choices per token must divide the sum of the row, 5 slots"));
  CHECK_THROWS_WITH(read("\"x\": 1"), Contains("field 'slot_dispatch_matrix' is missing"));
}

TEST_CASE("a CSV of layers and experts is written and read back") {
  const Trace t = traced(workload("zipf", {}, 3), 3, 2, {.tokens = 10, .experts = 12, .k = 2});
  CHECK(trace_of_csv({"t.csv", csv_of_trace(t)}, 12, 2) == t);
  const Trace plain = trace_of_csv({"t.csv", "0,1\r\n0,2\r\n4,0\r\n4,1\r\n0,3\r\n4,3\r\n"}, 0, 1);
  CHECK(plain.steps == 2);
  CHECK(plain.blocks == std::vector<int32_t>{0, 4});
  CHECK(plain.choices == std::vector<uint16_t>{1, 2, 0, 1, 3, kNoExpert, 3, kNoExpert});
}

TEST_CASE("bad CSV lines are named") {
  const auto read = [](const std::string& text, int64_t k = 1) {
    return trace_of_csv({"t.csv", text}, 4, k);
  };
  CHECK_THROWS_WITH(read("layer,expert\n0,1\n0;2\n"), Contains("t.csv:3: '0;2' is not allowed"));
  CHECK_THROWS_WITH(read("0,4\n"), Contains("t.csv:1: expert 4 is not allowed; give 0 to 3"));
  CHECK_THROWS_WITH(read("0,1\n0,2\n1,1\n"), Contains("t.csv:3: layer 1 has 1 tokens in step 0"));
  CHECK_THROWS_WITH(read("0,1\n0,2\n0,3\n", 2), Contains("has 3 choices in step 0, which k = 2"));
  CHECK_THROWS_WITH(read("0,1\n0,1\n", 2), Contains("token 0: expert 1 is chosen twice"));
}

TEST_CASE("what a format cannot say is refused") {
  Trace counts = some_trace();
  counts.choices.clear();
  CHECK_THROWS_WITH(megatron_of_trace(counts), Contains("has only counts"));
  Trace part = some_trace();
  part.choices[1] = kNoExpert;
  CHECK_THROWS_WITH(csv_of_trace(part), Contains("token 0: has 1 of 2 choices"));
}

TEST_CASE("a pattern of as many slots as there may be is dealt out to the last one") {
  for (const int64_t experts : {1, 3}) {
    constexpr int64_t kRanks = 10, kSlots = 1'000'000'000;
    std::string rows;
    for (int64_t s = 0; s < kRanks; ++s) {
      rows += s > 0 ? ", [" : "[";
      for (int64_t r = 0; r < kRanks; ++r) rows += fmt::format("{}{}", r > 0 ? ", " : "", kSlots);
      rows += "]";
    }
    const Trace t =
        trace_of_tensorrt({"p.json", fmt::format(R"({{"ep_size": {}, "experts_per_rank": {}, )"
                                                 R"("slot_dispatch_matrix": [{}]}})",
                                                 kRanks, experts, rows)},
                          kRanks);
    REQUIRE(t.counts.size() == static_cast<size_t>(kRanks * kRanks * experts));
    for (size_t i = 0; i < t.counts.size(); i += static_cast<size_t>(experts)) {
      int64_t sum = 0;
      for (int64_t e = 0; e < experts; ++e) {
        CHECK(std::abs(t.counts[i + static_cast<size_t>(e)] - kSlots / experts) <= 1);
        sum += t.counts[i + static_cast<size_t>(e)];
      }
      CHECK(sum == kSlots);
    }
  }
}

TEST_CASE("a small file that would make a large trace is refused before anything is allocated") {
  std::string steps;
  for (int i = 0; i < 4000; ++i) steps += "0,65533\n1,0\n";
  CHECK_THROWS_WITH(trace_of_csv({"t.csv", steps}, 0, 1),
                    Contains("t.csv: 4000 steps, 2 layers") &&
                        Contains("524280000 counts and choices, but the file has"));
  std::string ragged;
  for (int i = 0; i < 20'000; ++i) ragged += "0,0\n";
  for (int i = 0; i < 20'000; ++i) ragged += "1,0\n";
  for (int i = 0; i < 20'000; ++i) ragged += "0,0\n1,0\n";
  CHECK_THROWS_WITH(trace_of_csv({"t.csv", ragged}, 0, 1), Contains("ranks of up to 20000 tokens"));
  CHECK_THROWS_WITH(trace_of_csv({"t.csv", "0,0\n"}, int64_t{1} << 53, 1),
                    Contains("experts = 9007199254740992 is not allowed"));
  CHECK_THROWS_WITH(megatron(record_of(0, 1,
                                       R"("num_tokens": 0, "topk": 4611686018427387904, )"
                                       R"("top_indices": [])")),
                    Contains("k = 4611686018427387904 is not allowed"));
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

TEST_CASE("a value of any depth or length has a short place in a message") {
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "[";
  for (int i = 0; i < 200'000; ++i) deep += "]";
  const auto message_of = [](const std::string& row) -> std::string {
    try {
      megatron(record_of(0, 1, R"("num_tokens": 1, "topk": 1, "top_indices": [)" + row + "]"));
    } catch (const UserError& e) {
      return e.what();
    }
    return "(no error)";
  };
  CHECK_THAT(message_of(deep), Contains("has the entry [[...]]"));
  CHECK_THAT(message_of("[" + deep + ", 1]"), Contains("has the row [[...],1]"));
  CHECK(message_of("[\"" + std::string(100'000, 'x') + "\"]").size() < 200);
}

namespace {

Trace rank_loads(const std::string& text, std::map<std::string, std::string> where = {},
                 int64_t k = 1, int64_t node = 0) {
  return trace_of_rank_loads({"l.csv", text}, k, where, node);
}

// Rows of ranks 0 and 1 in iterations 3 and 4 of block 2; `a` and `b` are two methods.
constexpr const char* kRankLoads =
    "rank,method,layer,iter,token_num\n"
    "1,a,2,3,5\n0,a,2,3,1\r\n0,b,2,3,9\n\n"
    "0,a,2,4,6\n1,a,2,4,0\n";

}  // namespace

TEST_CASE("rows that ranks compute are one expert each, from all ranks alike") {
  const Trace t = rank_loads(kRankLoads, {{"method", "a"}});
  CHECK(t.steps == 2);
  CHECK(t.ranks == 2);
  CHECK(t.experts == 2);
  CHECK(t.tokens == 3);
  CHECK(t.blocks == std::vector<int32_t>{2});
  // [step, source, expert]: choices 0 .. 5 in the order of experts are dealt in turn.
  CHECK(t.counts == std::vector<uint32_t>{1, 2, 0, 3, 3, 0, 3, 0});
  const RoutingModel routing = routing_of_trace(t);
  CHECK(routing.loads({.step = 1, .ranks = 2, .tokens = 3, .experts = 2, .k = 1}).of_expert(0) ==
        6);
}

TEST_CASE("rank loads of any sizes keep every rank's rows, and sources differ by one") {
  Rng rng(11);
  std::string text = "iter,layer,rank,token_num\n";
  std::vector<int64_t> rows(7);
  int64_t all = 0;
  for (size_t r = 0; r + 1 < rows.size(); ++r) all += rows[r] = 40 + rng.below(15);
  rows.back() = 6 * 7 * 8 - all;
  for (size_t r = 0; r < rows.size(); ++r) text += fmt::format("0,0,{},{}\n", r, rows[r]);
  const Trace t = rank_loads(text, {}, 3);
  CHECK(t.tokens == 16);
  for (size_t e = 0; e < rows.size(); ++e) {
    int64_t sum = 0;
    for (size_t s = 0; s < rows.size(); ++s) {
      const auto n = static_cast<int64_t>(t.counts[s * rows.size() + e]);
      CHECK(std::abs(n - rows[e] / 7) <= 1);
      sum += n;
    }
    CHECK(sum == rows[e]);
  }
}

TEST_CASE("rows of a node's ranks are of its own tokens, and what is beyond comes from others") {
  const std::string head = "iter,layer,rank,token_num\n";
  // Nodes of two: both compute their 8 rows.
  CHECK(rank_loads(head + "0,0,0,6\n0,0,1,2\n0,0,2,4\n0,0,3,4\n", {}, 1, 2).counts ==
        std::vector<uint32_t>{3, 1, 0, 0, 3, 1, 0, 0, 0, 0, 2, 2, 0, 0, 2, 2});
  // The first node computes 12 rows, of which 4 are the second's.
  CHECK(rank_loads(head + "0,0,0,9\n0,0,1,3\n0,0,2,4\n0,0,3,0\n", {}, 1, 2).counts ==
        std::vector<uint32_t>{3, 1, 0, 0, 3, 1, 0, 0, 2, 0, 2, 0, 1, 1, 2, 0});
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0,4\n0,0,1,4\n0,0,2,4\n0,0,3,4\n", {}, 1, 3),
                    Contains("node = 3, allowed: a divisor of its 4 ranks"));
  // Two experts of a rank share its rows.
  const Trace t = trace_of_rank_loads({"l.csv", head + "0,0,0,5\n0,0,1,3\n"}, 1, {}, 0, 2);
  CHECK(t.experts == 4);
  CHECK(t.counts == std::vector<uint32_t>{2, 1, 1, 0, 1, 1, 1, 1});
  const std::string uneven = head + "0,0,0,9\n0,0,1,3\n0,0,2,4\n0,0,3,0\n";
  CHECK(trace_of_rank_loads({"l.csv", uneven}, 1, {}, 2, 1, true).counts ==
        std::vector<uint32_t>{2, 2, 0, 0, 2, 2, 0, 0, 0, 0, 2, 2, 0, 0, 2, 2});
}

TEST_CASE("nodes that compute only their own rows have the same experts") {
  const std::string head = "iter,layer,rank,token_num\n";
  const std::string rows = head + "0,0,0,6\n0,0,1,2\n0,0,2,4\n0,0,3,4\n";
  const NamedText own = {"l.csv", rows};
  const Trace t = trace_of_rank_loads(own, 1, {}, 2, 1, false, 2);
  CHECK(t.experts == 2);
  CHECK(t.counts == std::vector<uint32_t>{3, 1, 3, 1, 2, 2, 2, 2});
  CHECK(trace_of_rank_loads(own, 1, {}, 2, 1, false, 4).experts == 4);
  CHECK_THROWS_WITH(trace_of_rank_loads(own, 1, {}, 2, 1, false, 3),
                    Contains("experts = 3, allowed: 4, or 2, which each node of 2 ranks has once"));
  const std::string left = head + "0,0,0,9\n0,0,1,3\n0,0,2,4\n0,0,3,0\n";
  const NamedText across = {"l.csv", left};
  CHECK_THROWS_WITH(trace_of_rank_loads(across, 1, {}, 2, 1, false, 2),
                    Contains("compute rows that are not their own"));
}

TEST_CASE("rank loads that are incomplete, doubled or of two methods are refused by line") {
  const std::string head = "iter,layer,rank,token_num\n";
  CHECK_THROWS_WITH(
      rank_loads(head + "0,1000001,0,4\n0,1000001,1,4\n"),
      Contains("l.csv:2: layer = '1000001', allowed: whole numbers from 0 to 1000000"));
  CHECK_THROWS_WITH(rank_loads(kRankLoads),
                    Contains("l.csv:4: column 'method' has 'a' and 'b'; choose the rows by where"));
  CHECK_THROWS_WITH(rank_loads(kRankLoads, {{"method", "c"}}),
                    Contains("no row has what `where` states"));
  CHECK_THROWS_WITH(rank_loads(kRankLoads, {{"model", "c"}}),
                    Contains("l.csv:1: there is no column 'model'"));
  CHECK_THROWS_WITH(rank_loads("iter,layer,rank\n"), Contains("no column 'token_num'"));
  CHECK_THROWS_WITH(rank_loads(""), Contains("no row"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0,x\n"), Contains("l.csv:2: token_num = 'x'"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,-1,4\n"), Contains("l.csv:2: rank = '-1'"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0\n"), Contains("has 3 cells"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0,4\n0,0,0,4\n"),
                    Contains("l.csv:3") && Contains("is there twice"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0,4\n0,0,1,4\n1,0,1,8\n"),
                    Contains("iter 1, layer 0, rank 0 is missing"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0,4\n0,0,1,3\n"),
                    Contains("the ranks compute 7 rows, which is no multiple of 2"));
  CHECK_THROWS_WITH(rank_loads(head + "0,0,0,4\n0,0,1,4\n", {}, 3), Contains("k = 3"));
}
