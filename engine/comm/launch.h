// How this process was started, as the launcher's environment variables say.
#pragma once

#include <cstdint>

namespace moe {

struct Launch {
  bool by_mpi = false;
  int64_t rank = 0;
  int64_t size = 0;  // 0: not told
};
Launch launch();

}  // namespace moe
