#include "engine/routing/formats/trace_batches.h"

#include "engine/base/index.h"

namespace moe {
namespace {

int64_t number_of(const std::vector<int64_t>& sorted, int64_t value) {
  return std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin();
}

/// Throws UserError when, in a step and rank, a layer is missing or has another number of tokens
/// than the first layer.
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

}  // namespace

void check_record(const Trace& t, int64_t step, int64_t layer) {
  if (step < 0 || step >= t.steps || layer < 0 || layer >= t.layers) {
    throw user_error("there is no step {}, layer {}: the trace has {} steps of {} layers each",
                     step + 1, layer + 1, t.steps, t.layers);
  }
}

Trace trace_of(const Batches& batches, int64_t experts, int64_t k, const std::string& source) {
  if (batches.empty()) throw user_error("{}: the file contains no routing", source);
  const std::vector<int64_t> steps = values_of<0>(batches), layers = values_of<1>(batches),
                             ranks = values_of<2>(batches);
  check_layers(batches, steps, layers, ranks, k, source);
  Trace t;
  t.steps = static_cast<int64_t>(steps.size());
  t.layers = static_cast<int64_t>(layers.size());
  t.ranks = static_cast<int64_t>(ranks.size());
  t.k = k;
  t.blocks.assign(layers.begin(), layers.end());
  int64_t highest = 0, known = 0;
  for (const auto& [key, batch] : batches) {
    known += 1 + static_cast<int64_t>(batch.experts.size());
    t.tokens = std::max(t.tokens, static_cast<int64_t>(batch.experts.size()) / k);
    for (const int64_t e : batch.experts) highest = std::max(highest, e);
  }
  t.experts = experts > 0 ? experts : highest + 1;
  check_room(t, known, source);
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

}  // namespace moe
