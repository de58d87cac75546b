#include "engine/pipeline/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "engine/pipeline/timeline.h"

namespace moe::pipeline {
namespace {

constexpr std::string_view kPairEnd = ")OVERLAP_F_B";

bool take(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return false;
  text.remove_prefix(front.size());
  return true;
}

/// Takes a number from the front of the text. Numbers too large for any table become the largest.
bool take(std::string_view& text, int32_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument || text.starts_with('-')) return false;
  if (error != std::errc()) number = INT32_MAX;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, Action& action) {
  if (!take(text, action.stage)) return false;
  const std::string_view name = text.substr(0, text.find_first_of("0123456789"));
  const auto work = find_named<Work>(name);
  action.work = work.value_or(Work::kF);
  return work && take(text, name) && take(text, action.micro);
}

/// Appends the action or pair of a cell; returns whether the cell is one.
bool add_cell(std::string_view cell, Row& row) {
  Action first, second;
  first.beside = take(cell, "(");
  if (!take(cell, first)) return false;
  if (first.beside && !(take(cell, ";") && take(cell, second) && take(cell, kPairEnd) &&
                        first.work == Work::kF && second.work == Work::kB)) {
    return false;
  }
  if (!cell.empty()) return false;
  row.push_back(first);
  if (first.beside) row.push_back(second);
  return true;
}

/// Where a table has an action: its rank and the number of its entry; rank < 0: nowhere.
struct Position {
  int32_t rank = -1, entry = -1;
};

struct Checker {
  const std::vector<Row>& rows;
  const Shape& shape;
  const bool transfers;
  std::vector<Finding> found;
  std::array<std::vector<Position>, 8> seen = {};  // [work][stage, micro-batch]

  void run() {
    for (size_t w = 0; w < (transfers ? 8 : 4); ++w) seen[w].resize(shape.index(shape.stages, 0));
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
        if (!transfers) continue;
        check_transfer({Work::kSendF, false, stage, micro}, Work::kRecvF);
        check_transfer({Work::kSendB, false, stage, micro}, Work::kRecvB);
      }
    }
    if (transfers) check_order();
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
    if (is_transfer(a.work) && !transfers) return add("bad_action", position.rank, a);
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

Table parse_table(const std::vector<std::string>& rows) {
  Table table{.rows = std::vector<Row>(rows.size())};
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (std::string_view rest = rows[rank]; !rest.empty();) {
      const std::string_view cell = rest.substr(0, rest.find(','));
      if (!cell.empty() && !add_cell(cell, table.rows[rank])) {
        table.unknown.push_back({"bad_action", static_cast<int64_t>(rank), std::string(cell)});
      }
      rest.remove_prefix(std::min(cell.size() + 1, rest.size()));
    }
  }
  return table;
}

std::string text_of(const Action& action) {
  return fmt::format("{}{}{}", action.stage, name_of(action.work), action.micro);
}

std::string text_of(std::span<const Action> row) {
  std::string text;
  bool in_pair = false;
  for (const Action& action : row) {
    if (!text.empty()) text += in_pair ? ';' : ',';
    if (action.beside) text += '(';
    text += text_of(action);
    if (in_pair) text += kPairEnd;
    in_pair = action.beside;
  }
  return text;
}

Row row_of(const Turns& turns, int64_t rank, const Shape& shape) {
  Row row;
  for (const Turn& turn : turns) {
    row.push_back({turn.work, turn.beside, static_cast<int32_t>(shape.stage_of(rank, turn.chunk)),
                   turn.micro});
  }
  return row;
}

std::vector<Finding> find_faults(const Table& table, const Shape& shape, bool transfers) {
  Checker checker{table.rows, shape, transfers, table.unknown};
  checker.run();
  if (!checker.found.empty()) return checker.found;
  return compose(table.rows, shape, {}, transfers).stuck;
}

}  // namespace moe::pipeline
