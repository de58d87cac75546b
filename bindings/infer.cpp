#include "bindings/infer.h"

#include "bindings/host/files.h"
#include "bindings/host/userdata.h"
#include "engine/analysis/inference.h"
#include "engine/analysis/served_batch.h"

namespace moe::lua {

using nlohmann::json;

namespace {

/// Adds to `out` the times of batches and of their MoE layers.
void add_times(const Plan& plan, const std::vector<Timeline>& timelines, json& out) {
  json answers = json::array(), layers = json::array();
  for (const Timeline& timeline : timelines) {
    const ServedBatch batch = served_batch(plan, timeline);
    answers.push_back(to_ms(batch.answer_ns));
    json times = json::array();
    for (const ServedTimes& t : batch.layers) {
      times.push_back({{"layer_ms", to_ms(t.layer_ns)},
                       {"a2a_ms", to_ms(t.a2a_ns)},
                       {"expert_ms", to_ms(t.expert_ns)},
                       {"phase_2_ms", to_ms(t.phase2_ns)},
                       {"mapping_wait_ms", to_ms(t.mapping_wait_ns)},
                       {"swap_wait_ms", to_ms(t.swap_wait_ns)}});
    }
    layers.push_back(std::move(times));
  }
  out["answer_ms"] = std::move(answers);
  out["layer_times"] = std::move(layers);
}

}  // namespace

void set_inference(lua_State* L, int index, const Fields& fields, const Host& host,
                   InferOptions& options) {
  options.keep_predictions = true;
  if (fields.has("parameters_from")) {
    options.parameters_from = host.files().readable(fields.text("parameters_from")).string();
  }
  lua_getfield(L, index, "popularity");
  if (!lua_isnil(L, -1)) {
    options.popularity = check_userdata<ProfileHandle>(L, lua_gettop(L), kProfileType).profile;
  }
  lua_pop(L, 1);
}

json inference_json(const RunResult& result, const Plan& plan, const DataSource& data,
                    int64_t first_step) {
  const Model& model = *plan.spec.model;
  const int64_t ranks = plan.spec.num_ranks;
  const Group holders = model.grid(ranks).over(Axis::kEp);
  const auto batches = served_layers(result, holders, ranks, model.experts);
  json phase_2 = json::array(), again = json::array(), rows = json::array();
  for (const std::vector<ServedLayer>& batch : batches) {
    json again_of = json::array(), rows_of = json::array();
    for (const ServedLayer& layer : batch) {
      if (&batch == &batches.front()) phase_2.push_back(layer.fine_tunes);
      again_of.push_back(layer.placed_again);
      rows_of.push_back(layer.rows);
    }
    again.push_back(std::move(again_of));
    rows.push_back(std::move(rows_of));
  }
  json out = {
      {"digest", fmt::format("{:016x}", digest_of(result.predictions))},
      {"accuracy", accuracy(result.predictions, ranks, model.tokens_per_rank(), data, first_step)},
      {"phase_2", phase_2},
      {"placed_again", again},
      {"rows", rows}};
  add_times(plan, result.timelines, out);
  return out;
}

}  // namespace moe::lua
