// Where the rows of a tensor in blocks of slots are stored: [E,C,..] at the source of the tokens,
// [El,P,C,..] at the experts (letters as in ops.h). With Tensor::stored_rows = 0 each block has
// room for C rows, and row r of block b is row b C + r. Otherwise the tensor is packed: only rows
// in use are stored, block after block, so that the place of a block follows from the counts of
// this step. If the layer is cut into parts of the batch, the rows of part 0 come first, in the
// order of the blocks, then those of part 1, and so on.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/base/errors.h"
#include "engine/ops/row_cut.h"

namespace moe::ops {

/// The rows in use of one block, or of one part of the batch in this block.
struct StoredBlock {
  Rows rows;
  int64_t row_0;  // the number of the block's row 0 in the storage; below 0 if it is not stored
};

/// The sizes of a tensor in blocks.
struct BlockSizes {
  int64_t blocks, capacity;
  int64_t parts = 1;    // parts of the batch that `ends` has; more than 1 only if packed
  bool packed = false;  // whether only rows in use are stored
};

/// Calls f(block, StoredBlock) for all blocks in the order of their storage, for each part of the
/// batch. ends [parts, blocks]: where the rows of each part end. begins [blocks], null for zeros:
/// where the rows of the first part begin; the other parts begin where the part before ended.
template <class F>
void for_each_block(const BlockSizes& sizes, const int32_t* ends, const int32_t* begins, F f) {
  int64_t stored =
      begins == nullptr ? 0 : std::accumulate(begins, begins + sizes.blocks, int64_t{0});
  for (int64_t part = 0; part < sizes.parts; ++part) {
    for (int64_t b = 0; b < sizes.blocks; ++b) {
      const int64_t begin = begins == nullptr ? 0 : begins[b];
      const Rows rows{begin, std::max<int64_t>(begin, ends[b])};
      f(b, StoredBlock{rows, sizes.packed ? stored - begin : b * sizes.capacity});
      stored += rows.count();
    }
    begins = ends;
    ends += sizes.blocks;
  }
}

/// Returns what for_each_block passes, in its order.
inline std::vector<StoredBlock> stored_blocks(const BlockSizes& sizes, const int32_t* ends,
                                              const int32_t* begins) {
  std::vector<StoredBlock> all;
  all.reserve(static_cast<size_t>(sizes.parts * sizes.blocks));
  for_each_block(sizes, ends, begins,
                 [&](int64_t, const StoredBlock& block) { all.push_back(block); });
  return all;
}

/// Returns the sizes of tensor `rows` in `blocks` blocks of `capacity` rows, whose counts are
/// tensor `ends` (invalid: none).
inline BlockSizes block_sizes(const Graph& graph, TensorId rows, int64_t blocks, int64_t capacity,
                              TensorId ends) {
  const bool packed = graph.tensor(rows).stored_rows > 0;
  const int64_t parts =
      packed && ends.valid() ? num_elements(graph.tensor(ends).shape) / blocks : 1;
  return {blocks, capacity, parts, packed};
}

/// Returns the message for a device that gets more rows in an MoE layer, that of block `block`,
/// than its packed rows have room for; "" if there is room.
inline std::string no_room(int32_t block, int64_t device, int64_t rows, int64_t room) {
  if (rows <= room) return "";
  return fmt::format(
      "the MoE layer of block {} sends {} rows to device {}, but the buffers of a device have room "
      "for {}, which is model.rows_bound times the rows of its own tokens; raise model.rows_bound, "
      "or limit the rows by model.capacity_factor",
      block, rows, device, room);
}

/// Renumbers the slots of choices. choice_slot: e * capacity + position for each choice, or -1.
/// `sizes`, ends, begins: the blocks of the experts, of one part of the batch, as in
/// for_each_block. Sets packed_choice_slot[i] to the row of choice i in the packed rows, or -1, and
/// packed_slot_choice[row] to first_choice + i; does not write other rows of packed_slot_choice.
inline void pack_slots(const BlockSizes& sizes, const int32_t* ends, const int32_t* begins,
                       std::span<const int32_t> choice_slot, int64_t first_choice,
                       int32_t* packed_choice_slot, int32_t* packed_slot_choice) {
  const std::vector<StoredBlock> blocks = stored_blocks(sizes, ends, begins);
  for (size_t i = 0; i < choice_slot.size(); ++i) {
    const int64_t slot = choice_slot[i];
    packed_choice_slot[i] = -1;
    if (slot < 0) continue;
    const int64_t row =
        blocks[static_cast<size_t>(slot / sizes.capacity)].row_0 + slot % sizes.capacity;
    packed_choice_slot[i] = static_cast<int32_t>(row);
    packed_slot_choice[row] = static_cast<int32_t>(first_choice + static_cast<int64_t>(i));
  }
}

}  // namespace moe::ops
