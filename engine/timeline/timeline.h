// Timeline: what ran where and when, simulated or executed alike, and its provenance.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/units.h"
#include "engine/graph/graph.h"

namespace moe {

/// simulated: a cost model. emulated: real compute and bytes, the wire's time from a link model.
/// measured: nothing modelled.
enum class Provenance : uint8_t { kSimulated, kEmulated, kMeasured };
constexpr std::array<const char*, 3> names_of(Provenance) {
  return {"simulated", "emulated", "measured"};
}

struct Span {
  OpId op;
  int32_t rank = 0;
  LaneId lane;
  Nanoseconds post = 0;   // the rank was ready (a collective: had posted)
  Nanoseconds begin = 0;  // work or transfer began: a collective's when its last member posted
  Nanoseconds end = 0;
  Bytes bytes = 0;    // sent by this rank over the wire
  int32_t chunk = 0;  // of an op that is cut into chunks; a span each
};

/// A link carries so much from begin to end.
struct LinkSpan {
  std::string name;  // "nic_out 0.1": the node, and the NIC or device of it, from 0
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
  double bytes_per_s = 0;
  double capacity = 0;  // bytes per second
};

struct Timeline {
  std::vector<Span> spans;  // ordered by (begin, rank, lane, op)
  /// Where a network model knows them; ascending by begin for each link, idle times left out. Links
  /// of node 0 stand for those of all nodes where all do the same.
  std::vector<LinkSpan> links;
  int32_t num_ranks = 1;
  Provenance provenance = Provenance::kSimulated;
};

}  // namespace moe
