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

TEST_CASE("names that are not UTF-8 still make valid JSON") {
  TwoOps ops;
  ops.graph.op(ops.compute).name = "bad \xff \"name\"";
  const Timeline timeline = ops.timeline(Provenance::kSimulated);
  CHECK_NOTHROW(Json::parse(trace_json(ops.graph, kLanes, {{"label \xfe", &timeline}})));
}

TEST_CASE("the trace of one timeline is the same bytes every time") {
  const TwoOps ops;
  const Timeline timeline = ops.timeline(Provenance::kSimulated, 4);
  CHECK(trace_json(ops.graph, kLanes, {{"a", &timeline}}) ==
        trace_json(ops.graph, kLanes, {{"a", &timeline}}));
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
