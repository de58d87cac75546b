// The benchmark's traces: files that PyTorch wrote (tests/data/token_imbalance), and our own.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/base/errors.h"
#include "engine/base/files.h"
#include "engine/routing/formats/torch_archive.h"
#include "engine/routing/formats/trace_formats.h"

namespace moe {
namespace {

using Catch::Matchers::Contains;

const std::string kFolder = MOE_SOURCE_DIR "/tests/data/token_imbalance/";

std::string of_torch(size_t, const std::string& file) {
  return read_file(kFolder + file);
}

Trace imported(const std::string& manifest, const ReadTensor& read = of_torch) {
  return trace_of_token_imbalance({{"m.json", manifest}}, read);
}

TEST_CASE("a trace whose tensors PyTorch saved is read, and comes back from our own files") {
  const Trace t = imported(of_torch(0, "manifest.json"));
  CHECK(t.ranks == 2);
  CHECK(t.tokens == 3);
  CHECK(t.experts == 4);
  CHECK(t.blocks == std::vector<int32_t>{1});
  CHECK(t.choices == std::vector<uint16_t>{0, 1, 2, 3, 1, 3, 0, 2, 1, 2, 0, 3});
  const auto files = token_imbalance_of_trace(t, 0, 0);
  const auto ours = [&](size_t, const std::string& file) {
    for (const auto& [name, content] : files) {
      if (name == file) return content;
    }
    return std::string();
  };
  CHECK(imported(ours(0, "manifest.json"), ours) == t);
  // The elements are the bytes that PyTorch wrote; torch.load of 2.15 reads our archives, with
  // weights_only, as the same tensors (tried by hand).
  for (const char* file : {"tensors/expert_ids.pt", "tensors/source_rank.pt"}) {
    CHECK(torch_elements(ours(0, file), file) == torch_elements(of_torch(0, file), file));
  }
}

TEST_CASE("damage to a manifest or an archive is refused by name") {
  const std::string good = of_torch(0, "manifest.json");
  const auto with = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json m = nlohmann::json::parse(good);
    m[field] = value;
    return m.dump();
  };
  CHECK_THROWS_WITH(imported(with("schema_version", 2)), Contains("'schema_version' is 2"));
  CHECK_THROWS_WITH(imported(with("num_experts", 3)), Contains("has expert 3; allowed: 0 to 2"));
  CHECK_THROWS_WITH(imported(with("world_size", 1)), Contains("token 3 is of rank 1"));
  CHECK_THROWS_WITH(imported(with("topk", 1)), Contains("expected 6 elements of int64"));
  CHECK_THROWS_WITH(imported(with("tensors", 7)), Contains("the tensor 'expert_ids' has no field"));
  CHECK_THROWS_WITH(trace_of_token_imbalance({{"a", good}, {"b", good}}, of_torch),
                    Contains("b: step 0, layer 1 is there twice"));
  const auto changed = [&](size_t, const std::string& file) {
    std::string text = of_torch(0, file);
    text[text.size() / 2] ^= 1;
    return text;
  };
  CHECK_THROWS_WITH(imported(good, changed), Contains("but the manifest states"));
  const std::string archive = of_torch(0, "tensors/expert_ids.pt");
  for (size_t size = 0; size < archive.size(); size += 7) {  // never read beyond the end
    CHECK_THROWS_AS(torch_elements(archive.substr(0, size), "x"), UserError);
  }
  for (size_t at = 0; at < archive.size(); ++at) {  // damage is found, or does not matter
    std::string text = archive;
    text[at] ^= 0x55;
    size_t size = 96;
    try {
      size = torch_elements(text, "x").size();
    } catch (const UserError&) {
    }
    CHECK(size == 96);
  }
}

}  // namespace
}  // namespace moe
