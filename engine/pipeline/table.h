// Schedules as text, in the form of PyTorch's CSV files, and what is wrong in them. A row per rank
// has cells "<stage><work><micro-batch>" such as 3F0 or 0SEND_F1 that commas separate, and pairs as
// (0F7;7B3)OVERLAP_F_B. An empty cell has no meaning.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/pipeline/turn.h"

namespace moe::pipeline {

/// A cell of a table, or half a pair. It names a stage, which may be on another rank.
struct Action {
  Work work = Work::kF;
  bool beside = false;  // as Turn::beside
  int32_t stage = 0, micro = 0;
  bool operator==(const Action&) const = default;

  /// The stage at the other end of a transfer, or that waits for the result of an F, B or I.
  int32_t other() const {
    return stage + (work == Work::kF || work == Work::kSendF || work == Work::kRecvB ? 1 : -1);
  }
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
  std::vector<Finding> unknown;  // cells that are no action
};

/// Reads rows without spaces.
Table parse_table(const std::vector<std::string>& rows);
std::string text_of(const Action& action);
std::string text_of(std::span<const Action> row);
Row row_of(const Turns& turns, int64_t rank, const Shape& shape);

/// Returns all that is wrong with the table. Codes of which there is more to say than their name:
///   bad_action               also a transfer, if the rows are without transfers
///   out_of_range             no such stage or micro-batch, or no neighbour to transfer to
///   missing                  F; B where there is no backward at all, else I or W; has no rank
///   whole_and_split          B beside I or W of the same stage and micro-batch; names the B
///   backward_before_forward  B or I before its F on one rank, or in one pair with it
///   send_missing, receive_missing, send_receive_order
///       with transfers alone, between two ranks; for each ordered pair of ranks the first receive
///       that does not meet the send of its place (sends have no tags)
///   deadlock                 where a rank waits for ever; only if nothing else is found
/// The others: twice, wrong_rank, weight_before_input. transfers: the rows have all transfers.
std::vector<Finding> find_faults(const Table& table, const Shape& shape, bool transfers);

}  // namespace moe::pipeline
