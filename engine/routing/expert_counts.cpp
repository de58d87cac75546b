#include "engine/routing/expert_counts.h"

#include <new>
#include <stdexcept>

#include "engine/base/errors.h"

namespace moe {
namespace {

std::vector<int64_t> zeros(int64_t sources, int64_t experts) {
  constexpr double kGiB = 1 << 30;
  const double bytes =
      static_cast<double>(sources) * static_cast<double>(experts) * sizeof(int64_t);
  const auto refused = [&] {
    return run_error(
        "the numbers of rows that {} experts get from each of {} ranks take {:.1f} GiB; there is "
        "not enough memory for them",
        experts, sources, bytes / kGiB);
  };
  try {
    return std::vector<int64_t>(static_cast<size_t>(sources) * static_cast<size_t>(experts));
  } catch (const std::bad_alloc&) {
    throw refused();
  } catch (const std::length_error&) {
    throw refused();
  }
}

}  // namespace

ExpertCounts::ExpertCounts(int64_t num_sources, int64_t num_experts)
    : sources(num_sources), experts(num_experts), rows(zeros(num_sources, num_experts)) {}

ExpertCounts of_group(const ExpertCounts& all, const Group& group, int64_t rank) {
  ExpertCounts counts(group.size, all.experts);
  for (int64_t place = 0; place < group.size; ++place) {
    for (int64_t e = 0; e < all.experts; ++e) {
      counts.at(place, e) = all.at(group.member(rank, place), e);
    }
  }
  return counts;
}

ExpertCounts mean_of_groups(const ExpertCounts& all, const Group& group) {
  ExpertCounts mean(group.size, all.experts);
  for (int64_t rank = 0; rank < all.sources; ++rank) {
    for (int64_t e = 0; e < all.experts; ++e) mean.at(group.place(rank), e) += all.at(rank, e);
  }
  const int64_t groups = all.sources / group.size;
  for (int64_t& rows : mean.rows) rows = (rows + groups - 1) / groups;
  return mean;
}

}  // namespace moe
