// Findings: what could be done about exposed communication. For the causes that explain() found,
// each possible remedy is tried by replaying the changed schedule, or, if the remedy needs another
// plan, its gain is estimated. Findings are sorted by gain, the largest first.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/analysis/explain.h"

namespace moe {

struct Finding {
  Exposure exposure;           // the longest of the exposures that the remedy would shorten
  Nanoseconds exposed_ns = 0;  // the sum of these exposures over all ranks
  /// By how much the remedy shortens a replayed step; nullopt for a remedy that needs another plan
  /// and therefore cannot be replayed.
  std::optional<Nanoseconds> gain_ns;
  Nanoseconds worth_ns = 0;  // gain_ns, or an estimate of it; the list is sorted by it
  std::string advice;        // the remedy in words, with ops, lanes and stages
};

/// A stage of the plan that had no effect, or less effect than its options requested.
struct IdleStage {
  std::string name;
  std::string why;         // the reason, in words
  bool cuts = false;       // a stage that cuts transfers into parts, and that changed nothing
  bool by_option = false;  // true: an option value that changes nothing, or PassDef::forbids
};

/// Returns the input to replay another schedule of the same graph.
using MakeReplayInput = std::function<ReplayInput(const Schedule&, const LaneOrders&)>;

struct FindingsInput {
  const Graph& graph;
  const Schedule& schedule;
  const Explanation& explanation;
  MakeReplayInput make_input;
  std::vector<IdleStage> idle = {};
  int max_replays = 128;
};

/// Returns the findings whose worth_ns is above 0, the largest first; among equal ones, that with
/// the longest exposed_ns first. Of remedies that do about the same, only one is returned.
std::vector<Finding> findings(const FindingsInput& input);

}  // namespace moe
