// Groups of tensors that share one storage because ops join them (OpDef::pieces), and the place of
// each tensor in the storage of its group. Addresses are in the memory plan.
#pragma once

#include <vector>

#include "engine/graph/graph.h"

namespace moe {

struct JoinedTensors {
  /// Tensors of one dtype that share one storage of num_elements elements.
  struct Group {
    std::vector<TensorId> members;  // ascending
    int64_t num_elements = 0;
  };

  /// Throws UserError naming op and tensor when a tensor is joined at two places of a storage.
  explicit JoinedTensors(const Graph& graph);

  std::vector<Group> groups;      // ordered by their first member
  std::vector<int32_t> group_of;  // indexed by tensor; -1: the tensor is in no group
  std::vector<int64_t> offset;    // indexed by tensor: its first element in the group's storage
};

/// Throws UserError naming op and tensor when no schedule could make a group correct: a tensor has
/// two places; two ops write the same elements, unless one op joins both as rows of parts or
/// both copy experts; rows of
/// a parameter, state or input are joined, so unused rows in it would be cleared; an op overwrites
/// in place a tensor whose storage contains other tensors.
void check_joined(const Graph& graph);

}  // namespace moe
