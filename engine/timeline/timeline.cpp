#include "engine/timeline/timeline.h"

namespace moe {

const char* provenance_name(Provenance provenance) {
  switch (provenance) {
    case Provenance::kSimulated:
      return "simulated";
    case Provenance::kEmulated:
      return "emulated";
    case Provenance::kMeasured:
      return "measured";
  }
  return "";
}

}  // namespace moe
