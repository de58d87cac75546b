#include "engine/timeline/chrome_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

using Json = nlohmann::json;

double to_us(Nanoseconds ns) {
  return static_cast<double>(ns) / 1e3;
}

/// The processes of one label in the trace, one per rank, with ids from `first_pid` on. `end` is
/// the end of the timelines added so far, where the next timeline with this label begins.
struct Track {
  int64_t first_pid = 0;
  int32_t num_ranks = 0;
  Provenance provenance = Provenance::kSimulated;
  Nanoseconds end = 0;
};

class Trace {
 public:
  Trace(const Graph& graph, const std::vector<std::string>& lane_names)
      : graph_(graph), lane_names_(lane_names) {}

  void add(const Timeline& timeline, Track& track) {
    const Nanoseconds offset = track.end;
    for (const Span& span : timeline.spans) {
      track.end = std::max(track.end, offset + span.end);
      events_.push_back(event(span, track.first_pid + span.rank, offset));
    }
    add_links(timeline.links, track.first_pid, offset);
  }

  void name(const std::string& label, const Track& track) {
    const std::string provenance = name_of(track.provenance);
    const bool says_it = label.find(provenance) != std::string::npos;
    const std::string title = says_it ? label : fmt::format("{} ({})", label, provenance);
    for (int32_t rank = 0; rank < track.num_ranks; ++rank) {
      const int64_t pid = track.first_pid + rank;
      name("process", fmt::format("{} rank {}", title, rank), pid, 0, pid);
      for (size_t lane = 0; lane < lane_names_.size(); ++lane) {
        const int64_t tid = thread_id(pid, lane);
        name("thread", lane_names_[lane], pid, tid, tid);
      }
    }
  }

  std::string text() const {
    const Json trace = {{"displayTimeUnit", "ms"},
                        {"otherData", {{"graph", graph_.name}}},
                        {"traceEvents", events_}};
    return trace.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  /// Thread ids are unique over all processes and above 0, since viewers take 0 for an idle thread.
  int64_t thread_id(int64_t pid, size_t lane) const {
    return (pid - 1) * static_cast<int64_t>(lane_names_.size()) + static_cast<int64_t>(lane) + 1;
  }

  void name(const std::string& what, const std::string& text, int64_t pid, int64_t tid,
            int64_t place) {
    events_.push_back({{"ph", "M"},
                       {"name", what + "_name"},
                       {"pid", pid},
                       {"tid", tid},
                       {"args", {{"name", text}}}});
    events_.push_back({{"ph", "M"},
                       {"name", what + "_sort_index"},
                       {"pid", pid},
                       {"tid", tid},
                       {"args", {{"sort_index", place}}}});
  }

  /// Adds a counter per link. A counter keeps its value, so 0 is written when a link becomes idle.
  void add_links(const std::vector<LinkSpan>& links, int64_t pid, Nanoseconds offset) {
    std::map<std::string, Nanoseconds> busy_until;
    for (const LinkSpan& span : links) {
      const auto before = busy_until.find(span.name);
      if (before != busy_until.end() && before->second < span.begin) {
        events_.push_back(counter(span.name, pid, offset + before->second, 0));
      }
      const double percent = 100 * span.bytes_per_s / span.capacity;
      events_.push_back(counter(span.name, pid, offset + span.begin, percent));
      busy_until[span.name] = span.end;
    }
    for (const auto& [name, end] : busy_until) {
      events_.push_back(counter(name, pid, offset + end, 0));
    }
  }

  static Json counter(const std::string& link, int64_t pid, Nanoseconds at, double percent) {
    return {{"ph", "C"},
            {"name", link},
            {"ts", to_us(at)},
            {"pid", pid},
            {"args", {{"percent", percent}}}};
  }

  Json event(const Span& span, int64_t pid, Nanoseconds offset) const {
    MOE_CHECK(
        span.lane.index() < lane_names_.size(),
        "a span of the timeline has lane number {}, must be below {}, the number of lane names",
        span.lane.value, lane_names_.size());
    const Op& op = graph_.op(span.op);
    Json args = {{"op", graph_.def(op).name},
                 {"phase", phase_name(op.phase)},
                 {"stage", segment_name(op.segment)},
                 {"wait_us", to_us(span.begin - span.post)}};
    if (op.layer >= 0) args["layer"] = op.layer;
    if (op.part >= 0) args["part"] = op.part;
    if (span.bytes > 0) args["bytes"] = span.bytes;
    return {{"ph", "X"},
            {"name", op.name},
            {"cat", segment_name(op.segment)},
            {"ts", to_us(offset + span.begin)},
            {"dur", to_us(span.end - span.begin)},
            {"pid", pid},
            {"tid", thread_id(pid, span.lane.index())},
            {"args", std::move(args)}};
  }

  const Graph& graph_;
  const std::vector<std::string>& lane_names_;
  Json events_ = Json::array();
};

}  // namespace

std::string trace_json(const Graph& graph, const std::vector<std::string>& lane_names,
                       const std::vector<LabelledTimeline>& timelines) {
  std::vector<std::string> labels;  // in the order in which they first appear
  std::map<std::string, Track> tracks;
  for (const auto& [label, timeline] : timelines) {
    const auto [track, is_new] = tracks.try_emplace(label);
    if (is_new) labels.push_back(label);
    track->second.provenance = timeline->provenance;
    track->second.num_ranks = std::max(track->second.num_ranks, timeline->num_ranks);
  }
  Trace trace(graph, lane_names);
  int64_t next_pid = 1;
  for (const std::string& label : labels) {
    Track& track = tracks[label];
    track.first_pid = next_pid;
    next_pid += track.num_ranks;
    trace.name(label, track);
  }
  for (const auto& [label, timeline] : timelines) trace.add(*timeline, tracks[label]);
  return trace.text();
}

}  // namespace moe
