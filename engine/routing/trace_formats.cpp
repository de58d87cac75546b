#include "engine/routing/trace_formats.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "engine/base/errors.h"

namespace moe {
namespace {

using nlohmann::json;

size_t index(int64_t i) {
  return static_cast<size_t>(i);
}

/// The choices of one step, layer and rank, and the line that brought the last of them.
struct Batch {
  std::vector<int64_t> experts;  // [tokens, k]
  std::string where;
};
using BatchKey = std::tuple<int64_t, int64_t, int64_t>;  // step, layer (block), rank
using Batches = std::map<BatchKey, Batch>;

template <size_t I>
std::vector<int64_t> values_of(const Batches& batches) {
  std::set<int64_t> values;
  for (const auto& [key, batch] : batches) values.insert(std::get<I>(key));
  return {values.begin(), values.end()};
}

int64_t number_of(const std::vector<int64_t>& sorted, int64_t value) {
  return std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin();
}

/// Throws where a layer of a step and rank is missing or has another number of tokens.
void check_layers(const Batches& batches, const std::vector<int64_t>& steps,
                  const std::vector<int64_t>& layers, const std::vector<int64_t>& ranks, int64_t k,
                  const std::string& source) {
  for (const int64_t step : steps) {
    for (const int64_t rank : ranks) {
      const Batch* first = nullptr;
      for (const int64_t layer : layers) {
        const auto at = batches.find({step, layer, rank});
        if (at == batches.end()) {
          throw user_error("{}: layer {} of step {}, rank {} is missing", source, layer, step,
                           rank);
        }
        const Batch& batch = at->second;
        if (first == nullptr) first = &batch;
        if (batch.experts.size() == first->experts.size()) continue;
        const auto tokens = [&](const Batch& b) {
          return static_cast<int64_t>(b.experts.size()) / k;
        };
        throw user_error(
            "{}: layer {} has {} tokens in step {}, rank {}, but layer {} has {}; allowed: the "
            "same in all layers",
            batch.where, layer, tokens(batch), step, rank, layers.front(), tokens(*first));
      }
    }
  }
}

/// Steps, layers and ranks as they occur, ascending. experts 0: one more than the highest.
Trace trace_of(const Batches& batches, int64_t experts, int64_t k, const std::string& source) {
  if (batches.empty()) throw user_error("{}: no routing is there", source);
  const std::vector<int64_t> steps = values_of<0>(batches), layers = values_of<1>(batches),
                             ranks = values_of<2>(batches);
  check_layers(batches, steps, layers, ranks, k, source);
  Trace t;
  t.steps = static_cast<int64_t>(steps.size());
  t.layers = static_cast<int64_t>(layers.size());
  t.ranks = static_cast<int64_t>(ranks.size());
  t.k = k;
  t.blocks.assign(layers.begin(), layers.end());
  int64_t highest = 0;
  for (const auto& [key, batch] : batches) {
    t.tokens = std::max(t.tokens, static_cast<int64_t>(batch.experts.size()) / k);
    for (const int64_t e : batch.experts) highest = std::max(highest, e);
  }
  t.experts = experts > 0 ? experts : highest + 1;
  t.choices.assign(index(t.steps * t.layers * t.ranks * t.tokens * k), kNoExpert);
  for (const auto& [key, batch] : batches) {
    const auto& [step, layer, rank] = key;
    const int64_t record = number_of(steps, step) * t.layers + number_of(layers, layer);
    const int64_t first = (record * t.ranks + number_of(ranks, rank)) * t.tokens * k;
    std::copy(batch.experts.begin(), batch.experts.end(), t.choices.begin() + first);
  }
  finish_trace(t, source);
  return t;
}

/// limit: experts, or 0 for as many as a trace may have.
void check_expert(int64_t e, int64_t limit, const std::string& where) {
  const int64_t most = (limit > 0 ? limit : int64_t{kNoExpert}) - 1;
  if (e < 0 || e > most) {
    throw user_error("{}: expert {} is not allowed; 0 to {}", where, e, most);
  }
}

json parsed(std::string_view text, const std::string& where) {
  json value = json::parse(text, nullptr, false);
  if (!value.is_object()) throw user_error("{}: is no JSON object", where);
  return value;
}

int64_t whole(const json& object, const char* field, const std::string& where) {
  const auto at = object.find(field);
  if (at == object.end()) throw user_error("{}: field '{}' is missing", where, field);
  if (!at->is_number_integer() || at->get<int64_t>() < 0) {
    throw user_error("{}: field '{}' is {}; allowed: a whole number from 0", where, field,
                     at->dump());
  }
  return at->get<int64_t>();
}

/// Calls f(line, "file:3") for every line that is not empty.
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

/// Appends top_indices to the record's batch.
void add_indices(const json& record, int64_t k, int64_t experts, Batch& batch) {
  const int64_t tokens = whole(record, "num_tokens", batch.where);
  const auto at = record.find("top_indices");
  if (at == record.end() || !at->is_array() || static_cast<int64_t>(at->size()) != tokens) {
    throw user_error("{}: field 'top_indices' is no list of num_tokens = {} tokens", batch.where,
                     tokens);
  }
  for (const json& row : *at) {
    if (!row.is_array() || static_cast<int64_t>(row.size()) != k) {
      throw user_error("{}: field 'top_indices' has the row {}; allowed: topk = {} experts",
                       batch.where, row.dump(), k);
    }
    for (const json& e : row) {
      if (!e.is_number_integer()) {
        throw user_error("{}: field 'top_indices' has the entry {}", batch.where, e.dump());
      }
      check_expert(e.get<int64_t>(), experts, batch.where);
      batch.experts.push_back(e.get<int64_t>());
    }
  }
}

bool is_text(const json& record, const char* field, const char* wanted) {
  const auto at = record.find(field);
  return at == record.end() || *at == wanted;
}

/// Calls f(first choice) for every token that chooses, in order. Throws where it chooses in part.
template <class F>
void each_token(const Trace& t, int64_t record, int64_t rank, F f) {
  if (t.choices.empty() && t.tokens > 0) {
    throw user_error("the trace knows counts alone, this format takes the choices of tokens");
  }
  for (int64_t i = 0; i < t.tokens; ++i) {
    const auto first = t.choices.begin() + ((record * t.ranks + rank) * t.tokens + i) * t.k;
    const auto none = std::count(first, first + t.k, kNoExpert);
    if (none == t.k) continue;
    if (none > 0) {
      throw user_error(
          "step {}, layer {}, rank {}, token {}: has {} of {} choices, which this format "
          "cannot say",
          record / t.layers, record % t.layers, rank, i, t.k - none, t.k);
    }
    f(first);
  }
}

std::vector<std::vector<int64_t>> matrix(const json& object, const char* field, int64_t rows,
                                         int64_t columns, const std::string& source) {
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
             (*at)[r][c].get<int64_t>() <= 1'000'000'000;
    }
    if (!good) {
      throw user_error("{}: field '{}', row {}: allowed: {} whole numbers from 0", source, field, r,
                       columns);
    }
  }
  if (!good) throw user_error("{}: field '{}': allowed: {} rows", source, field, rows);
  return at->get<std::vector<std::vector<int64_t>>>();
}

/// What each expert of a rank receives in all: its row of the histogram, or even.
std::vector<int64_t> received(const json& object, int64_t rank, int64_t slots, int64_t ranks,
                              int64_t experts, const std::string& source) {
  if (!object.contains("expert_histogram")) {
    std::vector<int64_t> even(index(experts), slots / experts);
    for (int64_t e = 0; e < slots % experts; ++e) ++even[index(e)];
    return even;
  }
  const auto histogram = matrix(object, "expert_histogram", ranks, experts, source);
  int64_t sum = 0;
  for (const int64_t n : histogram[index(rank)]) sum += n;
  if (sum != slots) {
    throw user_error(
        "{}: field 'expert_histogram', row {}: sums to {}, but column {} of slot_dispatch_matrix "
        "to {}",
        source, rank, sum, rank, slots);
  }
  return histogram[index(rank)];
}

/// Takes n of `left` in proportion to what is left, the largest remainders up.
std::vector<int64_t> take_in_proportion(int64_t n, std::vector<int64_t>& left) {
  int64_t all = 0, given = 0;
  for (const int64_t l : left) all += l;
  std::vector<int64_t> taken;
  std::vector<std::pair<int64_t, int64_t>> remainders;  // the largest first, then the first expert
  for (size_t e = 0; e < left.size(); ++e) {
    const int64_t product = all > 0 ? n * left[e] : 0;
    taken.push_back(all > 0 ? product / all : 0);
    remainders.emplace_back(all > 0 ? -(product % all) : 0, static_cast<int64_t>(e));
    given += taken.back();
  }
  std::sort(remainders.begin(), remainders.end());
  for (size_t i = 0; given < n; ++i, ++given) ++taken[index(remainders[i].second)];
  for (size_t e = 0; e < left.size(); ++e) left[e] -= taken[e];
  return taken;
}

/// The two numbers of a CSV line; false where there are no two.
bool two_numbers(std::string_view line, int64_t& a, int64_t& b) {
  const char* end = line.data() + line.size();
  const auto first = std::from_chars(line.data(), end, a);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ',') return false;
  const auto second = std::from_chars(first.ptr + 1, end, b);
  return second.ec == std::errc() && second.ptr == end;
}

}  // namespace

Trace trace_of_megatron(const std::vector<NamedText>& files, int64_t experts) {
  if (files.empty()) throw UserError("a trace of Megatron needs at least one file");
  Batches batches;
  int64_t k = 0;
  for (const NamedText& file : files) {
    each_line(file, [&](std::string_view line, const std::string& where) {
      const json record = parsed(line, where);
      if (!is_text(record, "stage", "pre_dispatch") || !is_text(record, "block", "decoder")) return;
      const int64_t topk = whole(record, "topk", where);
      if (k == 0) k = topk;
      if (topk != k || k == 0) {
        throw user_error("{}: field 'topk' is {}; allowed: {}, as in the records before", where,
                         topk, std::max<int64_t>(k, 1));
      }
      const int64_t layer = whole(record, "layer", where);
      if (layer > 1'000'000) throw user_error("{}: field 'layer' is {}", where, layer);
      Batch& batch = batches[{whole(record, "step", where), layer, whole(record, "rank", where)}];
      batch.where = where;
      add_indices(record, k, experts, batch);
    });
  }
  return trace_of(batches, experts, k, files[0].name);
}

std::vector<std::string> megatron_of_trace(const Trace& t) {
  std::vector<std::string> files(index(t.ranks));
  for (int64_t record = 0; record < t.steps * t.layers; ++record) {
    for (int64_t rank = 0; rank < t.ranks; ++rank) {
      std::string rows;
      int64_t tokens = 0;
      each_token(t, record, rank, [&](auto first) {
        rows +=
            fmt::format("{}[{}]", tokens++ > 0 ? ", " : "", fmt::join(first, first + t.k, ", "));
      });
      files[index(rank)] += fmt::format(
          R"({{"step": {}, "stage": "pre_dispatch", "block": "decoder", "layer": {}, "rank": {}, )"
          R"("num_tokens": {}, "topk": {}, "top_indices": [{}]}})"
          "\n",
          record / t.layers, t.blocks[index(record % t.layers)], rank, tokens, t.k, rows);
    }
  }
  return files;
}

Trace trace_of_tensorrt(const NamedText& file, int64_t k) {
  const std::string& source = file.name;
  const json object = parsed(file.text, source);
  const int64_t ranks = whole(object, "ep_size", source);
  const int64_t experts = whole(object, "experts_per_rank", source);
  if (ranks < 1 || experts < 1 || ranks > 65535 || experts > 65535 ||
      ranks * experts >= kNoExpert) {
    throw user_error("{}: ep_size = {} of experts_per_rank = {} are not allowed; 1 to 65534 in all",
                     source, ranks, experts);
  }
  const auto slots = matrix(object, "slot_dispatch_matrix", ranks, ranks, source);
  Trace t = {.steps = 1, .layers = 1, .ranks = ranks, .experts = ranks * experts, .k = k};
  t.blocks = {0};
  t.counts.resize(index(ranks * t.experts));
  for (int64_t target = 0; target < ranks; ++target) {
    int64_t column = 0;
    for (int64_t s = 0; s < ranks; ++s) column += slots[index(s)][index(target)];
    std::vector<int64_t> left = received(object, target, column, ranks, experts, source);
    for (int64_t s = 0; s < ranks; ++s) {
      const std::vector<int64_t> taken = take_in_proportion(slots[index(s)][index(target)], left);
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
          "{}: field 'slot_dispatch_matrix', row {}: k = {} does not divide its {} "
          "slots",
          source, s, k, row);
    }
    t.tokens = std::max(t.tokens, row / k);
  }
  if (t.tokens == 0) throw user_error("{}: no routing is there", source);
  finish_trace(t, source);
  return t;
}

std::string tensorrt_of_trace(const Trace& t, int64_t step, int64_t layer) {
  if (step < 0 || step >= t.steps || layer < 0 || layer >= t.layers) {
    throw user_error("step {}, layer {}: the trace has {} steps of {} layers", step + 1, layer + 1,
                     t.steps, t.layers);
  }
  if (t.experts % t.ranks != 0) {
    throw user_error("{} experts do not divide over {} ranks, which this format takes", t.experts,
                     t.ranks);
  }
  const int64_t held = t.experts / t.ranks;
  std::vector<std::vector<int64_t>> slots(index(t.ranks), std::vector<int64_t>(index(t.ranks)));
  std::vector<std::vector<int64_t>> histogram(index(t.ranks), std::vector<int64_t>(index(held)));
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

Trace trace_of_csv(const NamedText& file, int64_t experts, int64_t k) {
  if (k < 1) throw user_error("{}: k = {} must be at least 1", file.name, k);
  Batches batches;
  int64_t step = 0, layer = -1;
  bool first = true;
  each_line(file, [&](std::string_view line, const std::string& where) {
    int64_t next = 0, expert = 0;
    if (!two_numbers(line, next, expert) || next < 0 || next > 1'000'000) {
      if (first && line == "layer,expert") return void(first = false);
      throw user_error("{}: '{}' is not allowed; give layer,expert", where, line);
    }
    first = false;
    check_expert(expert, experts, where);
    if (next < layer) ++step;
    layer = next;
    Batch& batch = batches[{step, layer, 0}];
    batch.where = where;
    batch.experts.push_back(expert);
  });
  for (const auto& [key, batch] : batches) {
    if (static_cast<int64_t>(batch.experts.size()) % k == 0) continue;
    throw user_error("{}: layer {} has {} choices in step {}, which k = {} does not divide",
                     batch.where, std::get<1>(key), batch.experts.size(), std::get<0>(key), k);
  }
  return trace_of(batches, experts, k, file.name);
}

std::string csv_of_trace(const Trace& t) {
  std::string text = "layer,expert\n";
  for (int64_t record = 0; record < t.steps * t.layers; ++record) {
    for (int64_t rank = 0; rank < t.ranks; ++rank) {
      each_token(t, record, rank, [&](auto first) {
        for (int64_t j = 0; j < t.k; ++j) {
          text += fmt::format("{},{}\n", t.blocks[index(record % t.layers)], first[j]);
        }
      });
    }
  }
  return text;
}

}  // namespace moe
