// What to do about exposed communication: remedies for the causes that explain() finds, each tried
// by replaying the schedule with it, the one that gains most first.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/analysis/explain.h"

namespace moe {

struct Finding {
  Exposure exposure;           // the longest of those that the remedy is for
  Nanoseconds exposed_ns = 0;  // all of them, summed over ranks
  /// What a step gets shorter by when replayed with the remedy; nullopt: it takes another plan.
  std::optional<Nanoseconds> gain_ns;
  Nanoseconds worth_ns = 0;  // gain_ns, or an estimate of it: the order of the list
  std::string advice;        // the remedy, with ops, lanes and stages
};

/// What a stage of the plan was told and did not do.
struct IdleStage {
  std::string name;
  std::string why;
  bool cuts = false;       // it would have cut transfers into parts, and changed nothing
  bool by_option = false;  // its options ask for nothing, or it forbids what nothing does
};

/// The input of a replay of another schedule of the same graph.
using MakeReplayInput = std::function<ReplayInput(const Schedule&, const LaneOrders&)>;

struct FindingsInput {
  const Graph& graph;
  const Schedule& schedule;
  const Explanation& explanation;
  MakeReplayInput make_input;
  std::vector<IdleStage> idle = {};
  int max_replays = 128;
};

/// Those with a gain, or with an estimate of one, the largest first; equals as the exposures stand.
std::vector<Finding> findings(const FindingsInput& input);

/// A sentence: what was exposed, by which op, edge and stage.
std::string cause_text(const Graph& graph, const Schedule& schedule, const Exposure& exposure);

}  // namespace moe
