// Turns of a pipeline: what its ranks do with the micro-batches of one step, in which order; and
// the schedules of the engine. Further ones are Lua files (scripts/moe/pipelines).
//
// A model is cut into stages, which pipeline ranks hold; a chunk is the number of a stage on its
// rank. All numbers count from 0. How long turns take is in timeline.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/names.h"

namespace moe::pipeline {

/// F: the forward, I: the gradient of the input, W: that of the weights, B: both as one. The others
/// are transfers of an activation (F) or its gradient (B), which only tables spell out (table.h).
enum class Work : uint8_t { kF, kB, kI, kW, kSendF, kRecvF, kSendB, kRecvB };
constexpr std::array<const char*, 8> names_of(Work) {
  return {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};
}
constexpr bool is_transfer(Work work) {
  return work >= Work::kSendF;
}

/// Which rank holds stage s. kLoop: s mod P. kV: stages go down the ranks and back. kTwoWay: each
/// rank holds two of P stages; s for the first half of the micro-batches, P-1-s for the second.
enum class Placing : uint8_t { kLoop, kV, kTwoWay };
constexpr std::array<const char*, 3> names_of(Placing) {
  return {"loop", "v", "two_way"};
}

struct Turn {
  Work work;  // no transfer
  int32_t micro = 0, chunk = 0;
  bool beside = false;  // runs together with the next turn: an F with the B after it
};
using Turns = std::vector<Turn>;

struct Shape {
  int64_t ranks = 1, stages = 1, micro_batches = 1;
  Placing placing = Placing::kLoop;

  bool goes_up(int64_t chunk) const { return placing != Placing::kLoop && chunk % 2 != 0; }
  int64_t rank_of(int64_t stage, int64_t micro) const {
    const int64_t way = placing == Placing::kTwoWay ? micro >= micro_batches / 2 : stage / ranks;
    return goes_up(way) ? ranks - 1 - stage % ranks : stage % ranks;
  }
  int64_t stage_of(int64_t rank, int64_t chunk) const {
    const int64_t first = placing == Placing::kTwoWay ? 0 : chunk * ranks;
    return first + (goes_up(chunk) ? ranks - 1 - rank : rank);
  }
  size_t index(int64_t stage, int64_t micro) const {
    return static_cast<size_t>(stage * micro_batches + micro);
  }
};

/// The numbers for which a schedule is asked, each at least 1.
struct Query {
  int64_t ranks = 1, chunks = 1, micro_batches = 1;
  int64_t group = 1;  // micro-batches that pass one chunk before the next; see `grouped`
};

struct ScheduleDef {
  std::string name, doc;
  int64_t chunks;     // stages per rank unless asked for others
  bool fixed_chunks;  // whether only so many are possible
  bool grouped;       // has groups, from ranks to micro_batches, the last not below ranks
  Placing placing;
  /// Throws UserError "code: reason" if the schedule does not exist for these numbers.
  Turns (*turns)(const Query& query, int64_t rank);
};

const std::vector<ScheduleDef>& schedules();

}  // namespace moe::pipeline
