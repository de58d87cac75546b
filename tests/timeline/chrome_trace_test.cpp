#include "engine/timeline/chrome_trace.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "tests/cost/fake_ops.h"

namespace moe {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kLanes = {"compute", "comm"};

struct TwoOps {
  Graph graph{fake::table()};
  OpId compute = graph.add_op("compute", "b1.ex.fc1", {});
  OpId comm = graph.add_op("all_to_all", "b1.moe.a2a_1", {});

  TwoOps() {
    graph.op(compute).segment = Segment::kExpert;
    graph.op(compute).layer = 1;
    graph.op(compute).part = 0;
  }
  Timeline timeline(Provenance provenance, int32_t ranks = 1) const {
    Timeline result{.num_ranks = ranks, .provenance = provenance};
    for (int32_t rank = 0; rank < ranks; ++rank) {
      result.spans.push_back({comm, rank, LaneId(1), 1000, 2500, 10'001, 4096});
      result.spans.push_back({compute, rank, LaneId(0), 3000, 3000, 7000});
    }
    return result;
  }
};

Json events_of(const std::string& text, const std::string& phase) {
  Json found = Json::array();
  const Json trace = Json::parse(text);
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

/// Process or thread id -> name, from the metadata events of that kind.
std::map<int64_t, std::string> names(const std::string& text, const std::string& kind,
                                     const std::string& id) {
  std::map<int64_t, std::string> found;
  for (const Json& event : events_of(text, "M")) {
    if (event.at("name") == kind) found[event.at(id)] = event.at("args").at("name");
  }
  return found;
}

TEST_CASE("a span becomes a complete event in microseconds with its op's particulars") {
  const TwoOps ops;
  const Timeline timeline = ops.timeline(Provenance::kSimulated);
  const Json events = events_of(trace_json(ops.graph, kLanes, {{"sim", &timeline}}), "X");
  REQUIRE(events.size() == 2);
  CHECK(events[0].at("name") == "b1.moe.a2a_1");
  CHECK(events[0].at("ts") == 2.5);
  CHECK(events[0].at("dur") == 7.501);
  CHECK(events[0].at("args").at("op") == "all_to_all");
  CHECK(events[0].at("args").at("bytes") == 4096);
  CHECK(events[0].at("args").at("wait_us") == 1.5);
  CHECK(events[1].at("args").at("stage") == "expert");
  CHECK(events[1].at("args").at("phase") == "forward");
  CHECK(events[1].at("args").at("layer") == 1);
  CHECK(events[1].at("args").at("part") == 0);
  CHECK_FALSE(events[1].at("args").contains("bytes"));
}

TEST_CASE("every rank is a process and every lane a thread, each with a name") {
  const TwoOps ops;
  const Timeline timeline = ops.timeline(Provenance::kMeasured, 3);
  const std::string text = trace_json(ops.graph, kLanes, {{"executed", &timeline}});
  const auto processes = names(text, "process_name", "pid");
  const auto threads = names(text, "thread_name", "tid");
  CHECK(processes.size() == 3);
  CHECK(processes.begin()->second == "executed (measured) rank 0");
  CHECK(threads.size() == 6);
  std::set<std::pair<int64_t, int64_t>> places;
  for (const Json& event : events_of(text, "X")) {
    CHECK(processes.count(event.at("pid")) == 1);
    const bool is_comm = event.at("name") == "b1.moe.a2a_1";
    CHECK(threads.at(event.at("tid")) == (is_comm ? "comm" : "compute"));
    places.emplace(event.at("pid"), event.at("tid"));
  }
  CHECK(places.size() == 6);
}

TEST_CASE("simulated and executed timelines are processes of their own, each from time 0") {
  const TwoOps ops;
  const Timeline simulated = ops.timeline(Provenance::kSimulated);
  const Timeline executed = ops.timeline(Provenance::kEmulated, 2);
  const std::string text =
      trace_json(ops.graph, kLanes, {{"simulated", &simulated}, {"executed step 3", &executed}});
  std::set<std::string> processes;
  for (const auto& [pid, name] : names(text, "process_name", "pid")) processes.insert(name);
  CHECK(processes == std::set<std::string>{"simulated rank 0", "executed step 3 (emulated) rank 0",
                                           "executed step 3 (emulated) rank 1"});
  for (const Json& event : events_of(text, "X")) CHECK(event.at("ts") <= 3.0);
}

TEST_CASE("timelines with one label follow one another") {
  const TwoOps ops;
  const Timeline step = ops.timeline(Provenance::kMeasured);
  const std::string text =
      trace_json(ops.graph, kLanes, {{"steps", &step}, {"other", &step}, {"steps", &step}});
  CHECK(names(text, "process_name", "pid").size() == 2);
  std::map<int64_t, std::vector<double>> begins;
  for (const Json& event : events_of(text, "X")) {
    if (event.at("name") == "b1.ex.fc1") begins[event.at("pid")].push_back(event.at("ts"));
  }
  CHECK(begins.at(1) == std::vector<double>{3.0, 13.001});
  CHECK(begins.at(2) == std::vector<double>{3.0});
}

TEST_CASE("every link is a counter in percent of its rate, and 0 when nothing is on it") {
  const TwoOps ops;
  Timeline timeline = ops.timeline(Provenance::kSimulated, 2);
  timeline.links = {{"nic_out 0.0", 1000, 2000, 50, 100},
                    {"nic_out 0.0", 2000, 4000, 100, 100},
                    {"nic_in 0.0", 2500, 3000, 20, 80},
                    {"nic_out 0.0", 6000, 7000, 10, 100}};
  const std::string text = trace_json(ops.graph, kLanes, {{"a", &timeline}, {"a", &timeline}});
  std::map<std::string, std::vector<std::pair<double, double>>> counters;
  for (const Json& event : events_of(text, "C")) {
    CHECK(event.at("pid") == 1);
    counters[event.at("name")].emplace_back(event.at("ts"), event.at("args").at("percent"));
  }
  using Values = std::vector<std::pair<double, double>>;
  CHECK(counters.size() == 2);
  CHECK(counters["nic_in 0.0"] == Values{{2.5, 25}, {3, 0}, {12.501, 25}, {13.001, 0}});
  const Values& out = counters["nic_out 0.0"];
  REQUIRE(out.size() == 10);
  CHECK(Values(out.begin(), out.begin() + 5) == Values{{1, 50}, {2, 100}, {4, 0}, {6, 10}, {7, 0}});
  CHECK(events_of(trace_json(ops.graph, kLanes, {{"a", &timeline}}), "X").size() == 4);
}

/// A collective whose rows a view passes on, an op that reads the view, and one that reads nothing.
struct Exchange {
  Graph graph{fake::table()};
  OpId before = graph.add_op("compute", "before", {});
  OpId exchange = graph.add_op("all_to_all", "exchange", {graph.out(before)});
  OpId seen = graph.add_op("view", "seen", {graph.out(exchange)});
  OpId reader = graph.add_op("compute", "reader", {graph.out(seen)});
  OpId other = graph.add_op("compute", "other", {});

  Timeline timeline(int32_t ranks = 1) const {
    Timeline result{.num_ranks = ranks};
    for (int32_t rank = 0; rank < ranks; ++rank) {
      result.spans.push_back({before, rank, LaneId(0), 0, 0, 1000});
      result.spans.push_back({exchange, rank, LaneId(1), 1000, 1000, 2000, 64, 0});
      result.spans.push_back({other, rank, LaneId(0), 1000, 1000, 3500});
      result.spans.push_back({exchange, rank, LaneId(1), 2000, 2000, 3000, 64, 1});
      result.spans.push_back({seen, rank, LaneId(0), 3500, 3500, 3500});
      result.spans.push_back({reader, rank, LaneId(0), 3500, 3500, 5000});
    }
    return result;
  }
};

TEST_CASE("a flow leads from the last span of a collective to the ops that read what it brings") {
  const Exchange ops;
  const Timeline timeline = ops.timeline(2);
  const std::string text = trace_json(ops.graph, kLanes, {{"a", &timeline}, {"b", &timeline}});
  const Json begins = events_of(text, "s"), ends = events_of(text, "f");
  const auto threads = names(text, "thread_name", "tid");
  REQUIRE(begins.size() == 4);
  REQUIRE(ends.size() == 4);
  std::set<int64_t> ids;
  for (size_t i = 0; i < begins.size(); ++i) {
    CHECK(begins[i].at("id") == ends[i].at("id"));
    CHECK(begins[i].at("pid") == ends[i].at("pid"));
    CHECK(begins[i].at("ts") == 2.999);  // in the span, whose end is not part of it
    CHECK(ends[i].at("ts") == 3.5);
    CHECK(ends[i].at("bp") == "e");
    CHECK(threads.at(begins[i].at("tid")) == "comm");
    CHECK(threads.at(ends[i].at("tid")) == "compute");
    ids.insert(begins[i].at("id").get<int64_t>());
  }
  CHECK(ids.size() == 4);
}

TEST_CASE("the memory in use is a counter per rank, and each span says what it waited for") {
  const Exchange ops;
  const Timeline timeline = ops.timeline(2);
  const auto memory = [](int32_t rank) {
    return std::vector<MemoryInUse>{{0, Bytes{1} << 30}, {2000, (rank + 2) * (Bytes{1} << 30)}};
  };
  const auto cause = [&](const Span& span) {
    return span.op == ops.reader ? std::string("data of exchange") : "";
  };
  const std::string text = trace_json(ops.graph, kLanes, {{"a", &timeline, cause, memory}});
  std::map<int64_t, std::vector<double>> values;
  for (const Json& event : events_of(text, "C")) {
    CHECK(event.at("name") == "memory");
    values[event.at("pid")].push_back(event.at("args").at("GiB"));
  }
  CHECK(values == std::map<int64_t, std::vector<double>>{{1, {1, 2}}, {2, {1, 3}}});
  for (const Json& event : events_of(text, "X")) {
    CHECK(event.at("args").contains("waits_for") == (event.at("name") == "reader"));
  }
}

TEST_CASE("a trace keeps to its size, and names what it leaves out") {
  const Exchange ops;
  Timeline timeline = ops.timeline(100);
  timeline.links = {{"nic_out 0.0", 1000, 2000, 50, 100}};
  const LabelledTimeline one{"a", &timeline};
  const std::string whole = trace_json(ops.graph, kLanes, {one});
  CHECK_FALSE(Json::parse(whole).at("otherData").contains("left_out"));
  for (size_t most = 500; most < whole.size(); most = most * 3 / 2) {
    const std::string text = trace_json(ops.graph, kLanes, {one}, most);
    CHECK(text.size() <= most + 1000);
    const Json trace = Json::parse(text);
    CHECK_FALSE(trace.at("otherData").at("left_out").get<std::string>().empty());
    const size_t ranks = names(text, "process_name", "pid").size();
    CHECK(events_of(text, "X").size() <= 6 * ranks);
    if (ranks > 1) {  // ranks are whole
      CHECK(events_of(text, "X").size() == 6 * ranks);
      CHECK(events_of(text, "f").size() == ranks);
    }
  }
  const std::string two = trace_json(ops.graph, kLanes, {one, {"b", &timeline}}, whole.size());
  CHECK(Json::parse(two).at("otherData").at("left_out").get<std::string>().find("; of b ranks") !=
        std::string::npos);
}

TEST_CASE("names that are not UTF-8 still make valid JSON") {
  TwoOps ops;
  ops.graph.op(ops.compute).name = "bad \xff \"name\"";
  const Timeline timeline = ops.timeline(Provenance::kSimulated);
  CHECK_NOTHROW(Json::parse(trace_json(ops.graph, kLanes, {{"label \xfe", &timeline}})));
}

TEST_CASE("a span on a lane without a name is a bug") {
  const TwoOps ops;
  const Timeline timeline = ops.timeline(Provenance::kSimulated);
  CHECK_THROWS_AS(trace_json(ops.graph, {"compute"}, {{"a", &timeline}}), InternalError);
}

TEST_CASE("every provenance has a name") {
  CHECK(std::string(name_of(Provenance::kSimulated)) == "simulated");
  CHECK(std::string(name_of(Provenance::kEmulated)) == "emulated");
  CHECK(std::string(name_of(Provenance::kMeasured)) == "measured");
}

}  // namespace
}  // namespace moe
