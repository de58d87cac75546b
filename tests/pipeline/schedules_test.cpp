// Built-in schedules: that they are legal, the closed forms of their bubbles and activations, and
// which numbers they refuse.
#include <functional>

#include "tests/pipeline/support.h"

namespace moe::test {
namespace {

using pipeline::Costs;
using pipeline::Query;

/// Calls check(F, I, W, costs) for all times from 1 to 5 of a pipeline with so many stages.
void for_all_times(int64_t stages,
                   const std::function<void(double, double, double, const Costs&)>& check) {
  for (int f = 1; f <= 5; ++f) {
    for (int i = 1; i <= 5; ++i) {
      for (int w = 1; w <= 5; ++w) check(f, i, w, alike(stages, f, i, w));
    }
  }
}

std::string code_of_schedule(const std::string& name, const Query& query) {
  return code_of([&] { scheduled(name, query); });
}

TEST_CASE("all schedules are without faults wherever they exist, also of fewer micro-batches") {
  int legal = 0;
  for (const pipeline::ScheduleDef& def : pipeline::schedules()) {
    for (int64_t ranks = 1; ranks <= 9; ++ranks) {
      for (int64_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
        for (int64_t chunks = 1; chunks <= 3; ++chunks) {
          const Query query{ranks, chunks, micro_batches};
          if (!code_of_schedule(def.name, query).empty()) continue;
          const Pipeline p = scheduled(def.name, query);
          CHECK(find_faults(p.rows, p.shape, false).empty());
          ++legal;
        }
      }
    }
  }
  CHECK(legal == 216 + 84 + 268 + 532 + 135);  // 1f1b, interleaved twice, zb_h1, dualpipev
}

TEST_CASE("1f1b has the bubble (P-1)(F+B) and holds min(P-r, M) for any number of micro-batches") {
  for (const int64_t ranks : {1, 2, 3, 5, 8}) {
    for (const int64_t micro_batches : {1, 2, 4, 7, 16}) {
      const Pipeline p = scheduled("1f1b", {ranks, 1, micro_batches});
      for_all_times(ranks, [&](double f, double i, double w, const Costs& costs) {
        const double bubble = static_cast<double>(ranks - 1) * (f + i + w);
        CHECK(p.times(costs).bubble == std::vector<double>(p.rows.size(), bubble));
      });
      const std::vector<double> held = peaks(p.rows, {}, 1);
      for (size_t r = 0; r < held.size(); ++r) {
        CHECK(held[r] == std::min<double>(static_cast<double>(ranks) - static_cast<double>(r),
                                          static_cast<double>(micro_batches)));
      }
    }
  }
}

TEST_CASE("interleaving divides the bubble by the stages per rank, in groups of any legal size") {
  for (const Query& q : {Query{2, 2, 4}, {4, 2, 8}, {4, 3, 16, 6}, {3, 4, 9}, {4, 2, 7, 7}}) {
    const Pipeline p = scheduled("interleaved", q);
    for_all_times(q.ranks * q.chunks, [&](double f, double i, double w, const Costs& costs) {
      const double bubble = static_cast<double>(q.ranks - 1) * (f + i + w);
      CHECK(p.times(costs).bubble == std::vector<double>(p.rows.size(), bubble));
    });
    const std::vector<double> held = peaks(p.rows, {}, 1);
    const int64_t group = q.group > 0 ? q.group : q.ranks;
    for (size_t r = 0; r < held.size(); ++r) {
      const auto behind = q.ranks - 1 - static_cast<int64_t>(r);
      CHECK(held[r] == static_cast<double>((q.chunks - 1) * group + 2 * behind + 1));
    }
  }
}

TEST_CASE("PyTorch's interleaving of fewer micro-batches than ranks waits for the missing ones") {
  for (const Query& q : {Query{4, 2, 3}, {5, 3, 2}, {8, 2, 1}}) {
    const Pipeline p = scheduled("interleaved_torch", q);
    for_all_times(q.ranks * q.chunks, [&](double f, double i, double w, const Costs& costs) {
      const int64_t turns = q.ranks - 1 + (q.chunks - 1) * (q.ranks - q.micro_batches);
      CHECK(p.times(costs).bubble ==
            std::vector<double>(p.rows.size(), static_cast<double>(turns) * (f + i + w)));
    });
  }
}

TEST_CASE("zb_h1 has the bubble (P-1)(F+I-W) on every rank exactly where W is not the longest") {
  for (const int64_t ranks : {2, 3, 5}) {
    const Pipeline p = scheduled("zb_h1", {ranks, 1, 2 * ranks + 1});
    for_all_times(ranks, [&](double f, double i, double w, const Costs& costs) {
      const double bubble = static_cast<double>(ranks - 1) * (f + i - w);
      CHECK((p.times(costs).bubble == std::vector<double>(p.rows.size(), bubble)) ==
            (w <= std::min(f, i)));
    });
    for (const double keep_w : {0.0, 0.25, 1.0}) {
      const std::vector<double> held = peaks(p.rows, {}, keep_w);
      for (size_t r = 0; r < held.size(); ++r) {
        const auto before = static_cast<double>(r);
        CHECK(held[r] == static_cast<double>(ranks) - before + before * keep_w);
      }
    }
  }
}

TEST_CASE("dualpipev has its bubble in closed form on every rank where F is at least I") {
  for (const Query& q : {Query{1, 2, 3}, {2, 2, 5}, {3, 2, 6}, {4, 2, 11}}) {
    const Pipeline p = scheduled("dualpipev", q);
    for_all_times(2 * q.ranks, [&](double f, double i, double w, Costs costs) {
      if (f < i) return;
      const double b = i + w;
      for (const double pair : {std::max(f, b), f + b}) {
        costs.pair = pipeline::PairRule::kFixed, costs.pair_value = pair;
        const std::vector<double> bubble = p.times(costs).bubble;
        for (size_t r = 0; r < bubble.size(); ++r) {
          const int64_t behind = std::max<int64_t>(0, q.ranks - 2 - static_cast<int64_t>(r));
          CHECK(bubble[r] == static_cast<double>(q.ranks - 1) * (pair + f - w - std::min(w, i)) -
                                 static_cast<double>(behind) * (f + b - pair));
        }
      }
    });
    const double held = static_cast<double>(2 * q.ranks + 1);
    CHECK(peaks(p.rows, {}, 1) == std::vector<double>(p.rows.size(), held));
  }
}

TEST_CASE("a schedule that does not exist for the numbers is refused with a code") {
  CHECK(code_of_schedule("1f1b", {4, 2, 8}) == "one_stage_a_rank");
  CHECK(code_of_schedule("interleaved", {4, 1, 8}) == "needs_virtual_stages");
  CHECK(code_of_schedule("interleaved", {1, 1, 8}) == "needs_virtual_stages");
  CHECK(code_of_schedule("interleaved", {1, 2, 8}) == "needs_ranks");
  CHECK(code_of_schedule("interleaved", {4, 2, 3, 2}) == "group_below_ranks");
  CHECK(code_of_schedule("interleaved", {4, 2, 3}) == "group_above_micro_batches");
  CHECK(code_of_schedule("interleaved", {4, 2, 15, 6}) == "short_last_group");
  CHECK(code_of_schedule("interleaved", {4, 2, 16, 6}).empty());
  CHECK(code_of_schedule("interleaved_torch", {4, 2, 9}) == "uneven_rounds");
  CHECK(code_of_schedule("zb_h1", {4, 2, 9}) == "uneven_rounds");
  CHECK(code_of_schedule("zb_h1", {4, 1, 9}).empty());
  CHECK(code_of_schedule("dualpipev", {3, 1, 2}) == "two_stages_a_rank");
  CHECK(code_of_schedule("dualpipev", {3, 2, 5}) == "too_few_micro_batches");
}

}  // namespace
}  // namespace moe::test
