#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/sha256.h"
#include "engine/routing/formats/json_fields.h"
#include "engine/routing/formats/torch_archive.h"
#include "engine/routing/formats/trace_batches.h"
#include "engine/routing/formats/trace_formats.h"

namespace moe {
namespace {

using nlohmann::json;

using ReadFile = std::function<std::string(const std::string& file)>;

static_assert(std::endian::native == std::endian::little);

/// Returns the elements of a tensor that the manifest lists, checked against its checksum, type and
/// number of elements.
template <class T>
std::vector<T> tensor(const json& manifest, const char* name, const char* dtype, int64_t elements,
                      const std::string& where, const ReadFile& read) {
  const json* at = nullptr;
  if (const auto tensors = manifest.find("tensors"); tensors != manifest.end()) {
    if (const auto found = tensors->find(name); found != tensors->end()) at = &*found;
  }
  const auto text = [&](const char* field) {
    if (at == nullptr || !at->is_object() || !at->contains(field) || !at->at(field).is_string()) {
      throw user_error("{}: the tensor '{}' has no field '{}'", where, name, field);
    }
    return at->at(field).get<std::string>();
  };
  const std::string file = text("file"), archive = read(file);
  if (const std::string hash = sha256_text(archive); hash != text("sha256")) {
    throw user_error("{}: the checksum of {} is {}, but the manifest states {}", where, file, hash,
                     text("sha256"));
  }
  const std::string_view bytes = torch_elements(archive, fmt::format("{}: {}", where, file));
  if (text("dtype") != dtype || bytes.size() != static_cast<size_t>(elements) * sizeof(T)) {
    throw user_error("{}: {} has {} bytes of {}, expected {} elements of {}", where, file,
                     bytes.size(), text("dtype"), elements, dtype);
  }
  std::vector<T> values(static_cast<size_t>(elements));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

int64_t size_field(const json& manifest, const char* field, int64_t most,
                   const std::string& where) {
  const int64_t value = integer_field(manifest, field, where);
  if (value >= 1 && value <= most) return value;
  throw user_error("{}: field '{}' is {}; allowed: 1 to {}", where, field, value, most);
}

struct Sizes {
  int64_t tokens, experts, k, ranks, step, layer;
};

Sizes sizes_of(const json& manifest, const std::string& where) {
  if (integer_field(manifest, "schema_version", where) != 1) {
    throw user_error("{}: field 'schema_version' is {}; allowed: 1", where,
                     shown(manifest["schema_version"]));
  }
  Sizes s = {.tokens = size_field(manifest, "logical_num_tokens", 1 << 28, where),
             .experts = size_field(manifest, "num_experts", kNoExpert - 1, where),
             .ranks = size_field(manifest, "world_size", 1 << 20, where),
             .step = integer_field(manifest, "step_id", where),
             .layer = integer_field(manifest, "logical_layer_id", where)};
  s.k = size_field(manifest, "topk", s.experts, where);
  if (s.layer <= 1'000'000) return s;
  throw user_error("{}: field 'logical_layer_id' is {}; allowed: 0 to 1000000", where, s.layer);
}

/// Adds the choices of the manifest's tensors to those of its step, layer and ranks.
void add_choices(const json& manifest, const Sizes& s, const std::string& where,
                 const ReadFile& read, Batches& batches) {
  const std::vector<int64_t> ids =
      tensor<int64_t>(manifest, "expert_ids", "int64", s.tokens * s.k, where, read);
  const std::vector<int32_t> source =
      tensor<int32_t>(manifest, "source_rank", "int32", s.tokens, where, read);
  check_room({.steps = 1,
              .layers = 1,
              .ranks = s.ranks,
              .tokens = (s.tokens + s.ranks - 1) / s.ranks,
              .experts = s.experts,
              .k = s.k},
             s.tokens * (s.k + 1), where);
  for (int64_t r = 0; r < s.ranks; ++r) batches[{s.step, s.layer, r}].where = where;
  for (int64_t t = 0; t < s.tokens; ++t) {
    const int64_t rank = source[static_cast<size_t>(t)];
    if (rank < 0 || rank >= s.ranks) {
      throw user_error("{}: token {} is of rank {}; world_size is {}", where, t, rank, s.ranks);
    }
    std::vector<int64_t>& mine = batches[{s.step, s.layer, rank}].experts;
    for (int64_t j = 0; j < s.k; ++j) {
      const int64_t e = ids[static_cast<size_t>(t * s.k + j)];
      if (e < 0 || e >= s.experts) {
        throw user_error("{}: token {} has expert {}; allowed: 0 to {}", where, t, e,
                         s.experts - 1);
      }
      mine.push_back(e);
    }
  }
}

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

using Files = std::vector<std::pair<std::string, std::string>>;  // name, content
using Shape = std::vector<int64_t>;

void add_tensor(Files& files, json& tensors, const std::string& name, TorchType type,
                const Shape& shape, std::string_view bytes) {
  constexpr std::array<const char*, 3> kNames = {"int32", "int64", "float32"};  // as in TorchType
  files.emplace_back(fmt::format("tensors/{}.pt", name), torch_archive(name, type, shape, bytes));
  tensors[name] = {{"file", files.back().first},
                   {"sha256", sha256_text(files.back().second)},
                   {"shape", shape},
                   {"dtype", kNames[static_cast<size_t>(type)]}};
}

}  // namespace

Trace trace_of_token_imbalance(const std::vector<NamedText>& manifests, const ReadTensor& read) {
  if (manifests.empty()) throw UserError("a trace of the benchmark needs at least one manifest");
  Batches batches;
  Sizes first{};
  for (size_t i = 0; i < manifests.size(); ++i) {
    const std::string& where = manifests[i].name;
    const json manifest = json_object(manifests[i].text, where);
    const Sizes s = sizes_of(manifest, where);
    if (i == 0) first = s;
    if (s.experts != first.experts || s.k != first.k || s.ranks != first.ranks) {
      throw user_error("{}: has {} experts, topk {} and {} ranks, but {} has {}, {} and {}", where,
                       s.experts, s.k, s.ranks, manifests[0].name, first.experts, first.k,
                       first.ranks);
    }
    if (batches.count({s.step, s.layer, 0}) != 0) {
      throw user_error("{}: step {}, layer {} is there twice", where, s.step, s.layer);
    }
    add_choices(
        manifest, s, where, [&](const std::string& file) { return read(i, file); }, batches);
  }
  return trace_of(batches, first.experts, first.k, manifests[0].name);
}

std::vector<std::pair<std::string, std::string>> token_imbalance_of_trace(const Trace& t,
                                                                          int64_t step,
                                                                          int64_t layer) {
  check_record(t, step, layer);
  std::vector<int64_t> ids;
  std::vector<int32_t> source;
  for (int64_t rank = 0; rank < t.ranks; ++rank) {
    each_token(t, step * t.layers + layer, rank, "of the token-imbalance benchmark",
               [&](auto first) {
                 ids.insert(ids.end(), first, first + t.k);
                 source.push_back(static_cast<int32_t>(rank));
               });
  }
  const auto tokens = static_cast<int64_t>(source.size());
  if (tokens == 0) {
    throw user_error("no token has choices in step {}, layer {}", step + 1, layer + 1);
  }
  Files files;
  const Shape choices = {tokens, t.k};
  json tensors = json::object();
  add_tensor(files, tensors, "token_ids", TorchType::kInt64, choices, bytes_of(ids));
  const std::vector<float> gates(ids.size(), 1.0f / static_cast<float>(t.k));
  add_tensor(files, tensors, "gates", TorchType::kFloat32, choices, bytes_of(gates));
  add_tensor(files, tensors, "source_rank", TorchType::kInt32, {tokens}, bytes_of(source));
  add_tensor(files, tensors, "expert_ids", TorchType::kInt64, choices, bytes_of(ids));
  const json manifest = {{"schema_version", 1},
                         {"producer_commit", "moebench"},
                         {"seed", 0},
                         {"logical_layer_id", t.blocks[static_cast<size_t>(layer)]},
                         {"step_id", step},
                         {"microbatch_id", 0},
                         {"logical_num_tokens", tokens},
                         {"num_experts", t.experts},
                         {"topk", t.k},
                         {"hidden_size", 0},
                         {"world_size", t.ranks},
                         {"original_partition", "rank-major, contiguous per source rank"},
                         {"workload_id", "recorded"},
                         {"workload_checksum", sha256_text(bytes_of(ids)).substr(0, 16)},
                         {"tensors", tensors},
                         {"extra", json::object()}};
  files.emplace_back("manifest.json", manifest.dump(2) + "\n");
  return files;
}

}  // namespace moe
