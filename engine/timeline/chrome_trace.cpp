#include "engine/timeline/chrome_trace.h"

#include <fmt/ranges.h>

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

/// The timelines of one label, which follow one another, and their processes, one per rank, with
/// ids from `first_pid` on.
struct Track {
  std::string label;
  std::vector<const LabelledTimeline*> timelines;
  std::vector<Nanoseconds> offsets;  // when each of them begins
  int64_t first_pid = 0;
  int32_t num_ranks = 0;
};

Nanoseconds end_of(const Timeline& timeline) {
  Nanoseconds end = 0;
  for (const Span& span : timeline.spans) end = std::max(end, span.end);
  return end;
}

std::vector<Track> tracks_of(const std::vector<LabelledTimeline>& timelines) {
  std::vector<Track> tracks;  // in the order in which the labels first appear
  for (const LabelledTimeline& one : timelines) {
    auto track = std::find_if(tracks.begin(), tracks.end(),
                              [&](const Track& t) { return t.label == one.label; });
    if (track == tracks.end()) track = tracks.insert(track, {one.label, {}, {}});
    track->offsets.push_back(track->timelines.empty()
                                 ? 0
                                 : track->offsets.back() +
                                       end_of(*track->timelines.back()->timeline));
    track->timelines.push_back(&one);
    track->num_ranks = std::max(track->num_ranks, one.timeline->num_ranks);
  }
  int64_t next_pid = 1;
  for (Track& track : tracks) {
    track.first_pid = next_pid;
    next_pid += track.num_ranks;
  }
  return tracks;
}

/// Returns, for each collective, the ops that read what it brings, also through views.
std::vector<std::vector<OpId>> consumers_of(const Graph& graph) {
  std::vector<std::vector<OpId>> readers(graph.tensors().size()), consumers(graph.num_ops());
  for (size_t i = graph.num_ops(); i-- > 0;) {  // readers come after what they read
    const OpId op(static_cast<int64_t>(i));
    if (graph.removed(op)) continue;
    std::vector<OpId> found;
    for (const TensorId out : graph.op(op).outputs) {
      const auto& of_out = readers[out.index()];
      found.insert(found.end(), of_out.begin(), of_out.end());
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    const bool transparent = is_view(graph, graph.op(op));
    for (const TensorId in : graph.op(op).inputs) {
      if (!in.valid()) continue;
      auto& of_in = readers[in.index()];
      if (transparent) {
        of_in.insert(of_in.end(), found.begin(), found.end());
      } else {
        of_in.push_back(op);
      }
    }
    if (graph.def(op).lane == LaneKind::kComm) consumers[i] = std::move(found);
  }
  return consumers;
}

/// Events as JSON, one after the other, up to a number of bytes.
class Events {
 public:
  explicit Events(size_t room) : room_(room) {}
  /// Adds the event if there is room; returns whether there was.
  bool add(const Json& event) {
    const std::string text = event.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text_.size() + text.size() + 1 > room_) return false;
    if (!text_.empty()) text_ += ',';
    text_ += text;
    return true;
  }
  bool add(const Events& more) {
    if (more.text_.empty()) return true;
    if (text_.size() + more.text_.size() + 1 > room_) return false;
    if (!text_.empty()) text_ += ',';
    text_ += more.text_;
    return true;
  }
  size_t left() const { return room_ - text_.size(); }
  const std::string& text() const { return text_; }

 private:
  size_t room_;
  std::string text_;
};

class Trace {
 public:
  Trace(const Graph& graph, const std::vector<std::string>& lane_names)
      : graph_(graph), lane_names_(lane_names), consumers_(consumers_of(graph)) {}

  /// Adds the events of a track; returns what had no room, "" if all had.
  std::string add(const Track& track, Events& events) {
    std::vector<std::string> left_out;
    int32_t rank = 0;
    for (; rank < track.num_ranks; ++rank) {
      Events own(events.left());
      const Nanoseconds until = add_rank(track, rank, own);
      if (until >= 0 && rank > 0) break;
      if (until >= 0) left_out.push_back(fmt::format("spans of rank 0 after {} us", to_us(until)));
      events.add(own);
      if (rank == 0) add_links(track, events, left_out);
    }
    if (rank < track.num_ranks) {
      left_out.push_back(fmt::format("ranks {} to {}", rank, track.num_ranks - 1));
    }
    if (left_out.empty()) return "";
    return fmt::format("of {} {}", track.label, fmt::join(left_out, ", "));
  }

 private:
  /// Thread ids are unique over all processes and above 0, since viewers take 0 for an idle thread.
  int64_t thread_id(int64_t pid, size_t lane) const {
    return (pid - 1) * static_cast<int64_t>(lane_names_.size()) + static_cast<int64_t>(lane) + 1;
  }

  /// Adds the names, spans, memory and flows of a rank. Returns the begin of the first span for
  /// which there was no room, or -1.
  Nanoseconds add_rank(const Track& track, int32_t rank, Events& events) {
    const int64_t pid = track.first_pid + rank;
    const std::string provenance = name_of(track.timelines[0]->timeline->provenance);
    const bool says_it = track.label.find(provenance) != std::string::npos;
    const std::string title =
        says_it ? track.label : fmt::format("{} ({})", track.label, provenance);
    add_name(events, "process", fmt::format("{} rank {}", title, rank), pid, 0, pid);
    for (size_t lane = 0; lane < lane_names_.size(); ++lane) {
      const int64_t tid = thread_id(pid, lane);
      add_name(events, "thread", lane_names_[lane], pid, tid, tid);
    }
    for (size_t i = 0; i < track.timelines.size(); ++i) {
      const LabelledTimeline& one = *track.timelines[i];
      std::vector<const Span*> spans;
      for (const Span& span : one.timeline->spans) {
        if (span.rank != rank) continue;
        const std::string cause = one.cause ? one.cause(span) : "";
        if (!events.add(event(span, cause, pid, track.offsets[i]))) {
          return track.offsets[i] + span.begin;
        }
        spans.push_back(&span);
      }
      if (one.memory && rank < one.timeline->num_ranks) {
        for (const MemoryInUse& m : one.memory(rank)) {
          const double gib = static_cast<double>(m.bytes) / 0x1p30;
          if (!events.add(counter("memory", "GiB", pid, track.offsets[i] + m.at, gib))) return 0;
        }
      }
      if (!add_flows(events, spans, pid, track.offsets[i])) return 0;
    }
    return -1;
  }

  static void add_name(Events& events, const std::string& what, const std::string& text,
                       int64_t pid, int64_t tid, int64_t place) {
    events.add({{"ph", "M"},
                {"name", what + "_name"},
                {"pid", pid},
                {"tid", tid},
                {"args", {{"name", text}}}});
    events.add({{"ph", "M"},
                {"name", what + "_sort_index"},
                {"pid", pid},
                {"tid", tid},
                {"args", {{"sort_index", place}}}});
  }

  /// Adds a counter per link. A counter keeps its value, so 0 is written when a link becomes idle.
  void add_links(const Track& track, Events& events, std::vector<std::string>& left_out) const {
    std::map<std::string, std::vector<Json>> counters;
    for (size_t i = 0; i < track.timelines.size(); ++i) {
      std::map<std::string, Nanoseconds> busy_until;
      const Nanoseconds offset = track.offsets[i];
      const auto add = [&](const std::string& name, Nanoseconds at, double percent) {
        counters[name].push_back(counter(name, "percent", track.first_pid, offset + at, percent));
      };
      for (const LinkSpan& span : track.timelines[i]->timeline->links) {
        const auto before = busy_until.find(span.name);
        if (before != busy_until.end() && before->second < span.begin) {
          add(span.name, before->second, 0);
        }
        add(span.name, span.begin, 100 * span.bytes_per_s / span.capacity);
        busy_until[span.name] = span.end;
      }
      for (const auto& [name, end] : busy_until) add(name, end, 0);
    }
    Events own(events.left() / 4);
    std::vector<std::string> names;
    for (const auto& [name, list] : counters) {
      Events link(own.left());
      const bool fits =
          std::all_of(list.begin(), list.end(), [&](const Json& event) { return link.add(event); });
      if (!fits || !own.add(link)) names.push_back(name);
    }
    events.add(own);
    if (!names.empty()) left_out.push_back(fmt::format("{} links", names.size()));
  }

  static Json counter(const std::string& name, const char* unit, int64_t pid, Nanoseconds at,
                      double value) {
    return {
        {"ph", "C"}, {"name", name}, {"ts", to_us(at)}, {"pid", pid}, {"args", {{unit, value}}}};
  }

  /// Adds the flows of a rank's spans; returns whether there was room. A flow binds to the span in
  /// which its time is, so it begins in the last nanosecond of the collective; the spans must have
  /// been added before.
  bool add_flows(Events& events, const std::vector<const Span*>& spans, int64_t pid,
                 Nanoseconds offset) {
    std::map<OpId, std::pair<const Span*, const Span*>> of_op;  // the first and the last span
    for (const Span* span : spans) {
      auto& [first, last] = of_op.try_emplace(span->op, span, span).first->second;
      if (span->end > last->end) last = span;
    }
    for (const auto& [op, own] : of_op) {
      for (const OpId consumer : consumers_[op.index()]) {
        const auto found = of_op.find(consumer);
        if (found == of_op.end()) continue;
        const Span &from = *own.second, &to = *found->second.first;
        if (from.begin == from.end || to.begin == to.end || to.begin < from.end) continue;
        ++num_flows_;
        Json end = flow("f", pid, to.lane, offset + to.begin);
        end["bp"] = "e";
        if (!events.add(flow("s", pid, from.lane, offset + from.end - 1)) || !events.add(end)) {
          return false;
        }
      }
    }
    return true;
  }

  Json flow(const char* phase, int64_t pid, LaneId lane, Nanoseconds at) const {
    return {{"ph", phase},
            {"name", "data"},
            {"cat", "data"},
            {"id", num_flows_},
            {"ts", to_us(at)},
            {"pid", pid},
            {"tid", thread_id(pid, lane.index())}};
  }

  Json event(const Span& span, const std::string& cause, int64_t pid, Nanoseconds offset) const {
    MOE_CHECK(
        span.lane.index() < lane_names_.size(),
        "a span of the timeline has lane number {}, must be below {}, the number of lane names",
        span.lane.value, lane_names_.size());
    const Op& op = graph_.op(span.op);
    Json args = {{"op", graph_.def(op).name},
                 {"phase", name_of(op.phase)},
                 {"stage", name_of(op.segment)},
                 {"wait_us", to_us(span.begin - span.post)}};
    if (op.layer >= 0) args["layer"] = op.layer;
    if (op.part >= 0) args["part"] = op.part;
    if (span.bytes > 0) args["bytes"] = span.bytes;
    if (!cause.empty()) args["waits_for"] = cause;
    return {{"ph", "X"},
            {"name", op.name},
            {"cat", name_of(op.segment)},
            {"ts", to_us(offset + span.begin)},
            {"dur", to_us(span.end - span.begin)},
            {"pid", pid},
            {"tid", thread_id(pid, span.lane.index())},
            {"args", std::move(args)}};
  }

  const Graph& graph_;
  const std::vector<std::string>& lane_names_;
  const std::vector<std::vector<OpId>> consumers_;
  int64_t num_flows_ = 0;
};

}  // namespace

std::string trace_json(const Graph& graph, const std::vector<std::string>& lane_names,
                       const std::vector<LabelledTimeline>& timelines, size_t most_bytes) {
  Trace trace(graph, lane_names);
  std::string text;
  std::vector<std::string> left_out;
  const std::vector<Track> tracks = tracks_of(timelines);
  for (const Track& track : tracks) {
    Events events(most_bytes / tracks.size());
    std::string missing = trace.add(track, events);
    if (!missing.empty()) left_out.push_back(std::move(missing));
    if (!text.empty()) text += ',';
    text += events.text();
  }
  Json other = {{"graph", graph.name}};
  if (!left_out.empty()) other["left_out"] = fmt::format("{}", fmt::join(left_out, "; "));
  return fmt::format(R"({{"displayTimeUnit":"ms","otherData":{},"traceEvents":[{}]}})",
                     other.dump(-1, ' ', false, Json::error_handler_t::replace), text);
}

}  // namespace moe
