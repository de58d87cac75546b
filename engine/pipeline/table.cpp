#include "engine/pipeline/table.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/base/errors.h"

namespace moe::pipeline {
namespace {

constexpr std::string_view kPairEnd = ")OVERLAP_F_B";

/// Returns the parts of the text between separators, without spaces.
std::vector<std::string> cells_of(std::string_view text, char separator) {
  std::vector<std::string> cells(1);
  for (const char c : text) {
    if (c == separator) {
      cells.emplace_back();
    } else if (c != ' ' && c != '\t' && c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

/// Takes a number from the front of the text. Numbers too large for any table become the largest.
std::optional<int32_t> take_number(std::string_view& text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument || text.starts_with('-')) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return error == std::errc() ? number : INT32_MAX;
}

std::optional<Action> action_of(std::string_view cell) {
  const std::optional<int32_t> stage = take_number(cell);
  const size_t digits = cell.find_first_of("0123456789");
  if (!stage || digits == std::string_view::npos) return std::nullopt;
  const std::optional<Work> work = find_named<Work>(cell.substr(0, digits));
  cell.remove_prefix(digits);
  const std::optional<int32_t> micro = take_number(cell);
  if (!work || !micro || !cell.empty()) return std::nullopt;
  return Action{.work = *work, .stage = *stage, .micro = *micro};
}

/// Appends the action or pair of a cell; returns whether the cell is one.
bool add_cell(std::string_view cell, Row& row) {
  if (!cell.starts_with('(')) {
    const std::optional<Action> action = action_of(cell);
    if (action) row.push_back(*action);
    return action.has_value();
  }
  const size_t half = cell.find(';');
  if (!cell.ends_with(kPairEnd) || half == std::string_view::npos) return false;
  std::optional<Action> first = action_of(cell.substr(1, half - 1));
  const std::optional<Action> second =
      action_of(cell.substr(half + 1, cell.size() - half - 1 - kPairEnd.size()));
  if (!first || !second || first->work != Work::kF || second->work != Work::kB) return false;
  first->beside = true;
  row.push_back(*first);
  row.push_back(*second);
  return true;
}

bool is_blank(const std::vector<std::string>& cells) {
  return cells.size() == 1 && cells[0].empty();
}

/// Returns the cells of each line that is no comment.
std::vector<std::vector<std::string>> lines_of(std::string_view text) {
  std::vector<std::vector<std::string>> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    std::vector<std::string> cells = cells_of(line.substr(0, line.find('#')), ',');
    const bool comment = line.find('#') != std::string_view::npos && is_blank(cells);
    if (!comment) lines.push_back(std::move(cells));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void append(std::string& text, const Action& action) {
  const auto number = [&](int32_t value) {
    char digits[12];
    text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  };
  number(action.stage);
  text += name_of(action.work);
  number(action.micro);
}

}  // namespace

Table parse_table(std::string_view text, int64_t ranks) {
  std::vector<std::vector<std::string>> lines = lines_of(text);
  if (static_cast<int64_t>(lines.size()) != ranks) std::erase_if(lines, is_blank);
  if (lines.empty()) throw user_error("the table has no rows; give a line per rank");
  if (ranks == 0) ranks = static_cast<int64_t>(lines.size());
  if (static_cast<int64_t>(lines.size()) > ranks) {
    throw user_error("the table has {} rows for {} ranks; give a line per rank", lines.size(),
                     ranks);
  }
  Table table{.rows = std::vector<Row>(static_cast<size_t>(ranks))};
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    for (const std::string& cell : lines[rank]) {
      if (!cell.empty() && !add_cell(cell, table.rows[rank])) {
        table.unknown.push_back({"bad_action", static_cast<int64_t>(rank), cell});
      }
    }
  }
  return table;
}

void append_entry(std::string& text, const Row& row, size_t at) {
  if (!row[at].beside) return append(text, row[at]);
  text += '(';
  append(text, row[at]);
  text += ';';
  append(text, row[at + 1]);
  text += kPairEnd;
}

std::string text_of(const Action& action) {
  std::string text;
  append(text, action);
  return text;
}

std::string entry_text(const Row& row, size_t at) {
  std::string text;
  append_entry(text, row, at);
  return text;
}

std::string text_of(const Row& row) {
  std::string text;
  for (size_t at = 0; at < row.size(); at += row[at].beside ? 2 : 1) {
    if (at > 0) text += ',';
    append_entry(text, row, at);
  }
  return text;
}

Row row_of(const Turns& turns, int64_t rank, const Shape& shape) {
  Row row;
  row.reserve(turns.size());
  for (const Turn& turn : turns) {
    row.push_back({turn.work, turn.beside, static_cast<int32_t>(shape.stage_of(rank, turn.chunk)),
                   turn.micro});
  }
  return row;
}

}  // namespace moe::pipeline
