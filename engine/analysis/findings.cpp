#include "engine/analysis/findings.h"

#include <algorithm>
#include <utility>

#include "engine/analysis/remedies.h"
#include "engine/base/stop.h"
#include "engine/graph/micro_batches.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

/// A remedy, and the finding that it becomes if it helps.
struct Trial {
  Remedy remedy;
  Finding finding;
  const Exposure* last;  // the last exposure that the remedy was added for
};

/// Returns one trial per different remedy of all exposures, those with the longest exposed time
/// first; a remedy for several exposures gets the sum of their exposed times and estimates. Of the
/// micro-batches between the first and the last, which are alike, the second stands for all.
std::vector<Trial> trials_of(const FindingsInput& in, const Remedies& remedies) {
  std::vector<Trial> trials;
  const int32_t last = num_micro_batches(in.graph) - 1;
  for (const Exposure& e : in.explanation.exposures) {
    const int32_t micro = in.graph.op(e.op).micro;
    if (micro > 1 && micro < last) continue;
    for (Remedy& remedy : remedies.of(e)) {
      const auto same = std::find_if(trials.begin(), trials.end(), [&](const Trial& t) {
        return t.remedy.advice == remedy.advice;
      });
      const Exposure cause = remedy.cause.op.valid() ? remedy.cause : e;
      if (same != trials.end()) {
        if (std::exchange(same->last, &e) == &e) continue;
        same->finding.exposed_ns += cause.ns;
        same->finding.worth_ns += remedy.estimate_ns;
        continue;
      }
      Finding finding{cause, cause.ns, std::nullopt, remedy.estimate_ns, remedy.advice};
      trials.push_back({std::move(remedy), std::move(finding), &e});
    }
  }
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return a.finding.exposed_ns > b.finding.exposed_ns;
  });
  return trials;
}

/// Returns the replayed time of a step with this schedule; nullopt if the schedule cannot run.
std::optional<Nanoseconds> step_ns(const Graph& graph, const Schedule& schedule,
                                   const MakeReplayInput& make_input) {
  try {
    const LaneOrders orders = lane_orders(graph, schedule);
    Nanoseconds end = 0;
    for (const Span& s : replay(make_input(schedule, orders)).spans) end = std::max(end, s.end);
    return end;
  } catch (const Interrupted&) {
    throw;
  } catch (const RunError&) {  // the edges form a cycle, or a hold never ends
    return std::nullopt;
  }
}

void try_out(const FindingsInput& in, std::vector<Trial>& trials) {
  const std::optional<Nanoseconds> now = step_ns(in.graph, in.schedule, in.make_input);
  MOE_CHECK(now.has_value(),
            "findings: the unchanged schedule of graph '{}' cannot be replayed, but must be",
            in.graph.name);
  int left = in.max_replays;
  for (Trial& trial : trials) {
    if (!trial.remedy.change || left-- <= 0) continue;
    Schedule changed = in.schedule;
    trial.remedy.change(changed);
    const std::optional<Nanoseconds> then = step_ns(in.graph, changed, in.make_input);
    if (!then || *then >= *now) continue;
    trial.finding.gain_ns = trial.finding.worth_ns = *now - *then;
  }
  std::erase_if(trials, [](const Trial& t) { return t.finding.worth_ns <= 0; });
}

bool same_exposure(const Exposure& a, const Exposure& b) {
  return a.op == b.op && a.cause == b.cause && a.from == b.from && a.to == b.to;
}

/// Whether trial b is left out of the list because trial a, of the same group, is in it. If one of
/// the two is wide (for the whole group) and the other is not, the wide trial covers the other when
/// it is worth more than 1.1 times as much; else the other covers the wide one. If both are wide or
/// neither is, a covers b when both are for the same exposure and a is worth at least as much.
bool covers(const Trial& a, const Trial& b) {
  if (a.remedy.group != b.remedy.group) return false;
  const Nanoseconds x = a.finding.worth_ns, y = b.finding.worth_ns;
  if (a.remedy.wide != b.remedy.wide) {
    return a.remedy.wide ? x > y + y / 10 : x + x / 10 >= y;
  }
  return same_exposure(a.finding.exposure, b.finding.exposure) && x >= y;
}

}  // namespace

std::vector<Finding> findings(const FindingsInput& input) {
  const Remedies remedies(input);
  std::vector<Trial> trials = trials_of(input, remedies);
  try_out(input, trials);
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return a.finding.worth_ns > b.finding.worth_ns;
  });
  std::vector<Finding> found;
  for (size_t i = 0; i < trials.size(); ++i) {
    bool covered = false;
    for (size_t j = 0; j < trials.size() && !covered; ++j) {
      const bool both = covers(trials[i], trials[j]);  // if they cover each other, keep the first
      covered = i != j && covers(trials[j], trials[i]) && (j < i || !both);
    }
    if (!covered) found.push_back(trials[i].finding);
  }
  return found;
}

}  // namespace moe
