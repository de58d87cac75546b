#include "engine/analysis/inference.h"

#include <algorithm>

#include "engine/base/fnv.h"

namespace moe {
namespace {

const OffloadRecord* offload_of(const std::vector<OffloadRecord>& batch, int64_t block) {
  const auto found = std::find_if(batch.begin(), batch.end(), [&](const OffloadRecord& record) {
    return record.layer == block;
  });
  return found == batch.end() ? nullptr : &*found;
}

}  // namespace

std::vector<double> accuracy(const std::vector<std::vector<int32_t>>& predictions, int64_t ranks,
                             int64_t tokens_per_rank, const DataSource& data, int64_t first_step) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens_per_rank)), targets(ids.size());
  std::vector<double> all;
  for (const std::vector<int32_t>& batch : predictions) {
    const int64_t step = first_step + static_cast<int64_t>(all.size());
    size_t right = 0, at = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      data(step, rank, ids.data(), targets.data());
      for (const int32_t target : targets) right += batch.at(at++) == target ? 1 : 0;
    }
    all.push_back(static_cast<double>(right) / static_cast<double>(at));
  }
  return all;
}

uint64_t digest_of(const std::vector<std::vector<int32_t>>& predictions) {
  uint64_t digest = kFnvStart;
  for (const std::vector<int32_t>& batch : predictions) {
    digest = fnv1a(digest, batch.data(), batch.size() * sizeof(int32_t));
  }
  return digest;
}

std::vector<int64_t> rows_of_owners(const MoeStats& layer, const Group& group, int64_t ranks,
                                    int64_t experts) {
  std::vector<int64_t> rows(static_cast<size_t>(ranks));
  for (size_t i = 0; i < layer.counts.size(); ++i) {
    const int64_t source = static_cast<int64_t>(i) / experts,
                  expert = static_cast<int64_t>(i) % experts;
    const int64_t owner = group.member(source, expert * group.size / experts);
    rows[static_cast<size_t>(owner)] += layer.counts[i];
  }
  return rows;
}

std::vector<std::vector<ServedLayer>> served_layers(const RunResult& result, const Group& group,
                                                    int64_t ranks, int64_t experts) {
  std::vector<std::vector<ServedLayer>> batches;
  for (size_t i = 0; i < result.moe.size(); ++i) {
    const std::vector<OffloadRecord> none;
    const std::vector<OffloadRecord>& offloads =
        result.offloads.empty() ? none : result.offloads.at(i);
    std::vector<ServedLayer> layers;
    for (const MoeStats& layer : result.moe[i]) {
      const OffloadRecord* const offload = offload_of(offloads, layer.layer);
      layers.push_back(offload == nullptr
                           ? ServedLayer{false, false, rows_of_owners(layer, group, ranks, experts)}
                           : ServedLayer{offload->fine_tunes, offload->again, offload->rows});
    }
    batches.push_back(std::move(layers));
  }
  return batches;
}

}  // namespace moe
