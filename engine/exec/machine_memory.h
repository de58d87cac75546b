// How much more memory this process may allocate.
#pragma once

#include <string>

#include "engine/base/units.h"

namespace moe {

struct AvailableMemory {
  Bytes bytes;
  std::string limited_by;  // for example "the memory of its cgroup"
};

/// Returns the smallest of three limits: the machine's free memory, what the process's cgroup
/// leaves and what its address space (ulimit -v) leaves. A limit that cannot be read is ignored.
AvailableMemory available_memory();

}  // namespace moe
