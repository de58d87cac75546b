// Timeline: which op ran on which rank and lane, and when. Simulated and executed runs have the
// same form; Timeline::provenance says which it is. Metrics are in metrics.h, the file for
// Perfetto in chrome_trace.h.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/units.h"
#include "engine/graph/graph.h"

namespace moe {

/// simulated: all times come from a cost model. emulated: compute and bytes are real, but the time
/// of a transfer comes from a link model. measured: nothing is modelled.
enum class Provenance : uint8_t { kSimulated, kEmulated, kMeasured };
constexpr std::array<const char*, 3> names_of(Provenance) {
  return {"simulated", "emulated", "measured"};
}

/// One run of an op on a rank, or of one chunk of it.
struct Span {
  OpId op;
  int32_t rank = 0;
  LaneId lane;
  Nanoseconds post = 0;  // when the rank was ready; for a collective, when the rank posted it
  // When work began; for a collective, when its transfer began, which is after its last member had
  // posted it.
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  Bytes bytes = 0;    // bytes that this rank sent over links
  int32_t chunk = 0;  // from 0; an op that is cut into chunks has one span per chunk
};

/// A link carries `bytes_per_s` from `begin` to `end`.
struct LinkSpan {
  std::string name;  // "nic_out 0.1": the node and its NIC or device, counted from 0
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  double bytes_per_s = 0;
  double capacity = 0;  // bytes per second that the link can carry
};

/// From `at` on, a device has this number of bytes in use.
struct MemoryInUse {
  Nanoseconds at = 0;
  Bytes bytes = 0;
};

struct Timeline {
  std::vector<Span> spans;  // ordered by (begin, rank, lane, op)
  /// What links carried, if a network model computed it, else empty; for each link in ascending
  /// order of begin, without idle times. Only links of node 0 if all nodes have the same transfers.
  std::vector<LinkSpan> links;
  /// For each rank, the time in which its compute was ready but not launched by the host; empty: no
  /// host was simulated.
  std::vector<Nanoseconds> host_ns;
  int32_t num_ranks = 1;
  Provenance provenance = Provenance::kSimulated;
};

}  // namespace moe
