#include <map>
#include <utility>

#include "engine/pipeline/table.h"
#include "engine/pipeline/timeline.h"

namespace moe::pipeline {
namespace {

/// Where a table has an action: its rank and the number of its entry; rank < 0: nowhere.
struct Position {
  int32_t rank = -1, entry = -1;
};

struct Checker {
  const std::vector<Row>& rows;
  const Shape& shape;
  const bool spelled;
  std::vector<Finding> found;
  std::array<std::vector<Position>, 8> seen = {};  // [work][stage, micro-batch]

  void run() {
    for (size_t w = 0; w < (spelled ? 8 : 4); ++w) seen[w].resize(shape.index(shape.stages, 0));
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      int32_t entry = 0;
      for (const Action& a : rows[rank]) {
        see(a, {static_cast<int32_t>(rank), entry});
        if (!a.beside) ++entry;
      }
    }
    for (int32_t stage = 0; stage < shape.stages; ++stage) {
      for (int32_t micro = 0; micro < shape.micro_batches; ++micro) {
        check_turns(stage, micro);
        if (!spelled) continue;
        check_transfer({Work::kSendF, false, stage, micro}, Work::kRecvF);
        check_transfer({Work::kSendB, false, stage, micro}, Work::kRecvB);
      }
    }
    if (spelled) check_order();
  }

  void add(const char* code, int64_t rank, const Action& action) {
    found.push_back({code, rank, text_of(action)});
  }

  bool in_range(const Action& a) const {
    if (a.stage >= shape.stages || a.micro >= shape.micro_batches) return false;
    return !is_transfer(a.work) || (a.other() >= 0 && a.other() < shape.stages);
  }

  Position& at(const Action& a) {
    return seen[static_cast<size_t>(a.work)][shape.index(a.stage, a.micro)];
  }

  void see(const Action& a, Position position) {
    if (is_transfer(a.work) && !spelled) return add("bad_action", position.rank, a);
    if (!in_range(a)) return add("out_of_range", position.rank, a);
    if (shape.rank_of(a.stage, a.micro) != position.rank) add("wrong_rank", position.rank, a);
    if (at(a).rank >= 0) return add("twice", position.rank, a);
    at(a) = position;
  }

  void check_turns(int32_t stage, int32_t micro) {
    const auto action = [&](Work work) { return Action{work, false, stage, micro}; };
    const auto there = [&](Work work) { return at(action(work)).rank >= 0; };
    const auto must_follow = [&](Work work, Work before, const char* code) {
      const Position own = at(action(work)), other = at(action(before));
      if (own.rank < 0 || own.rank != other.rank || own.entry > other.entry) return;
      add(code, own.rank, action(work));
    };
    const bool whole = there(Work::kB), split = there(Work::kI) || there(Work::kW);
    if (!there(Work::kF)) add("missing", -1, action(Work::kF));
    if (!whole && !split) add("missing", -1, action(Work::kB));
    for (const Work work : {Work::kI, Work::kW}) {
      if (!whole && split && !there(work)) add("missing", -1, action(work));
    }
    if (whole && split) add("whole_and_split", at(action(Work::kB)).rank, action(Work::kB));
    must_follow(Work::kB, Work::kF, "backward_before_forward");
    must_follow(Work::kI, Work::kF, "backward_before_forward");
    must_follow(Work::kW, Work::kI, "weight_before_input");
  }

  void check_transfer(const Action& send, Work receive) {
    if (!in_range(send)) return;
    const Action received{receive, false, send.other(), send.micro};
    const int64_t sender = shape.rank_of(send.stage, send.micro);
    const int64_t receiver = shape.rank_of(received.stage, send.micro);
    const bool sends = at(send).rank >= 0, receives = at(received).rank >= 0;
    if (!sends && (receives || sender != receiver)) add("send_missing", sender, send);
    if (!receives && (sends || sender != receiver)) add("receive_missing", receiver, received);
  }

  void check_order() {
    // For each sender and receiver their transfers in order, as the receiver names them.
    std::map<std::pair<int64_t, int64_t>, std::pair<Row, Row>> channels;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int64_t rank = static_cast<int64_t>(r);
      for (const Action& a : rows[r]) {
        if (!is_transfer(a.work) || !in_range(a)) continue;
        const int64_t peer = shape.rank_of(a.other(), a.micro);
        if (a.work == Work::kRecvF || a.work == Work::kRecvB) {
          channels[{peer, rank}].second.push_back(a);
        } else {
          const Work receive = a.work == Work::kSendF ? Work::kRecvF : Work::kRecvB;
          channels[{rank, peer}].first.push_back({receive, false, a.other(), a.micro});
        }
      }
    }
    for (const auto& [ends, both] : channels) {
      const auto& [sent, got] = both;
      size_t k = 0;
      while (k < std::min(sent.size(), got.size()) && sent[k] == got[k]) ++k;
      if (k < std::min(sent.size(), got.size())) add("send_receive_order", ends.second, got[k]);
    }
  }
};

}  // namespace

std::vector<Finding> find_faults(const Table& table, const Shape& shape, bool spelled) {
  Checker checker{table.rows, shape, spelled, table.unknown};
  checker.run();
  if (!checker.found.empty()) return checker.found;
  return compose(table.rows, shape, {}, spelled).stuck;
}

}  // namespace moe::pipeline
