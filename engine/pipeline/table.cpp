#include "engine/pipeline/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

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

}  // namespace moe::pipeline
