// What the readers and writers of other tools' traces (trace_formats.h) share: the lines of a file,
// choices gathered by step, layer and rank in any order, and the tokens of a trace in order.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/errors.h"
#include "engine/routing/formats/trace_formats.h"

namespace moe {

/// The choices of one step, layer and rank; `where` is the line that the last of them came from.
struct Batch {
  std::vector<int64_t> experts;  // [tokens, k]
  std::string where;
};
using BatchKey = std::tuple<int64_t, int64_t, int64_t>;  // step, layer (block), rank
using Batches = std::map<BatchKey, Batch>;

/// Returns the values that occur in place I of the keys of a map, ascending.
template <size_t I, class Map>
std::vector<int64_t> values_of(const Map& map) {
  std::set<int64_t> values;
  for (const auto& [key, value] : map) values.insert(std::get<I>(key));
  return {values.begin(), values.end()};
}

/// Returns a trace of the steps, layers and ranks that occur, ascending. experts = 0 means one more
/// than the highest expert that occurs. Throws UserError when there is nothing, and when, in a step
/// and rank, a layer is missing or has another number of tokens than the first layer.
Trace trace_of(const Batches& batches, int64_t experts, int64_t k, const std::string& source);

/// Calls f(line, "file:3") for every line that is not empty, with its number in the file.
template <class F>
void each_line(const NamedText& file, F f) {
  int64_t number = 0;
  for (size_t begin = 0; begin < file.text.size();) {
    const size_t end = std::min(file.text.find('\n', begin), file.text.size());
    std::string_view line = file.text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!line.empty()) f(line, fmt::format("{}:{}", file.name, number));
  }
}

/// Throws UserError unless the trace has this step and layer, from 0.
void check_record(const Trace& t, int64_t step, int64_t layer);

/// Calls f(iterator to the first choice) for every token with choices, in order. format: the name
/// of the format that needs them. Throws UserError for a token with 1 to k - 1 choices and for a
/// trace with only counts.
template <class F>
void each_token(const Trace& t, int64_t record, int64_t rank, const char* format, F f) {
  if (t.choices.empty() && t.tokens > 0) {
    throw user_error("the trace has only counts, but the format {} needs the choices of each token",
                     format);
  }
  for (int64_t i = 0; i < t.tokens; ++i) {
    const auto first = t.choices.begin() + ((record * t.ranks + rank) * t.tokens + i) * t.k;
    const auto none = std::count(first, first + t.k, kNoExpert);
    if (none == t.k) continue;
    if (none > 0) {
      throw user_error(
          "step {}, layer {}, rank {}, token {}: has {} of {} choices; the format {} needs all "
          "choices of a token, or none",
          record / t.layers, record % t.layers, rank, i, t.k - none, t.k, format);
    }
    f(first);
  }
}

}  // namespace moe
