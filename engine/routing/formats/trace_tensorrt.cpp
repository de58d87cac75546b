#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/routing/formats/json_fields.h"
#include "engine/routing/formats/trace_batches.h"
#include "engine/routing/formats/trace_formats.h"

namespace moe {
namespace {

using nlohmann::json;
using Matrix = std::vector<std::vector<int64_t>>;

constexpr int64_t kMostSlots = 1'000'000'000;  // in one entry of a matrix

Matrix matrix(const json& object, const char* field, int64_t rows, int64_t columns,
              const std::string& source) {
  const auto at = object.find(field);
  const auto fits = [&](const json& list, int64_t n) {
    return list.is_array() && static_cast<int64_t>(list.size()) == n;
  };
  if (at == object.end()) throw user_error("{}: field '{}' is missing", source, field);
  bool good = fits(*at, rows);
  for (size_t r = 0; good && r < at->size(); ++r) {
    good = fits((*at)[r], columns);
    for (size_t c = 0; good && c < (*at)[r].size(); ++c) {
      good = (*at)[r][c].is_number_integer() && (*at)[r][c].get<int64_t>() >= 0 &&
             (*at)[r][c].get<int64_t>() <= kMostSlots;
    }
    if (!good) {
      throw user_error("{}: field '{}', row {}: allowed: {} whole numbers from 0 to {}", source,
                       field, r, columns, kMostSlots);
    }
  }
  if (!good) throw user_error("{}: field '{}': allowed: {} rows", source, field, rows);
  return at->get<Matrix>();
}

/// Returns the slots that each expert of each target rank receives from all sources: by the field
/// expert_histogram or, without it, the slots of a rank spread evenly over its experts.
Matrix received(const json& object, const Matrix& slots, int64_t experts,
                const std::string& source) {
  const auto ranks = static_cast<int64_t>(slots.size());
  const bool known = object.contains("expert_histogram");
  Matrix rows;
  if (known) rows = matrix(object, "expert_histogram", ranks, experts, source);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t column = 0, sum = 0;
    for (const auto& row : slots) column += row[index(rank)];
    if (!known) {
      rows.emplace_back(index(experts), column / experts);
      for (int64_t e = 0; e < column % experts; ++e) ++rows.back()[index(e)];
      continue;
    }
    for (const int64_t n : rows[index(rank)]) sum += n;
    if (sum == column) continue;
    throw user_error(
        "{}: field 'expert_histogram', row {}: sums to {}, but column {} of slot_dispatch_matrix "
        "to {}; the sums must be equal",
        source, rank, sum, rank, column);
  }
  return rows;
}

/// Subtracts n in all from the values of `left`, in proportion to them, and returns what each lost;
/// the shares with the largest remainders are rounded up.
/// Requires: n is at most the sum of `left`.
std::vector<int64_t> take_in_proportion(int64_t n, std::vector<int64_t>& left) {
  int64_t all = 0, given = 0;
  for (const int64_t l : left) all += l;
  MOE_CHECK(
      n <= all,
      "routing trace: {} slots of a source go to a target rank whose experts have only {} left", n,
      all);
  std::vector<int64_t> taken;
  std::vector<std::pair<int64_t, int64_t>> remainders;  // largest first, then lowest expert
  for (size_t e = 0; e < left.size(); ++e) {
    __extension__ using Wide = __int128;
    const Wide product = static_cast<Wide>(n) * left[e];
    taken.push_back(all > 0 ? static_cast<int64_t>(product / all) : 0);
    remainders.emplace_back(all > 0 ? -static_cast<int64_t>(product % all) : 0,
                            static_cast<int64_t>(e));
    given += taken.back();
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; given < n; ++i, ++given) ++taken[index(remainders[i].second)];
  for (size_t e = 0; e < left.size(); ++e) left[e] -= taken[e];
  return taken;
}

}  // namespace

Trace trace_of_tensorrt(const NamedText& file, int64_t k) {
  const std::string& source = file.name;
  const json object = json_object(file.text, source);
  const int64_t ranks = integer_field(object, "ep_size", source);
  const int64_t experts = integer_field(object, "experts_per_rank", source);
  if (ranks < 1 || experts < 1 || ranks > 65535 || experts > 65535 ||
      ranks * experts >= kNoExpert) {
    throw user_error(
        "{}: ep_size = {} times experts_per_rank = {} is not allowed; the product must be 1 to "
        "65534",
        source, ranks, experts);
  }
  const auto slots = matrix(object, "slot_dispatch_matrix", ranks, ranks, source);
  Trace t = {.steps = 1, .layers = 1, .ranks = ranks, .experts = ranks * experts, .k = k};
  t.blocks = {0};
  check_room(t, ranks * ranks, source);
  Matrix left = received(object, slots, experts, source);
  t.counts.resize(index(ranks * t.experts));
  for (int64_t target = 0; target < ranks; ++target) {
    for (int64_t s = 0; s < ranks; ++s) {
      const std::vector<int64_t> taken =
          take_in_proportion(slots[index(s)][index(target)], left[index(target)]);
      for (int64_t e = 0; e < experts; ++e) {
        t.counts[index(s * t.experts + target * experts + e)] =
            static_cast<uint32_t>(taken[index(e)]);
      }
    }
  }
  for (int64_t s = 0; s < ranks; ++s) {
    int64_t row = 0;
    for (const int64_t n : slots[index(s)]) row += n;
    if (k < 1 || row % k != 0) {
      throw user_error(
          "{}: field 'slot_dispatch_matrix', row {}: k = {} choices per token must divide the sum "
          "of the row, {} slots",
          source, s, k, row);
    }
    t.tokens = std::max(t.tokens, row / k);
  }
  if (t.tokens == 0)
    throw user_error("{}: the file contains no routing: all entries of slot_dispatch_matrix are 0",
                     source);
  finish_trace(t, source);
  return t;
}

std::string tensorrt_of_trace(const Trace& t, int64_t step, int64_t layer) {
  check_record(t, step, layer);
  if (t.experts % t.ranks != 0) {
    throw user_error(
        "{} experts do not divide evenly over {} ranks, as the format of TensorRT-LLM requires",
        t.experts, t.ranks);
  }
  const int64_t held = t.experts / t.ranks;
  Matrix slots(index(t.ranks), std::vector<int64_t>(index(t.ranks)));
  Matrix histogram(index(t.ranks), std::vector<int64_t>(index(held)));
  for (int64_t s = 0; s < t.ranks; ++s) {
    for (int64_t e = 0; e < t.experts; ++e) {
      const int64_t n = t.counts[index(((step * t.layers + layer) * t.ranks + s) * t.experts + e)];
      slots[index(s)][index(e / held)] += n;
      histogram[index(e / held)][index(e % held)] += n;
    }
  }
  return json{{"ep_size", t.ranks},
              {"experts_per_rank", held},
              {"slot_dispatch_matrix", slots},
              {"expert_histogram", histogram}}
             .dump(1) +
         "\n";
}

}  // namespace moe
