#include "bindings/infer.h"

#include <algorithm>

#include "bindings/host/files.h"
#include "bindings/host/userdata.h"
#include "engine/exec/parameters.h"

namespace moe::lua {
namespace {

using nlohmann::json;

/// By batch: the share of predictions that are the data's target.
std::vector<double> accuracy(const RunResult& result, const Plan& plan, const DataSource& data,
                             int64_t first_step) {
  const auto tokens = static_cast<size_t>(plan.spec.model.tokens_per_rank());
  std::vector<int32_t> ids(tokens), targets(tokens);
  std::vector<double> all;
  for (const std::vector<int32_t>& batch : result.predictions) {
    const int64_t step = first_step + static_cast<int64_t>(all.size());
    size_t right = 0, at = 0;
    for (int64_t rank = 0; rank < plan.spec.num_ranks; ++rank) {
      data(step, rank, ids.data(), targets.data());
      for (const int32_t target : targets) right += batch.at(at++) == target ? 1 : 0;
    }
    all.push_back(static_cast<double>(right) / static_cast<double>(at));
  }
  return all;
}

const SwapRecord* swap_of(const std::vector<SwapRecord>& batch, int64_t block) {
  const auto found = std::find_if(batch.begin(), batch.end(),
                                  [&](const SwapRecord& record) { return record.layer == block; });
  return found == batch.end() ? nullptr : &*found;
}

/// Rows of tokens a rank where each expert is on its owner.
std::vector<int64_t> rows_of_owners(const MoeStats& layer, int64_t ranks, int64_t experts) {
  std::vector<int64_t> rows(static_cast<size_t>(ranks));
  for (size_t i = 0; i < layer.counts.size(); ++i) {
    const int64_t expert = static_cast<int64_t>(i) % experts;
    rows[static_cast<size_t>(expert * ranks / experts)] += layer.counts[i];
  }
  return rows;
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
    options.popularity = check_userdata<ProfileBox>(L, lua_gettop(L), kProfileType).profile;
  }
  lua_pop(L, 1);
}

json inference_json(const RunResult& result, const Plan& plan, const DataSource& data,
                    int64_t first_step) {
  const ModelSpec& model = plan.spec.model;
  const int64_t ranks = plan.spec.num_ranks;
  uint64_t digest = kFnvStart;
  for (const std::vector<int32_t>& batch : result.predictions) {
    digest = fnv1a(digest, batch.data(), batch.size() * sizeof(int32_t));
  }
  json phase_2 = json::array(), again = json::array(), rows = json::array();
  for (size_t i = 0; i < result.moe.size(); ++i) {
    const std::vector<SwapRecord> none;
    const std::vector<SwapRecord>& swaps = result.swaps.empty() ? none : result.swaps.at(i);
    json again_of = json::array(), rows_of = json::array();
    for (const MoeStats& layer : result.moe[i]) {
      const SwapRecord* swap = swap_of(swaps, layer.layer);
      if (i == 0) phase_2.push_back(swap != nullptr && swap->fine_tunes);
      again_of.push_back(swap != nullptr && swap->again);
      rows_of.push_back(swap != nullptr ? swap->rows : rows_of_owners(layer, ranks, model.experts));
    }
    again.push_back(std::move(again_of));
    rows.push_back(std::move(rows_of));
  }
  json out = {{"digest", fmt::format("{:016x}", digest)},
              {"accuracy", accuracy(result, plan, data, first_step)},
              {"phase_2", phase_2},
              {"placed_again", again}};
  if (model.ep == 0 || model.ep == ranks) out["rows"] = rows;
  return out;
}

}  // namespace moe::lua
