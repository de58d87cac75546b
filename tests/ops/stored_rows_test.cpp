// Packed rows: where the rows in use of blocks are stored.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/rng.h"
#include "engine/ops/stored_rows.h"

namespace moe::test {
namespace {

using ops::BlockSizes;
using ops::StoredBlock;

constexpr int64_t kBlocks = 6, kCapacity = 9, kParts = 3;

/// Returns random row ends [parts, blocks], which do not decrease from part to part.
std::vector<int32_t> random_ends(Rng& rng) {
  std::vector<int32_t> ends(kBlocks * kParts);
  for (int64_t i = 0; i < kBlocks * kParts; ++i) {
    const int32_t before = i < kBlocks ? 0 : ends[static_cast<size_t>(i - kBlocks)];
    const auto most = static_cast<uint64_t>(kCapacity - before + 1);
    ends[static_cast<size_t>(i)] = before + static_cast<int32_t>(rng.next() % most);
  }
  return ends;
}

TEST_CASE("packed rows are stored one after the other, part by part and block by block") {
  Rng rng(5);
  for (int i = 0; i < 50; ++i) {
    const std::vector<int32_t> ends = random_ends(rng);
    int64_t next = 0;
    ops::for_each_block({kBlocks, kCapacity, kParts, true}, ends.data(), nullptr,
                        [&](int64_t, const StoredBlock& block) {
                          CHECK(block.row_0 + block.rows.begin == next);
                          next += block.rows.count();
                        });
    int64_t all = 0;
    for (int64_t b = 0; b < kBlocks; ++b) all += ends[static_cast<size_t>(2 * kBlocks + b)];
    CHECK(next == all);
  }
}

TEST_CASE("a part of the batch finds its rows where the whole batch has them") {
  Rng rng(6);
  for (int i = 0; i < 50; ++i) {
    const std::vector<int32_t> ends = random_ends(rng);
    const auto whole = ops::stored_blocks({kBlocks, kCapacity, kParts, true}, ends.data(), nullptr);
    for (int64_t part = 0; part < kParts; ++part) {
      const int32_t* const begins = part == 0 ? nullptr : ends.data() + (part - 1) * kBlocks;
      const auto alone =
          ops::stored_blocks({kBlocks, kCapacity, 1, true}, ends.data() + part * kBlocks, begins);
      for (int64_t b = 0; b < kBlocks; ++b) {
        const StoredBlock& mine = alone[static_cast<size_t>(b)];
        const StoredBlock& same = whole[static_cast<size_t>(part * kBlocks + b)];
        CHECK(mine.row_0 == same.row_0);
        CHECK(mine.rows.begin == same.rows.begin);
        CHECK(mine.rows.end == same.rows.end);
      }
    }
  }
}

TEST_CASE("padded rows begin at multiples of the capacity") {
  const std::vector<int32_t> ends = {3, 0, 9, 1, 2, 5};
  const auto blocks = ops::stored_blocks({kBlocks, kCapacity}, ends.data(), nullptr);
  for (int64_t b = 0; b < kBlocks; ++b) {
    CHECK(blocks[static_cast<size_t>(b)].row_0 == b * kCapacity);
    CHECK(blocks[static_cast<size_t>(b)].rows.end == ends[static_cast<size_t>(b)]);
  }
}

TEST_CASE("packed slots: each kept choice has a row of its own, in the order of its slot") {
  // Experts 0, 1, 2 hold 2, 0, 3 choices; choice 2 was dropped.
  const std::vector<int32_t> counts = {2, 0, 3}, slots = {18, 0, -1, 20, 1, 19};
  std::vector<int32_t> rows(slots.size()), choices(6, -1);
  ops::pack_slots({3, kCapacity, 1, true}, counts.data(), nullptr, slots, 100, rows.data(),
                  choices.data());
  CHECK(rows == std::vector<int32_t>{2, 0, -1, 4, 1, 3});
  CHECK(choices == std::vector<int32_t>{101, 104, 100, 105, 103, -1});
}

TEST_CASE("rows without room are named by layer and device") {
  CHECK(ops::no_room(3, 5, 100, 100).empty());
  CHECK_THAT(ops::no_room(3, 5, 101, 100), Catch::Contains("block 3 sends 101 rows to device 5") &&
                                               Catch::Contains("room for 100") &&
                                               Catch::Contains("model.rows_bound"));
}

}  // namespace
}  // namespace moe::test
