#include "engine/passes/stage_order.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "engine/passes/pipeline.h"

namespace moe {
namespace {

/// What a stage declares, and its place among stages that are free to run in any order.
struct Declared {
  StageKind kind;
  Facts needs, gives;
  bool nothing;   // a function that declares nothing
  bool unlisted;  // a pass that no system lists (PassDef::runs)
  size_t place;
};

Declared declared(const Stage& stage, size_t place_before) {
  if (!stage.is_built_in()) {
    return {stage.kind, stage.needs, stage.gives, stage.needs.empty() && stage.gives.empty(),
            false,      place_before};
  }
  const PassDef& pass = builtin_pass(stage.name);
  const std::vector<PassDef>& all = builtin_passes();
  const auto place = static_cast<size_t>(&pass - all.data()) + 1;
  return {pass.kind, pass.needs, pass.gives, false, pass.runs != nullptr, place};
}

/// The stages of one kind as nodes of a graph: before[b] holds each stage that runs before b, with
/// the reason.
class Order {
 public:
  explicit Order(const std::vector<Stage>& stages) : stages_(stages) {
    size_t place = 0;
    for (const Stage& stage : stages) {
      declared_.push_back(declared(stage, place));
      place = declared_.back().place;
    }
    before_.resize(stages.size());
    for (size_t b = 0; b < stages.size(); ++b) add_needs(b);
    for (size_t b = 0; b < stages.size(); ++b) add_neighbours(b);
  }

  void append(StageKind kind, std::vector<Stage>& result) const {
    std::vector<size_t> left;
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (declared_[i].kind == kind) left.push_back(i);
    }
    while (!left.empty()) {
      const auto waits = [&](size_t b) {
        return std::any_of(before_[b].begin(), before_[b].end(), [&](const Reason& r) {
          return std::find(left.begin(), left.end(), r.stage) != left.end();
        });
      };
      std::vector<size_t> free;
      std::copy_if(left.begin(), left.end(), std::back_inserter(free),
                   [&](size_t i) { return !waits(i); });
      if (free.empty()) refuse(left);
      const size_t next = *std::min_element(free.begin(), free.end(), [&](size_t a, size_t b) {
        return std::pair(declared_[a].place, a) < std::pair(declared_[b].place, b);
      });
      result.push_back(stages_[next]);
      std::erase(left, next);
    }
  }

 private:
  struct Reason {
    size_t stage;
    std::string why;
  };

  void add_needs(size_t b) {
    for (const Fact fact : declared_[b].needs) {
      for (size_t a = 0; a < stages_.size(); ++a) {
        const Facts& gives = declared_[a].gives;
        if (a == b || declared_[a].kind != declared_[b].kind ||
            std::find(gives.begin(), gives.end(), fact) == gives.end()) {
          continue;
        }
        before_[b].push_back(
            {a, fmt::format("it gives '{}', which '{}' needs", name_of(fact), stages_[b].name)});
      }
    }
  }

  /// Keeps a function that declares nothing between its neighbours of the same kind in the list.
  void add_neighbours(size_t at) {
    if (!declared_[at].nothing) return;
    const auto same = [&](size_t i) {
      return declared_[i].kind == declared_[at].kind && !declared_[i].unlisted;
    };
    const std::string why = fmt::format(
        "'{}' declares neither needs nor gives, so it runs where it is listed", stages_[at].name);
    for (size_t i = at; i-- > 0;) {
      if (!same(i)) continue;
      before_[at].push_back({i, why});
      break;
    }
    for (size_t i = at + 1; i < stages_.size(); ++i) {
      if (!same(i)) continue;
      before_[i].push_back({at, why});
      break;
    }
  }

  /// Throws UserError: the stages `left` wait for each other.
  [[noreturn]] void refuse(const std::vector<size_t>& left) const {
    std::vector<size_t> path;
    size_t at = left[0];
    while (std::find(path.begin(), path.end(), at) == path.end()) {
      path.push_back(at);
      at = std::find_if(before_[at].begin(), before_[at].end(), [&](const Reason& r) {
             return std::find(left.begin(), left.end(), r.stage) != left.end();
           })->stage;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), at));
    path.push_back(at);
    std::vector<std::string> reasons;
    for (size_t i = 0; i + 1 < path.size(); ++i) {
      const auto why = std::find_if(before_[path[i]].begin(), before_[path[i]].end(),
                                    [&](const Reason& r) { return r.stage == path[i + 1]; });
      reasons.push_back(fmt::format("'{}' must run before '{}' ({})", stages_[path[i + 1]].name,
                                    stages_[path[i]].name, why->why));
    }
    throw user_error("the stages ask for opposite orders: {}", fmt::join(reasons, ", and "));
  }

  const std::vector<Stage>& stages_;
  std::vector<Declared> declared_;
  std::vector<std::vector<Reason>> before_;
};

}  // namespace

std::vector<Stage> in_order(const std::vector<Stage>& stages) {
  const Order order(stages);
  std::vector<Stage> result;
  for (int kind = 0; kind < static_cast<int>(StageKind::kUnset); ++kind) {
    order.append(static_cast<StageKind>(kind), result);
  }
  return result;
}

}  // namespace moe
