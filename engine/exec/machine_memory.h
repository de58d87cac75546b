// How much memory this process may still take.
#pragma once

#include <string>

#include "engine/base/units.h"

namespace moe {

struct AvailableMemory {
  Bytes bytes;
  std::string limited_by;  // "the memory of its cgroup"
};

/// The least of what the machine has free, what the process's cgroup leaves and what its address
/// space leaves. A limit that cannot be read does not count.
AvailableMemory available_memory();

}  // namespace moe
