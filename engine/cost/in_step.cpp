#include "engine/cost/in_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/limits.h"
#include "engine/graph/op_def.h"

namespace moe {
namespace {

const char* phase_word(Phase phase) {
  if (phase == Phase::kForward || phase == Phase::kRecompute) return "forward";
  return phase == Phase::kBackward ? "backward" : "update";
}

}  // namespace

std::string step_group(const Graph& graph, OpId op) {
  const OpDef& def = graph.def(op);
  if (def.collective != Collective::kNone) return def.name;
  return fmt::format("{} {}", def.name, phase_word(graph.op(op).phase));
}

Nanoseconds InStep::of_compute(const std::string& group, Nanoseconds alone) const {
  const auto known = factors.find(group);
  const double factor = (known != factors.end() ? known->second : overall) * peers * slower;
  return checked_ns(static_cast<double>(alone) * factor, [&] {
    return fmt::format("a '{}' in a step, {:g} times as long as alone,", group, factor);
  });
}

Nanoseconds InStep::late_of(const std::string& group, double bytes) const {
  if (late.empty()) return 0;
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const Nanoseconds least = std::min_element(late.begin(), late.end(), less)->second;
  const auto known = late.find(group);
  if (known == late.end()) return least;
  const auto seen = late_bytes.find(group);
  const double share = seen != late_bytes.end() && seen->second > 0 ? bytes / seen->second : 1;
  return least + checked_ns(share * static_cast<double>(known->second - least), [&] {
           return fmt::format("the delay at the end of a '{}' of {:g} bytes", group, bytes);
         });
}

Nanoseconds InStep::of_collective(const std::string& group, double bytes, Nanoseconds alone) const {
  return checked_ns(std::max<Nanoseconds>(0, alone + late_of(group, bytes)),
                    [&] { return fmt::format("a '{}' in a step", group); });
}

std::string InStep::describe() const {
  std::string text = fmt::format(
      "x in-step factors from {}: compute x{:.3f} by kind, peers x{:.3f}", source, overall, peers);
  for (const auto& [group, ns] : late) {
    text += fmt::format(", {} {:+.0f} us", group, static_cast<double>(ns) / 1e3);
  }
  if (core_ns > 0) {
    text += fmt::format(
        ", during compute {:+.0f} us more, and {:.0f} us plus copying taken from compute",
        static_cast<double>(core_late_ns) / 1e3, static_cast<double>(core_ns) / 1e3);
  }
  return text;
}

}  // namespace moe
