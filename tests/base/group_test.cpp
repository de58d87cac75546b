#include "engine/base/group.h"

#include <catch2/catch.hpp>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/grid.h"

namespace moe {
namespace {

TEST_CASE("the groups of a call hold every rank once, members by rising number") {
  for (const int64_t ranks : {1, 2, 6, 8, 12, 16}) {
    for (int64_t size = 1; size <= ranks; ++size) {
      for (int64_t stride = 1; size * stride <= ranks; ++stride) {
        if (ranks % (size * stride) != 0) continue;
        const Group group = resolve({size, stride}, ranks, "test");
        std::set<std::set<int64_t>> groups;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          std::set<int64_t> members;
          for (int64_t other = 0; other < ranks; ++other) {
            const bool together = rank / (size * stride) == other / (size * stride) &&
                                  rank % stride == other % stride;
            CHECK(group.same(rank, other) == together);
            if (together) members.insert(other);
          }
          REQUIRE(static_cast<int64_t>(members.size()) == size);
          int64_t place = 0;
          for (const int64_t member : members) CHECK(group.member(rank, place++) == member);
          CHECK(group.member(rank, group.place(rank)) == rank);
          groups.insert(members);
        }
        CHECK(static_cast<int64_t>(groups.size()) == ranks / size);
      }
    }
  }
}

TEST_CASE("no group is all ranks; one that does not fit is refused with its numbers") {
  CHECK(resolve({}, 12, "x") == Group{12, 1});
  const auto fails = [](Group group) {
    CHECK_THROWS_WITH(resolve(group, 12, "op 'b1.a2a'"),
                      Catch::Contains("op 'b1.a2a'") &&
                          Catch::Contains("group = " + std::to_string(group.size)) &&
                          Catch::Contains("stride = " + std::to_string(group.stride)) &&
                          Catch::Contains("divide the 12 ranks"));
  };
  fails({5, 1});
  fails({4, 2});
  fails({0, 2});
  fails({-1, 1});
  fails({2, 0});
  fails({int64_t{1} << 62, 4});
}

TEST_CASE("the axes of a grid are groups, and so are the ranks with a part of a parameter") {
  const Grid grid = {{2, 3, 4, 1, 6, 4}};  // tp, cp, dp, and etp, ep, edp
  CHECK(grid.over(Axis::kTp) == Group{2, 1});
  CHECK(grid.over(Axis::kCp) == Group{3, 2});
  CHECK(grid.over(Axis::kEp) == Group{6, 1});
  CHECK(copies(grid, {}) == Group{24, 1});
  CHECK(copies(grid, {.split = 0}) == Group{12, 2});
  CHECK(copies(grid, {.moe = true}) == Group{4, 6});
}

}  // namespace
}  // namespace moe
