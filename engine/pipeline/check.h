// Finds what is wrong in a table, before anything is timed or run.
#pragma once

#include <vector>

#include "engine/pipeline/table.h"

namespace moe::pipeline {

/// Returns all that is wrong with the rows:
///   bad_action               a transfer, though transfers are not spelled out
///   out_of_range             no such stage or micro-batch, or no neighbour to transfer to
///   twice                    an action that an earlier cell has
///   wrong_rank               the rank does not hold the stage for this micro-batch
///   missing                  F; B where there is no backward at all, else I or W; has no rank
///   whole_and_split          B beside I or W of the same stage and micro-batch; names the B
///   backward_before_forward  B or I before its F on one rank, or in one pair with it
///   weight_before_input      W before its I on one rank
///   send_missing, receive_missing, send_receive_order
///       if transfers are spelled out: what the table lacks of a transfer between two ranks; for
///       each ordered pair of ranks the first receive that does not meet the send of its place
///       (sends have no tags)
///   deadlock                 where a rank waits for ever; only if nothing else is found
/// spelled: whether the rows have all transfers between ranks. A receive then waits for its send,
/// sends wait for nobody.
std::vector<Finding> find_faults(const std::vector<Row>& rows, const Shape& shape, bool spelled);

}  // namespace moe::pipeline
