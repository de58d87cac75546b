// Rows and times of small pipelines for the cases of this folder.
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "engine/pipeline/check.h"
#include "engine/pipeline/schedules.h"
#include "engine/pipeline/timeline.h"

namespace moe::test {

struct Pipeline {
  pipeline::Shape shape;
  std::vector<pipeline::Row> rows;

  pipeline::Timeline times(const pipeline::Costs& costs) const {
    return compose(rows, shape, costs);
  }
};

/// Returns the rows of a schedule; throws as it does for numbers for which there is none.
inline Pipeline scheduled(const std::string& name, const pipeline::Query& q) {
  for (const pipeline::ScheduleDef& def : pipeline::schedules()) {
    if (def.name != name) continue;
    Pipeline p{{q.ranks, q.ranks * q.chunks, q.micro_batches, def.placing}, {}};
    for (int64_t rank = 0; rank < q.ranks; ++rank) {
      p.rows.push_back(row_of(def.turns(q, rank), rank, p.shape));
    }
    return p;
  }
  throw user_error("no schedule {}", name);
}

inline Pipeline tabled(const std::string& text, const pipeline::Shape& shape) {
  return {shape, pipeline::parse_table(text, shape.ranks).rows};
}

/// Costs with the same times in all stages.
inline pipeline::Costs alike(int64_t stages, double f, double i, double w) {
  const auto all = [stages](double time) {
    return std::vector<double>(static_cast<size_t>(stages), time);
  };
  return {.f = all(f), .i = all(i), .w = all(w)};
}

/// Returns the code of the UserError that f() throws; "" if it throws none.
template <class F>
std::string code_of(F&& f) {
  try {
    f();
  } catch (const UserError& e) {
    const std::string text = e.what();
    return text.substr(0, text.find(':'));
  }
  return "";
}

}  // namespace moe::test
