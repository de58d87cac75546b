// Models of config.json and their checkpoints: the losses of transformers (tests/data/transformers,
// written by tests/models/transformers_models.py), on several ranks, and what is refused.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/bindings/fixture.h"

using namespace moe::lua;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kModels = MOE_SOURCE_DIR "/tests/data/transformers";

std::vector<fs::path> models() {
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(kModels)) all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

/// Runs the text in a folder that has the files of a model.
std::string outcome(const Folder& folder, const fs::path& model, const std::string& text) {
  fs::copy(model, folder.path(), fs::copy_options::recursive);
  const auto failure = run_recipe(folder, text);
  return failure ? failure->message : "(no error)";
}

const std::string kTrain = R"(
local moe = require "moe"
local function train(t)
  local all = { model = moe.model.from_config "config.json" { seq = 24, batch = 4 },
    parameters = "model.safetensors", tokens = "tokens.json", precision = "f64", ranks = 1,
    optimizer = { name = "sgd", lr = 0.05, momentum = 0 }, steps = 3 }
  for k, v in pairs(t) do all[k] = v end
  return moe.train(all)
end
local function near(a, b, limit, what)
  for i = 1, 3 do
    if not (math.abs(a[i] - b[i]) <= limit) then
      error(("%s: %.17g and %.17g in step %d"):format(what, a[i], b[i], i), 0)
    end
  end
end
)";

std::string refused(const std::string& name, const std::string& text) {
  const Folder folder;
  return outcome(folder, kModels / name, kTrain + text);
}

}  // namespace

TEST_CASE("losses are those of transformers, and the same on two and four ranks") {
  for (const fs::path& model : models()) {
    INFO(model.filename());
    const Folder folder;
    const std::string losses = read_file(model / "losses.json");
    const std::string list = "{" + losses.substr(1, losses.size() - 2) + "}";
    CHECK(outcome(folder, model, kTrain + "local theirs = " + list + R"(
      local one = train {}
      near(one.losses, theirs, 3e-6, "transformers")
      near(train { precision = "f32" }.losses, theirs, 1e-5, "float32")
      near(train { ranks = 2 }.losses, one.losses, 1e-9, "two ranks")
      local four = train { ranks = 4, system = moe.system "prophet" {} }
      near(four.losses, one.losses, 1e-9, "four ranks")
    )") == "(no error)");
  }
}

// tests/data/named: the published models, shrunk, with the other settings of their own config.json.
TEST_CASE("a published model has the logits of its own config.json") {
  const fs::path named = MOE_SOURCE_DIR "/tests/data/named";
  const auto models = nlohmann::json::parse(read_file(named / "models.json"));
  for (const auto& [name, row] : models.items()) {
    INFO(name);
    const Folder folder;
    folder.write("config.json", row["config"].dump());
    fs::copy(named / row["file"].get<std::string>(), folder.path("model.safetensors"));
    fs::copy(named / "tokens.json", folder.path("tokens.json"));
    const std::string losses = row["losses"].dump();
    const auto failure = run_recipe(folder, kTrain + "local name, theirs = '" + name + "', {" +
                                                losses.substr(1, losses.size() - 2) + "}" + R"(
      local read = train {}.losses
      near(read, theirs, 3e-6, "transformers")
      local tiny = moe.model.from_config "config.json" { seq = 24, batch = 4 }
      local sizes = { name = tiny.name, seq = 24, batch = 4 }
      for _, field in ipairs { "vocab", "layers", "hidden", "heads", "kv_heads", "head_dim",
          "experts", "k", "ffn", "expert_ffn", "shared_ffn", "dense_layers", "kv_rank", "q_rank",
          "nope", "value_dim", "rotary" } do
        sizes[field] = tiny[field]
      end
      if name == "hunyuan_a13b" then sizes.theta = tiny.theta end  -- it depends on head_dim
      -- The scale of latent attention depends on the width of a head.
      if (tiny.kv_rank or 0) > 0 then sizes.attention_scale = tiny.attention_scale end
      local model = moe.model[name](sizes)
      -- The router's fields, and all others that are no tables.
      local function differ(one, two, what)
        for field, value in pairs(one) do
          if field == "router" then
            differ(value, two.router, "router.")
          elseif type(value) ~= "table" and field ~= "root" and two[field] ~= value then
            error(("%s%s: %s and %s"):format(what, field, value, two[field]), 0)
          end
        end
      end
      differ(tiny, model, "")
      differ(model, tiny, "")
      near(train { model = model }.losses, read, 0, "the named model")
    )");
    CHECK((failure ? failure->message : "") == "");
  }
}

TEST_CASE("open models train the same bits with blocks that run again") {
  for (const char* name : {"mixtral", "deepseek_v3", "gpt_oss"}) {
    INFO(name);
    const Folder folder;
    CHECK(outcome(folder, kModels / name, kTrain + R"(
      local function trained(recompute)
        local r = train { ranks = 2, system = moe.system "lancet_dw" { recompute = recompute } }
        return r.digest .. " " .. table.concat(r.losses, " "), r.peak_bytes
      end
      local kept, kept_bytes = trained "none"
      local again, bytes = trained "blocks"
      assert(kept == again and bytes < kept_bytes)
    )") == "(no error)");
  }
}

TEST_CASE("what is written is read again, and trains on where it stopped") {
  for (const char* name : {"gpt_oss", "deepseek_v3", "granitemoe"}) {
    INFO(name);
    const Folder folder;
    CHECK(outcome(folder, kModels / name, kTrain + R"(
      local whole = train {}
      train { steps = 1, ranks = 2, parameters_to = "mine.safetensors" }
      local rest = train { steps = 2, parameters = "mine.safetensors" }
      for i = 1, 2 do assert(math.abs(rest.losses[i] - whole.losses[i + 1]) < 1e-12) end
      train { steps = 1, parameters_to = "short.safetensors", parameters_as = "BF16" }
      local near = train { steps = 1, parameters = "short.safetensors" }
      assert(math.abs(near.losses[1] - whole.losses[2]) < 0.02)
    )") == "(no error)");
    const auto bytes = [&](const char* file) {
      return static_cast<double>(fs::file_size(folder.path(std::string("out/") + file)));
    };
    CHECK(bytes("mine.safetensors") > 2 * bytes("short.safetensors"));
  }
}

TEST_CASE("gradients of open models agree with central differences") {
  for (const char* name : {"gpt_oss", "deepseek_v3", "qwen2_moe"}) {
    INFO(name);
    const Folder folder;
    CHECK(outcome(folder, kModels / name, kTrain + R"(
      local model = moe.model.from_config "config.json" { seq = 24, batch = 4 }
      local list, worst = moe.check_gradients { model = model, parameters = "model.safetensors",
        tokens = "tokens.json" }
      assert(#list > 15 and worst == list[1].error)
      if worst > 1e-6 then error(list[1].parameter .. ": " .. worst, 0) end
    )") == "(no error)");
  }
}

TEST_CASE("weights in another folder are read only if --read names it") {
  const Folder folder;
  const std::string recipe = "require('moe').model.from_config '" + (kModels / "olmoe").string() +
                             "/config.json' { seq = 8, batch = 2 }";
  CHECK_THAT(run_recipe(folder, recipe)->message, Contains("if --read names its folder"));
  CHECK_FALSE(run_recipe(folder, recipe,
                         [](HostOptions& options) { options.readable = {kModels.string()}; }));
  const std::string by_name =
      "require('moe').model.from_config 'olmoe/config.json' "
      "{ seq = 8, batch = 2 }";
  CHECK_THAT(run_recipe(folder, by_name)->message, Contains("or a folder of --read"));
  CHECK_FALSE(run_recipe(folder, by_name,
                         [](HostOptions& options) { options.readable = {kModels.string()}; }));
}

TEST_CASE("checkpoints, tokens and configs that do not fit are refused by name") {
  CHECK_THAT(refused("mixtral", "train { parameters = 'config.json' }"),
             Contains("config.json: it is not the index of a checkpoint"));
  CHECK_THAT(refused("mixtral", "train { parameters = 'none.safetensors' }"),
             Contains("cannot read none.safetensors"));
  CHECK_THAT(refused("mixtral", "train { parameters = 'recipe.lua' }"), Contains("recipe.lua"));
  CHECK_THAT(
      refused("mixtral",
              "train { model = moe.model.from_config 'config.json' "
              "{ seq = 24, batch = 4, experts = 8 } }"),
      Contains("it has no tensor 'model.layers.0.block_sparse_moe.experts.4.w1.weight'") ||
          Contains("'model.layers.0.block_sparse_moe.gate.weight' is [4,16], but the parameter "
                   "b0.gate.w needs [8,16]"));
  CHECK_THAT(refused("mixtral", "train { tokens = 'losses.json' }"),
             Contains("it is not a list of rows of token ids"));
  CHECK_THAT(
      refused("mixtral",
              "train { model = moe.model.from_config 'config.json' { seq = 8, batch = 4 } }"),
      Contains("row 1 has 25 ids, but must have model.seq + 1 = 9"));
  CHECK_THAT(
      refused("mixtral", "train { tokens = 'words' }"),
      Contains("moe.train.tokens: 'words' is not allowed; give text, reference or the name"));
  CHECK_THAT(refused("mixtral",
                     "train { model = moe.model.gpt2_moe { layers = 2, hidden = 16, "
                     "heads = 2, vocab = 32, seq = 24, batch = 4, experts = 4 } }"),
             Contains("make the model by moe.model.from_config"));
  CHECK_THAT(refused("mixtral", "moe.model.phi_3_5_moe { seq = 8, batch = 1 }"),
             Contains("needs the SparseMixer router"));
  CHECK_THAT(refused("mixtral", "moe.model.from_config 'losses.json'"),
             Contains("it is not a config.json of a model"));
}

TEST_CASE(
    "a key of a config of another kind, or without which a model would be another, is named") {
  const auto with = [](const std::string& name, const nlohmann::json& patch) {
    const Folder folder;
    auto config = nlohmann::json::parse(read_file(kModels / name / "config.json"));
    config.merge_patch(patch);  // null removes a key
    folder.write("own.json", config.dump());
    return outcome(folder, kModels / name,
                   "require('moe').model.from_config 'own.json' { seq = 8, batch = 2 }");
  };
  using nlohmann::json;
  CHECK(with("deepseek_v3", json::object()) == "(no error)");
  CHECK_THAT(with("deepseek_v3", {{"n_shared_experts", "2"}}),
             Contains("own.json: n_shared_experts: '2' is not allowed; give a number"));
  CHECK_THAT(with("deepseek_v3", {{"rope_parameters", 7}}),
             Contains("own.json: rope_parameters: 7"));
  CHECK_THAT(with("mixtral", {{"tie_word_embeddings", "no"}}),
             Contains("own.json: tie_word_embeddings: 'no' is not allowed; give a boolean"));
  CHECK_THAT(with("mixtral", {{"hidden_act", json::object()}}), Contains("own.json: hidden_act"));
  CHECK_THAT(with("qwen3_moe", {{"mlp_only_layers", {"x"}}}), Contains("mlp_only_layers"));
  using Keys = std::tuple<const char*, const char*, const char*>;  // model, key, as it is misspelt
  for (const auto& [model, key, misspelt] :
       {Keys{"mixtral", "num_local_experts", "num_local_expert"},
        Keys{"mixtral", "num_hidden_layers", "num_hiden_layers"},
        Keys{"mixtral", "intermediate_size", "intermediate_sise"},
        Keys{"mixtral", "rms_norm_eps", "rms_norm_epsilon"},
        Keys{"deepseek_v3", "n_routed_experts", "n_routed_expert"},
        Keys{"deepseek_v3", "kv_lora_rank", "kv_lora_ranks"},
        Keys{"qwen3_moe", "moe_intermediate_size", "moe_intermediate_sise"}}) {
    CHECK_THAT(with(model, {{key, nullptr}, {misspelt, 8}}),
               Contains(std::string(misspelt) + " = 8: is a field that is not read here; is it " +
                        "misspelt for '" + key + "'?"));
  }
  CHECK_THAT(with("mixtral", {{"model_type", "foo"}}), Contains("is not known, have: afmoe"));
  CHECK_THAT(with("mixtral", {{"text_config", {{"model_type", "qwen3_5_moe_text"}}}}),
             Contains("needs linear attention, which does not exist here"));
  const json dynamic = {{"rope_type", "dynamic"}, {"rope_theta", 1e4}, {"factor", 2}};
  CHECK(with("mixtral", {{"rope_parameters", dynamic}}) == "(no error)");
  CHECK_THAT(
      with("mixtral", {{"rope_parameters", dynamic}, {"max_position_embeddings", 4}}),
      Contains("own.json.seq: 8 is not allowed; give at most 4: beyond it attention scales"));
  CHECK_THAT(with("mixtral", {{"attention_dropout", 0.3}}),
             Contains("own.json: attention_dropout = 0.3: only 0 is built"));
  CHECK_THAT(with("mixtral", {{"router_jitter_noise", 0.3}}), Contains("router_jitter_noise"));
  CHECK_THAT(with("mixtral", {{"output_router_logits", true}}), Contains("output_router_logits"));
  const json of_one_kind = {{"full_attention", nullptr},
                            {"sliding_attention", {{"rope_theta", 1e4}}}};
  CHECK_THAT(with("mixtral", {{"rope_parameters", of_one_kind}}),
             Contains("own.json: rope_parameters.full_attention: is null, which is not built"));
  for (const char* const key : {"moe_topk", "num_shared_expert", "moe_intermediate_size"}) {
    CHECK_THAT(with("hunyuan_v1_moe", {{key, {1, 2}}}),
               Contains(std::string(key) + ": a number of its own per block is not built"));
  }
}
