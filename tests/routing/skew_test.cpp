#include <algorithm>
#include <catch2/catch.hpp>

#include "engine/base/errors.h"
#include "engine/routing/workload.h"
#include "tests/base/message_of.h"

namespace moe {
namespace {

TEST_CASE("zipf with max_over_mean reaches the wanted load of the heaviest rank") {
  for (const double wanted : {1.2, 2.01, 3.03}) {
    for (const int64_t k : {1, 8}) {
      const RoutingModel zipf = workload("zipf", {{"max_over_mean", wanted}}, 5);
      const ExpertCounts loads = zipf.loads({.ranks = 16, .tokens = 8192, .experts = 64, .k = k});
      std::vector<int64_t> of_rank(16);
      for (int64_t e = 0; e < 64; ++e) of_rank[static_cast<size_t>(e / 4)] += loads.of_expert(e);
      const auto most = static_cast<double>(*std::max_element(of_rank.begin(), of_rank.end()));
      CAPTURE(wanted, k);
      CHECK(most * 16 / static_cast<double>(loads.total()) == Approx(wanted).epsilon(0.02));
    }
  }
  const std::string message = test::message_of<UserError>([] {
    workload("zipf", {{"max_over_mean", 17}}, 5)
        .loads({.ranks = 16, .tokens = 8, .experts = 64, .k = 1});
  });
  CHECK_THAT(message, Catch::Contains("max_over_mean = 17") && Catch::Contains("to 16"));
}

TEST_CASE("laws about ranks count the ranks of the group that holds all experts") {
  const RoutingQuery query{.ranks = 32, .tokens = 2048, .experts = 64, .k = 2};
  const RoutingModel all = workload("zipf", {{"max_over_mean", 1.5}}, 5), eight = in_groups(all, 8);
  const auto most_of = [&](const RoutingModel& model, int64_t ranks) {
    const ExpertCounts loads = model.loads(query);
    std::vector<int64_t> of_rank(static_cast<size_t>(ranks));
    for (int64_t e = 0; e < 64; ++e) {
      of_rank[static_cast<size_t>(e * ranks / 64)] += loads.of_expert(e);
    }
    return static_cast<double>(ranks * *std::max_element(of_rank.begin(), of_rank.end())) /
           static_cast<double>(loads.total());
  };
  CHECK(most_of(eight, 8) == Approx(1.5).epsilon(0.02));
  CHECK(most_of(all, 32) == Approx(1.5).epsilon(0.02));
  CHECK(most_of(all, 8) < 1.4);
  // Half of the choices on the eight experts of one rank of a group.
  const RoutingModel hot = in_groups(workload("hot_rank", {{"share", 0.5}}, 5), 8);
  CHECK(most_of(hot, 8) == Approx(4).epsilon(0.02));
}

}  // namespace
}  // namespace moe
