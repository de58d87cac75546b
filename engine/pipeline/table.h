// Schedules as text, in the form of PyTorch's CSV files (torch/distributed/pipelining): a line per
// rank, with cells "<stage><work><micro-batch>" such as 3F0 that commas separate, pairs as
// (0F7;7B3)OVERLAP_F_B, and transfers, where they are spelled out, as 0SEND_F1. An empty cell is an
// idle slot without meaning. Added here: spaces, and comments from # to the end of the line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/pipeline/turn.h"

namespace moe::pipeline {

/// A cell of a table, or half a pair. Unlike a turn it names a stage, which in a wrong table may be
/// on another rank.
struct Action {
  Work work;
  bool beside = false;  // as Turn::beside
  int32_t stage = 0, micro = 0;
  bool operator==(const Action&) const = default;
};
using Row = std::vector<Action>;

/// What is wrong in a table. rank: -1 if there is none; action: the cell.
struct Finding {
  std::string code;
  int64_t rank = -1;
  std::string action;
  auto operator<=>(const Finding&) const = default;
};

struct Table {
  std::vector<Row> rows;         // one per rank
  std::vector<Finding> unknown;  // cells that are no action ("bad_action")
};

/// Reads a table. Lines without any cell or comma count as rows only if there are exactly `ranks`
/// lines apart from comments; missing rows are empty. ranks: 0, as many as there are rows. Throws
/// UserError if there are no rows, or more than `ranks`.
Table parse_table(std::string_view text, int64_t ranks);

std::string text_of(const Action& action);
/// Returns the text of the entry that begins with row[at], an action or a pair; appends it.
std::string entry_text(const Row& row, size_t at);
void append_entry(std::string& text, const Row& row, size_t at);
/// Returns the row as a line of a table.
std::string text_of(const Row& row);

/// Returns a rank's turns as the row of a table. Requires: chunks below shape.chunks().
Row row_of(const Turns& turns, int64_t rank, const Shape& shape);

}  // namespace moe::pipeline
