#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>

#include "engine/base/index.h"
#include "engine/routing/formats/trace_batches.h"

namespace moe {
namespace {

constexpr std::array<const char*, 4> kColumns = {"iter", "layer", "rank", "token_num"};
constexpr int64_t kMostRanks = kNoExpert - 1;
constexpr int64_t kHighest = 1'000'000'000;  // of a number in the file
constexpr int64_t kHighestLayer = 1'000'000;

std::vector<std::string> cells(std::string_view line) {
  std::vector<std::string> list;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    list.emplace_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return list;
}

/// The columns of the file: where the four numbers stand, and what the others are to have.
struct Columns {
  std::vector<std::string> names;
  std::array<size_t, kColumns.size()> numbers{};
  std::map<size_t, std::string> where;      // column -> the value of the rows that count
  std::map<size_t, std::string> undecided;  // column -> its value in the first row that counts
};

Columns columns_of(std::string_view line, const std::map<std::string, std::string>& where,
                   const std::string& at) {
  Columns c;
  c.names = cells(line);
  const auto find = [&](const std::string& name) {
    const auto column = std::find(c.names.begin(), c.names.end(), name);
    if (column == c.names.end()) {
      throw user_error("{}: there is no column '{}'; the first line names {}", at, name,
                       fmt::join(c.names, ", "));
    }
    return static_cast<size_t>(column - c.names.begin());
  };
  for (size_t i = 0; i < kColumns.size(); ++i) c.numbers[i] = find(kColumns[i]);
  for (const auto& [name, value] : where) c.where[find(name)] = value;
  return c;
}

/// Whether the row counts. Throws UserError where a column that `where` does not mention changes.
bool counts(const std::vector<std::string>& row, Columns& c, const std::string& at) {
  for (const auto& [column, value] : c.where) {
    if (row[column] != value) return false;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (c.where.count(i) != 0 ||
        std::find(c.numbers.begin(), c.numbers.end(), i) != c.numbers.end()) {
      continue;
    }
    const std::string& first = c.undecided.try_emplace(i, row[i]).first->second;
    if (first == row[i]) continue;
    throw user_error("{}: column '{}' has '{}' and '{}'; choose the rows by where", at, c.names[i],
                     first, row[i]);
  }
  return true;
}

int64_t number(const std::string& cell, size_t i, const std::string& at) {
  const int64_t highest = i == 1 ? kHighestLayer : kHighest;
  int64_t value = -1;
  const char* end = cell.data() + cell.size();
  const auto read = std::from_chars(cell.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end || value < 0 || value > highest) {
    throw user_error("{}: {} = '{}', allowed: whole numbers from 0 to {}", at, kColumns[i], cell,
                     highest);
  }
  return value;
}

using RankLoads = std::map<BatchKey, int64_t>;

RankLoads read(const NamedText& file, const std::map<std::string, std::string>& where) {
  RankLoads loads;
  Columns c;
  each_line(file, [&](std::string_view line, const std::string& at) {
    if (c.names.empty()) return void(c = columns_of(line, where, at));
    const std::vector<std::string> row = cells(line);
    if (row.size() != c.names.size()) {
      throw user_error("{}: has {} cells, but the first line names {} columns", at, row.size(),
                       c.names.size());
    }
    if (!counts(row, c, at)) return;
    std::array<int64_t, kColumns.size()> n{};
    for (size_t i = 0; i < n.size(); ++i) n[i] = number(row[c.numbers[i]], i, at);
    if (loads.emplace(BatchKey(n[0], n[1], n[2]), n[3]).second) return;
    throw user_error("{}: iter {}, layer {}, rank {} is there twice", at, n[0], n[1], n[2]);
  });
  return loads;
}

/// Returns the rows of each of the `each` experts of each rank in a layer, equally many but for
/// one. Throws UserError for a rank that is missing.
std::vector<int64_t> rows_of(const RankLoads& loads, int64_t step, int64_t layer,
                             const std::vector<int64_t>& ranks, int64_t each,
                             const std::string& file) {
  std::vector<int64_t> rows;
  for (const int64_t rank : ranks) {
    const auto at = loads.find({step, layer, rank});
    if (at == loads.end()) {
      throw user_error("{}: iter {}, layer {}, rank {} is missing", file, step, layer, rank);
    }
    for (int64_t e = 0; e < each; ++e) rows.push_back((at->second + each - 1 - e) / each);
  }
  return rows;
}

/// The choices of the tokens of each node, which are dealt to experts.
struct Deal {
  uint32_t* counts = nullptr;               // [source, expert]
  int64_t experts = 0, node = 0, each = 0;  // each: choices of a node
  std::vector<int64_t> dealt;               // per node

  /// Deals `rows` choices of expert e to the sources of node n in turn.
  void from(int64_t n, int64_t e, int64_t rows) {
    const int64_t begin = dealt[index(n)];
    for (int64_t s = 0; s < node; ++s) {
      const auto up_to = [&](int64_t i) { return (i + node - 1 - s) / node; };
      counts[(n * node + s) * experts + e] +=
          static_cast<uint32_t>(up_to(begin + rows) - up_to(begin));
    }
    dealt[index(n)] += rows;
  }
};

/// Deals the rows of a layer's experts: each node's own rows to its experts in proportion, then
/// what is left of an expert from the nodes that have choices left.
void deal_layer(Deal d, const std::vector<int64_t>& rows) {
  std::vector<int64_t> left = rows;
  const int64_t nodes = std::ssize(d.dealt), held = d.experts / nodes;
  for (int64_t n = 0; n < nodes; ++n) {
    const auto first = rows.begin() + n * held;
    const int64_t all = std::accumulate(first, first + held, int64_t{0});
    int64_t sum = 0;
    for (int64_t e = n * held; e < (n + 1) * held; ++e) {
      __extension__ using Wide = __int128;
      const auto kept = [&](int64_t upto) {
        return all <= d.each ? upto : static_cast<int64_t>(Wide{upto} * d.each / all);
      };
      const int64_t own = kept(sum + rows[index(e)]) - kept(sum);
      sum += rows[index(e)];
      left[index(e)] -= own;
      d.from(n, e, own);
    }
  }
  int64_t n = 0;
  for (int64_t e = 0; e < d.experts; ++e) {
    while (left[index(e)] > 0) {
      const int64_t moved = std::min(left[index(e)], d.each - d.dealt[index(n)]);
      d.from(n, e, moved);
      left[index(e)] -= moved;
      if (left[index(e)] > 0) ++n;
    }
  }
}

/// Makes the counts of nodes whose rows are all their own those of experts that each node has once.
/// Throws UserError for a row that leaves its node.
void share_experts(Trace& t, int64_t held, int64_t node, const std::string& file) {
  std::vector<uint32_t> shared(t.counts.size() / index(t.experts / held));
  for (size_t i = 0; i < t.counts.size(); ++i) {
    const auto expert = static_cast<int64_t>(i) % t.experts;
    const auto row = static_cast<int64_t>(i) / t.experts;
    if (expert / held == row % t.ranks / node) {
      shared[index(row * held + expert % held)] = t.counts[i];
    } else if (t.counts[i] != 0) {
      throw user_error(
          "{}: nodes of {} ranks compute rows that are not their own, so that they cannot have "
          "{} experts each; omit experts",
          file, node, held);
    }
  }
  t.counts = std::move(shared);
  t.experts = held;
}

}  // namespace

Trace trace_of_rank_loads(const NamedText& file, int64_t k,
                          const std::map<std::string, std::string>& where, int64_t node,
                          int64_t experts_per_rank, bool even, int64_t experts) {
  const RankLoads loads = read(file, where);
  if (loads.empty()) throw user_error("{}: no row has what `where` states", file.name);
  const std::vector<int64_t> steps = values_of<0>(loads), layers = values_of<1>(loads),
                             ranks = values_of<2>(loads);
  const auto size = [](const std::vector<int64_t>& v) { return static_cast<int64_t>(v.size()); };
  Trace t = {.steps = size(steps),
             .layers = size(layers),
             .ranks = size(ranks),
             .experts = size(ranks) * experts_per_rank,
             .k = k};
  if (t.experts > kMostRanks || k < 1 || k > t.ranks) {
    throw user_error("{}: {} experts and k = {}; allowed: 1 to {}, k from 1 to the number of ranks",
                     file.name, t.experts, k, kMostRanks);
  }
  if (node == 0) node = t.ranks;
  if (node < 1 || t.ranks % node != 0) {
    throw user_error("{}: node = {}, allowed: a divisor of its {} ranks", file.name, node, t.ranks);
  }
  const int64_t held = node * experts_per_rank;  // by a node
  if (experts != 0 && experts != held && experts != t.experts) {
    throw user_error("{}: experts = {}, allowed: {}, or {}, which each node of {} ranks has once",
                     file.name, experts, t.experts, held, node);
  }
  t.blocks.assign(layers.begin(), layers.end());
  check_room(t, t.experts * static_cast<int64_t>(loads.size()), file.name);
  for (const int64_t step : steps) {
    for (const int64_t layer : layers) {
      const size_t record = t.counts.size();
      t.counts.resize(record + index(t.ranks * t.experts));
      std::vector<int64_t> rows = rows_of(loads, step, layer, ranks, experts_per_rank, file.name);
      const int64_t dealt = std::accumulate(rows.begin(), rows.end(), int64_t{0});
      if (dealt % (k * t.ranks) != 0) {
        throw user_error(
            "{}: iter {}, layer {}: the ranks compute {} rows, which is no multiple of {} ranks "
            "times k = {}",
            file.name, step, layer, dealt, t.ranks, k);
      }
      if (even) {
        for (int64_t e = 0; e < t.experts; ++e) rows[index(e)] = (dealt + e) / t.experts;
      }
      t.tokens = std::max(t.tokens, dealt / (k * t.ranks));
      deal_layer({.counts = t.counts.data() + record,
                  .experts = t.experts,
                  .node = node,
                  .each = dealt / t.ranks * node,
                  .dealt = std::vector<int64_t>(index(t.ranks / node))},
                 rows);
    }
  }
  if (experts != 0 && experts != t.experts) share_experts(t, held, node, file.name);
  finish_trace(t, file.name);
  return t;
}

}  // namespace moe
