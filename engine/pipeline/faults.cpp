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

class Checker {
 public:
  Checker(const Table& table, const Shape& shape, bool spelled)
      : rows_(table.rows), shape_(shape), spelled_(spelled), found_(table.unknown) {
    for (size_t work = 0; work < (spelled ? 8 : 4); ++work) {
      seen_[work].resize(shape.index(shape.stages, 0));
    }
  }

  std::vector<Finding> run() {
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      int32_t entry = 0;
      for (const Action& a : rows_[rank]) {
        see(a, {static_cast<int32_t>(rank), entry});
        if (!a.beside) ++entry;
      }
    }
    for (int32_t stage = 0; stage < shape_.stages; ++stage) {
      for (int32_t micro = 0; micro < shape_.micro_batches; ++micro) {
        check_turns(stage, micro);
        if (!spelled_) continue;
        check_transfer({Work::kSendF, false, stage, micro}, Work::kRecvF);
        check_transfer({Work::kSendB, false, stage, micro}, Work::kRecvB);
      }
    }
    if (spelled_) check_order();
    return std::move(found_);
  }

 private:
  void add(const char* code, int64_t rank, const Action& action) {
    found_.push_back({code, rank, text_of(action)});
  }

  bool in_range(const Action& a) const {
    if (a.stage >= shape_.stages || a.micro >= shape_.micro_batches) return false;
    return !is_transfer(a.work) || (a.other() >= 0 && a.other() < shape_.stages);
  }

  Position& seen(const Action& a) {
    return seen_[static_cast<size_t>(a.work)][shape_.index(a.stage, a.micro)];
  }

  void see(const Action& a, Position at) {
    if (is_transfer(a.work) && !spelled_) return add("bad_action", at.rank, a);
    if (!in_range(a)) return add("out_of_range", at.rank, a);
    if (shape_.rank_of(a.stage, a.micro) != at.rank) add("wrong_rank", at.rank, a);
    if (seen(a).rank >= 0) return add("twice", at.rank, a);
    seen(a) = at;
  }

  void check_turns(int32_t stage, int32_t micro) {
    const auto action = [&](Work work) { return Action{work, false, stage, micro}; };
    const auto at = [&](Work work) { return seen(action(work)); };
    const auto there = [&](Work work) { return at(work).rank >= 0; };
    const bool split = there(Work::kI) || there(Work::kW);
    if (there(Work::kB) && split) add("whole_and_split", at(Work::kB).rank, action(Work::kB));
    if (!there(Work::kF)) add("missing", -1, action(Work::kF));
    for (const Work work : {Work::kB, Work::kI, Work::kW}) {
      const bool needed = (work == Work::kB) != split && !there(Work::kB);
      if (needed && !there(work)) add("missing", -1, action(work));
    }
    const auto check = [&](Work work, Work before, const char* code) {
      if (!there(work) || at(work).rank != at(before).rank) return;
      if (at(work).entry <= at(before).entry) add(code, at(work).rank, action(work));
    };
    check(Work::kB, Work::kF, "backward_before_forward");
    check(Work::kI, Work::kF, "backward_before_forward");
    check(Work::kW, Work::kI, "weight_before_input");
  }

  void check_transfer(const Action& send, Work receive) {
    if (!in_range(send)) return;
    const Action received{receive, false, send.other(), send.micro};
    const int64_t sender = shape_.rank_of(send.stage, send.micro);
    const int64_t receiver = shape_.rank_of(received.stage, send.micro);
    const bool sends = seen(send).rank >= 0, receives = seen(received).rank >= 0;
    if (!sends && (receives || sender != receiver)) add("send_missing", sender, send);
    if (!receives && (sends || sender != receiver)) add("receive_missing", receiver, received);
  }

  void check_order() {
    // For each sender and receiver their transfers in order, as the receiver names them.
    std::map<std::pair<int64_t, int64_t>, std::pair<Row, Row>> channels;
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t rank = static_cast<int64_t>(r);
      for (const Action& a : rows_[r]) {
        if (!is_transfer(a.work) || !in_range(a)) continue;
        const int64_t peer = shape_.rank_of(a.other(), a.micro);
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
      for (size_t k = 0; k < std::min(sent.size(), got.size()); ++k) {
        if (sent[k] == got[k]) continue;
        add("send_receive_order", ends.second, got[k]);
        break;
      }
    }
  }

  const std::vector<Row>& rows_;
  const Shape& shape_;
  const bool spelled_;
  std::array<std::vector<Position>, 8> seen_;  // [work][stage, micro-batch]
  std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> find_faults(const Table& table, const Shape& shape, bool spelled) {
  std::vector<Finding> found = Checker(table, shape, spelled).run();
  return found.empty() ? compose(table.rows, shape, {}, spelled).stuck : found;
}

}  // namespace moe::pipeline
