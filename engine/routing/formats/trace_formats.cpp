#include "engine/routing/formats/trace_formats.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/index.h"
#include "engine/routing/formats/json_fields.h"
#include "engine/routing/formats/trace_batches.h"

namespace moe {
namespace {

using nlohmann::json;

/// Throws UserError for an expert out of range. limit: the number of experts; 0 if not given.
void check_expert(int64_t e, int64_t limit, const std::string& where) {
  const int64_t most = (limit > 0 ? limit : int64_t{kNoExpert}) - 1;
  if (e < 0 || e > most) {
    throw user_error("{}: expert {} is not allowed; give 0 to {}", where, e, most);
  }
}

/// Appends the choices in the field top_indices to the batch.
void add_indices(const json& record, int64_t k, int64_t experts, Batch& batch) {
  const int64_t tokens = integer_field(record, "num_tokens", batch.where);
  const auto at = record.find("top_indices");
  if (at == record.end() || !at->is_array() || static_cast<int64_t>(at->size()) != tokens) {
    throw user_error("{}: field 'top_indices' is not a list of num_tokens = {} tokens", batch.where,
                     tokens);
  }
  for (const json& row : *at) {
    if (!row.is_array() || static_cast<int64_t>(row.size()) != k) {
      throw user_error("{}: field 'top_indices' has the row {}; allowed: topk = {} experts",
                       batch.where, shown(row), k);
    }
    for (const json& e : row) {
      if (!e.is_number_integer()) {
        throw user_error("{}: field 'top_indices' has the entry {}; allowed: whole numbers",
                         batch.where, shown(e));
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

/// Reads the two numbers of a CSV line; returns false when the line is not two numbers.
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
      const json record = json_object(line, where);
      if (!is_text(record, "stage", "pre_dispatch") || !is_text(record, "block", "decoder")) return;
      const int64_t topk = integer_field(record, "topk", where);
      if (k == 0) k = topk;
      if (topk != k || k == 0) {
        throw user_error(
            "{}: field 'topk' is {}; allowed: {} (at least 1, and the same in all records)", where,
            topk, std::max<int64_t>(k, 1));
      }
      const int64_t layer = integer_field(record, "layer", where);
      if (layer > 1'000'000)
        throw user_error("{}: field 'layer' is {}; allowed: 0 to 1000000", where, layer);
      Batch& batch = batches[{integer_field(record, "step", where), layer,
                              integer_field(record, "rank", where)}];
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
      each_token(t, record, rank, "of Megatron-LM", [&](auto first) {
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

Trace trace_of_csv(const NamedText& file, int64_t experts, int64_t k) {
  if (k < 1) throw user_error("{}: k = {} must be at least 1", file.name, k);
  Batches batches;
  int64_t step = 0, layer = -1;
  bool first = true;
  each_line(file, [&](std::string_view line, const std::string& where) {
    int64_t next = 0, expert = 0;
    if (!two_numbers(line, next, expert) || next < 0 || next > 1'000'000) {
      if (first && line == "layer,expert") return void(first = false);
      throw user_error("{}: '{}' is not allowed; give two whole numbers as layer,expert", where,
                       line);
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
      each_token(t, record, rank, "of llama.cpp", [&](auto first) {
        for (int64_t j = 0; j < t.k; ++j) {
          text += fmt::format("{},{}\n", t.blocks[index(record % t.layers)], first[j]);
        }
      });
    }
  }
  return text;
}

}  // namespace moe
