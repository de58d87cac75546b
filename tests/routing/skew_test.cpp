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

}  // namespace
}  // namespace moe
