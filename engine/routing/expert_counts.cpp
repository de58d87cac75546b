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

}  // namespace moe
