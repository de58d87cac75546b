// Which tensors share one storage because ops join them (OpDef::pieces), and where each lies in it.
// Not here: bytes and addresses; the memory plan gives a group its storage.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace moe {

struct JoinedTensors {
  /// Tensors of one dtype in one storage of so many elements.
  struct Group {
    std::vector<TensorId> members;  // ascending
    int64_t num_elements = 0;
  };

  /// Throws UserError naming op and tensor when a tensor would lie at two places.
  explicit JoinedTensors(const Graph& graph);

  std::vector<Group> groups;      // by their first member
  std::vector<int32_t> group_of;  // by tensor; -1: it shares with nobody
  std::vector<int64_t> offset;    // by tensor: its first element in the group's storage
};

/// Throws UserError naming op and tensor when a group could not be right on any schedule: a tensor
/// at two places; two ops that write the same elements, unless one op joins both as rows; rows of
/// a parameter, state or input, whose unused ones would be cleared; a tensor with others in its
/// storage that an op overwrites in place.
void check_joined(const Graph& graph);

}  // namespace moe
