// Which turns of a step of many micro-batches are like which of a step of few, under one schedule.
#pragma once

#include "engine/pipeline/table.h"

namespace moe::pipeline {

/// An entry of the step of few micro-batches; reach: so many entries before and behind are alike
/// too, at most kReach, to which the ends of both rows count.
struct Like {
  static constexpr int32_t kReach = 8;
  int32_t entry = -1, reach = -1;  // -1: there is none
};

/// Returns, for each entry of `many`, the entry of `few` on the same rank that is most like it: it
/// has the same kinds of turns of the same stages, which are the first or the last of their stage
/// or not, and a backward which directly follows its own forward or not.
std::vector<std::vector<Like>> alike(const std::vector<Row>& few, const std::vector<Row>& many);

}  // namespace moe::pipeline
