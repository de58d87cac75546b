#include "engine/pipeline/check.h"

#include <map>
#include <utility>

#include "engine/pipeline/timeline.h"

namespace moe::pipeline {
namespace {

/// Where a table has an action; at < 0: nowhere.
struct Position {
  int32_t rank = -1, at = -1;
};

class Checker {
 public:
  Checker(const std::vector<Row>& rows, const Shape& shape, bool spelled)
      : rows_(rows), shape_(shape), spelled_(spelled) {
    for (size_t work = 0; work < (spelled ? 8 : 4); ++work) {
      seen_[work].resize(shape.index(shape.stages, 0));
    }
  }

  std::vector<Finding> run() {
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      for (size_t at = 0; at < rows_[rank].size(); ++at) {
        see(rows_[rank][at], static_cast<int32_t>(rank), static_cast<int32_t>(at));
      }
    }
    for (int32_t stage = 0; stage < shape_.stages; ++stage) {
      for (int32_t micro = 0; micro < shape_.micro_batches; ++micro) {
        check_turns(stage, micro);
        if (spelled_) {
          check_transfer(stage, stage + 1, micro, Work::kSendF, Work::kRecvF);
          check_transfer(stage, stage - 1, micro, Work::kSendB, Work::kRecvB);
        }
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
    const bool before = a.work == Work::kRecvF || a.work == Work::kSendB;
    return !is_transfer(a.work) || (before ? a.stage > 0 : a.stage + 1 < shape_.stages);
  }

  void see(const Action& a, int32_t rank, int32_t at) {
    if (is_transfer(a.work) && !spelled_) return add("bad_action", rank, a);
    if (!in_range(a)) return add("out_of_range", rank, a);
    Position& seen = position(a.work, a.stage, a.micro);
    if (shape_.rank_of(a.stage, a.micro) != rank) add("wrong_rank", rank, a);
    if (seen.at >= 0) return add("twice", rank, a);
    seen = {rank, at};
  }

  Position& position(Work work, int64_t stage, int64_t micro) {
    return seen_[static_cast<size_t>(work)][shape_.index(stage, micro)];
  }

  void check_turns(int32_t stage, int32_t micro) {
    const auto at = [&](Work work) { return position(work, stage, micro); };
    const auto action = [&](Work work) { return Action{work, false, stage, micro}; };
    const Position f = at(Work::kF), b = at(Work::kB), i = at(Work::kI), w = at(Work::kW);
    if (f.at < 0) add("missing", -1, action(Work::kF));
    if (b.at < 0 && i.at < 0 && w.at < 0) {
      add("missing", -1, action(Work::kB));
    } else if (b.at < 0) {
      if (i.at < 0) add("missing", -1, action(Work::kI));
      if (w.at < 0) add("missing", -1, action(Work::kW));
    } else if (i.at >= 0 || w.at >= 0) {
      add("whole_and_split", b.rank, action(Work::kB));
    }
    const auto before = [](const Position& x, const Position& y) {
      return x.at >= 0 && y.at >= 0 && x.rank == y.rank && x.at < y.at;
    };
    const bool paired = before(f, b) && b.at == f.at + 1 &&
                        rows_[static_cast<size_t>(f.rank)][static_cast<size_t>(f.at)].beside;
    if (before(b, f) || paired) {
      add("backward_before_forward", b.rank, action(Work::kB));
    }
    if (before(i, f)) add("backward_before_forward", i.rank, action(Work::kI));
    if (before(w, i)) add("weight_before_input", w.rank, action(Work::kW));
  }

  /// Checks the transfer from stage to stage `to`, if there is one between two ranks.
  void check_transfer(int32_t stage, int32_t to, int32_t micro, Work send, Work receive) {
    if (to < 0 || to >= shape_.stages) return;
    const int64_t sender = shape_.rank_of(stage, micro), receiver = shape_.rank_of(to, micro);
    const bool needed = sender != receiver;
    const bool sent = position(send, stage, micro).at >= 0;
    const bool received = position(receive, to, micro).at >= 0;
    if (!sent && (needed || received)) add("send_missing", sender, {send, false, stage, micro});
    if (!received && (needed || sent))
      add("receive_missing", receiver, {receive, false, to, micro});
  }

  void check_order() {
    // For each sender and receiver their transfers in order, as the receiver names them.
    std::map<std::pair<int64_t, int64_t>, std::pair<Row, Row>> channels;
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t rank = static_cast<int64_t>(r);
      for (const Action& a : rows_[r]) {
        if (!is_transfer(a.work) || !in_range(a)) continue;
        const bool sends = a.work == Work::kSendF || a.work == Work::kSendB;
        const bool activation = a.work == Work::kSendF || a.work == Work::kRecvF;
        const int32_t other = a.stage + (sends == activation ? 1 : -1);
        const int64_t peer = shape_.rank_of(other, a.micro);
        const Action received{activation ? Work::kRecvF : Work::kRecvB, false,
                              sends ? other : a.stage, a.micro};
        auto& [sent, got] = channels[sends ? std::pair(rank, peer) : std::pair(peer, rank)];
        (sends ? sent : got).push_back(received);
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

std::vector<Finding> find_faults(const std::vector<Row>& rows, const Shape& shape, bool spelled) {
  std::vector<Finding> found = Checker(rows, shape, spelled).run();
  return found.empty() ? find_deadlock(rows, shape, spelled) : found;
}

}  // namespace moe::pipeline
